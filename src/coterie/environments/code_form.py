"""Whether the code of an answer is whole: it parses, and one of its functions is among those asked for."""

import ast
import warnings


def functions(code: str) -> frozenset[str]:
    """Names of the functions at the top of a module whose bodies do something; none if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        one.name for one in module.body if isinstance(one, kinds) and not all(map(_idle, one.body))
    )


def _idle(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
