"""A language of action lines, and what runs them.

A line is actions joined by ``;`` or line ends: ``R1 = Calculator(48 / 2); R2 = Calculator(R1 + 48)``. ``grammar`` reads
one, ``domains`` says which tools there are and what is wrong with a line, and the executors (``maths``, ``questions``,
``web``, ``shop``) run it. A model writes the lines, so no part of a line is ever run as Python, but
for the text of ``Code``, which runs in the sandbox.
"""
