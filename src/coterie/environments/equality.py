"""When two answers are the same text, the same option, or the same to math-verify.

math-verify runs in a process of its own (``math_worker``) that is ended if it takes too long.
``environments.mathematics`` settles most answers without it.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from coterie.environments.answers import exact_match
from coterie.tools.line_process import LineProcess

LIMIT = 12.0
"""Seconds for a comparison; its own limits (see ``math_worker``) come earlier, but a signal waits for C code."""


def same_text(first: str, second: str) -> bool:
    """Equal texts, whatever their spacing."""
    return first.split() == second.split()


def same_words(first: str, second: str) -> bool:
    """Equal texts, whatever their case, spacing, articles and punctuation."""
    return exact_match(second, [first]) == 1.0


def option_of(answer: str, options: Sequence[str]) -> str:
    """The option that an answer names: in its own case, or in any if only one is spelled so.

    An answer that names none, or one of several that differ in their case only, is left as it is.
    """
    words = answer.split()
    if any(option.split() == words for option in options):
        return answer
    folded = answer.casefold().split()
    named = {tuple(o.split()): o for o in options if o.casefold().split() == folded}
    return next(iter(named.values())) if len(named) == 1 else answer


@lru_cache(maxsize=65536)
def compared(gold: str, given: str, gold_letters: str = "", given_letters: str = "") -> bool:
    """Return what math-verify says of two answers in LaTeX; ``False`` if it takes too long or drops a letter.

    May be called from any thread.
    """
    return _WORKER.ask(json.dumps([gold, given, gold_letters, given_letters]), LIMIT) == "true"


_WORKER = LineProcess(Path(__file__).with_name("math_worker.py"), "math-verify")
