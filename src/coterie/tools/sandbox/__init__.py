"""Sandbox that runs and grades Python written by a model, in jails of bubblewrap; see ``docs/howto/sandbox.md``.

Nothing in an answer's process is trusted: it may change our code there and write anything to its channel. Expected
values never enter a jail, and no ancestor of an answer's process has ever held a source, a call or a result.
"""
