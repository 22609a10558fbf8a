"""Small faults put into the package by hand, each of which must turn named tests red.

A module here has a tuple ``MUTANTS`` of :class:`tests.mutation.mutant.Mutant`; the runner
(``python -m tests.mutation``, ``make test-mutants``) finds it by itself. How to add one:

1. Think of a fault that a careless developer could make, and that changes what users get. An edit that
   changes nothing that can be seen (an equivalent mutant) is not a mutant.
2. ``Mutant(NAME, FILE, FIND, REPLACE, BREAKS, TESTS)``: ``FILE`` below ``src/coterie``; ``FIND`` must
   occur in it exactly once; the package must still import. ``TESTS`` are pytest node ids, one is enough
   (``tests/test_x.py::test_y``, with or without ``[parameters]``); name few and fast ones.
3. ``python -m tests.mutation --only NAME``. At least one named test must fail by an ``assert`` (or by a
   ``pytest.raises`` that saw nothing, or another message) within 30 seconds. A crash (``TypeError``,
   ``KeyError``, an error at import) does not count: it says nothing about behaviour.
4. If it survives, the tests are at fault: make them stronger.

``python -m tests.mutation --check`` (a second, part of ``make lint``) says which edits no longer fit the code.
"""
