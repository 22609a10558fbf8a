"""Whether numba, which compiles loops for the CPU, can be imported. What is done by such loops has another way as well,
by torch, for platforms that numba has no build for.
"""

try:
    import numba  # noqa: F401
except (ImportError, OSError) as error:
    NUMBA_ERROR = str(error) or type(error).__name__
else:
    NUMBA_ERROR = ""
"""Why numba can't be imported; empty if it can."""
