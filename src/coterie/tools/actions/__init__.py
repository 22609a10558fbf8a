"""Language of action lines, and executors that run them.

A line is actions joined by ``;`` or line ends: ``R1 = Calculator(48 / 2); R2 = Calculator(R1 + 48)``. ``grammar`` reads
a line, ``domains`` defines the tools and reports problems of a line, and the executors (``maths``, ``questions``,
``web``, ``shop``) run it. A model writes the lines, so no part of a line runs as Python, except the text of ``Code``,
which runs in the sandbox.
"""
