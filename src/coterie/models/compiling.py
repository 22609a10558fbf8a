"""Availability of numba, which compiles loops for the CPU. Callers fall back to torch on platforms without numba."""

try:
    import numba  # noqa: F401
except (ImportError, OSError) as error:
    NUMBA_ERROR = str(error) or type(error).__name__
else:
    NUMBA_ERROR = ""
"""Import error of numba; empty if numba is available."""
