"""Process that makes and scores tasks of the package ``reasoning-gym``, for ``bridges.reasoning_gym``.

Some scorers call ``eval``, or sympy's parser, which calls it, on the agent's answer. Here they get only literals and
expressions of numbers, single letters and functions.
"""

import ast
import re
import sys
from contextlib import redirect_stdout
from functools import lru_cache
from typing import Any

import sympy
from sympy.parsing import sympy_parser

from coterie.tools.line_process import serve

MEMORY = 4 * 2**30
"""Bytes of address space."""
CHUNK = 100
"""Number of tasks of one data set object. Some of these objects make all their tasks at once."""
OWN_EVAL = ("basic_arithmetic", "bitwise_arithmetic")
"""Modules that evaluate only their own problems."""
FUNCTIONS = "a?(?:sin|cos|tan|sec|csc|cot)h?|exp|log|ln|sqrt|Abs|pi"
EXPRESSION = re.compile(
    rf"(?:(?:{FUNCTIONS}|[A-Za-z])(?![A-Za-z_])|\d|\.(?!\s*[A-Za-z])|[-+*/^(),\s])*"
)
_parse = sympy_parser.parse_expr


def parse_expression(text: str, *args: Any, **options: Any) -> Any:
    """Parse an expression with sympy. Raises ``ValueError`` for other Python code."""
    if not EXPRESSION.fullmatch(text):
        raise ValueError(f"not an expression: {text[:80]}")
    return _parse(text, *args, **options)


sympy.parse_expr = sympy_parser.parse_expr = parse_expression  # before reasoning_gym imports it
import reasoning_gym  # noqa: E402
from reasoning_gym.factory import DATASETS  # noqa: E402


@lru_cache(maxsize=16)
def chunk(name: str, config: str, number: int) -> Any:
    # Item n of a data set has its seed plus n, so the seeds of chunks must not overlap.
    dataset = reasoning_gym.create_dataset(
        name, **ast.literal_eval(config), seed=number * CHUNK, size=CHUNK
    )
    module = type(dataset).__module__
    if not module.endswith(OWN_EVAL):
        # This shadows the builtin in the module, so an answer can only be a literal.
        vars(sys.modules[module])["eval"] = ast.literal_eval
    return dataset


@lru_cache(maxsize=4096)
def entry(name: str, config: str, item: int) -> dict[str, Any]:
    values: dict[str, Any] = chunk(name, config, item // CHUNK)[item % CHUNK]
    return values


def answer(request: dict[str, Any]) -> dict[str, Any]:
    name, config, item = request["dataset"], repr(request["config"]), request["item"]
    try:
        # Standard output carries the replies, so the package must not print there.
        with redirect_stdout(sys.stderr):
            values = entry(name, config, item)
            if "answer" not in request:
                return {"item": [str(values["question"]), values["answer"] or ""]}
            score = chunk(name, config, item // CHUNK).score_answer(request["answer"], values)
            return {"score": float(score)}
    except Exception as error:  # from anywhere in the package
        return {"error": f"{type(error).__name__}: {error}"[:300], "known": sorted(DATASETS)}


if __name__ == "__main__":
    serve(answer, MEMORY)
