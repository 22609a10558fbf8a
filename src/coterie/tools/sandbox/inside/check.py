"""Run the test of a function, ``check(candidate)``, apart from the function, with results that it returned before.

The test and the function run in different jails, so a function can neither read the test nor end its process. First the
calls of the test are collected, then they run in the function's jail, and then the test runs with their results.
"""

import ast
import builtins
import json
import random
import symtable
from collections.abc import Callable, Collection
from typing import Any

from coterie.tools.sandbox.inside.plain import NotPlain, Typed, decode, encode

REPLAYER = __name__
"""Module from which a source imports ``replay`` and ``apply``."""


def apply(function: Callable[..., Any], call: str) -> Typed:
    """Call a function with arguments from ``replay``."""
    positional, named = decode(json.loads(call))
    return Typed(function(*positional, **named))


def replay(test: str, function: str, known_results: str, space: dict[str, Any]) -> list[Any]:
    """Return the calls without a known result, and, if there are none, why the test failed ("" if it passed).

    ``known_results`` is JSON: the value of each call in the plain form. ``space`` has the names of the test's prelude.
    A test may also call the candidate by its name ``function``. Raises ``NameError`` before the first call if the test
    can't run, whatever the function returns.
    """
    results = json.loads(known_results)
    if not results and (names := undefined_names(test, {*space, *vars(builtins), function})):
        raise NameError(f"its test uses an undefined name: {names[0]}")
    lenient = ast.fix_missing_locations(_Lenient().visit(ast.parse(test)))
    calls, _ = _run(lenient, function, results, space)
    return [calls, "" if calls else _run(ast.parse(test), function, results, space)[1]]


def undefined_names(source: str, known_names: Collection[str]) -> list[str]:
    """Return the names that a source reads, and that neither it nor ``given`` defines, in any scope.

    It runs nothing, so that the result does not depend on values. A source that can define names while it runs has
    none.
    """
    tables = [symtable.symtable(source, "test", "exec")]
    for table in tables:
        tables.extend(table.get_children())
    symbols = [symbol for table in tables for symbol in table.get_symbols()]
    read = {symbol.get_name() for symbol in symbols if symbol.is_referenced()}
    defined = {
        symbol.get_name() for symbol in symbols
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_parameter()
    }  # fmt: skip
    if "import *" in source or read & {"exec", "globals"}:
        return []
    return sorted(
        name for name in read.difference(defined, known_names) if not name.startswith("__")
    )


class _Lenient(ast.NodeTransformer):
    """Continue after assertions that fail, to collect all calls."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
        return ast.Try([ast.Expr(node.test)], [handler], [], [])


def _run(
    tree: ast.Module, function: str, results: dict[str, Any], space: dict[str, Any]
) -> tuple[list[str], str]:
    """Run a test. Return its calls without a known result, and why it failed."""
    calls: dict[str, None] = {}
    broken: list[str] = []

    def candidate(*positional: Any, **named: Any) -> Any:
        try:
            call = json.dumps(encode((positional, named)))
        except NotPlain as error:
            broken.append(str(error))
            raise
        if call not in results:
            calls[call] = None
            raise LookupError("the value is not known yet")
        return decode(results[call])

    random.seed(0)
    names, reason = {**space, function: candidate}, ""
    try:
        exec(compile(tree, "test", "exec"), names)
        names["check"](candidate)
    except Exception as error:
        reason = type(error).__name__
    if broken:
        raise NotPlain(broken[0])
    return list(calls), reason
