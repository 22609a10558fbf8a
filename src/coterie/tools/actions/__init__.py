"""Language of action lines, such as ``R1 = Calculator(48 / 2); R2 = Calculator(R1 + 48)``, and executors that run them.

A model writes the lines, so no part of a line runs as Python, except the text of ``Code``, which runs in the sandbox.
"""
