"""Terms of a reward that a run brings itself: functions of a dialogue, by name, each with a weight."""

import math
from collections.abc import Mapping
from functools import cache

from coterie.config.plugins import Kind, Plugin, find, guarded, label
from coterie.errors import UserError

REWARDS = Kind("reward", {})
"""Built-in terms have weights of their own, and are not asked for by name."""


def found_terms(names: tuple[str, ...], known: tuple[str, ...]) -> dict[str, Plugin]:
    """The functions of these names, by what their terms are called.

    Raises ``UserError`` for what is not found or not a function, and for two terms of one name; ``known`` are those
    that there are already.
    """
    found: dict[str, Plugin] = {}
    for name in names:
        short = label(name)
        if short in (*known, *found):
            raise UserError(
                f"reward.terms has {name}, and there is a term {short!r} already",
                "give the function another name; built-in terms have weights of their own",
            )
        found[short] = _find(name)
    return found


@cache
def _find(name: str) -> Plugin:
    found = find(REWARDS, name)
    if not callable(found.thing) or isinstance(found.thing, type):
        raise UserError(
            f"{found} is not a function", "write def NAME(sample): ..., which gives a number"
        )
    return found


def value(found: Plugin, sample: object) -> float:
    """What a term gives of a dialogue. Raises ``UserError`` for an error in it, and for what is not a number."""
    given = guarded(f"{found} failed", lambda: found.thing(sample))
    if not isinstance(given, int | float) or not math.isfinite(given):
        raise UserError(f"{found} gave {given!r}", "give a finite number")
    return float(given)


def sources(names: Mapping[str, float]) -> list[tuple[str, str, float]]:
    """What terms are: names, hashes of their files, weights."""
    return [(label(name), _find(name).source, weight) for name, weight in names.items()]
