"""Custom reward terms: functions of a dialogue with weights."""

import math
from collections.abc import Mapping
from functools import cache

from coterie.config.plugins import Kind, Plugin, find, guarded, label
from coterie.errors import UserError

REWARDS = Kind("reward", {})


def load_terms(names: tuple[str, ...], built_in: tuple[str, ...]) -> dict[str, Plugin]:
    """Load functions, by the names of their terms.

    Raises ``UserError`` for a function that can't be loaded, and for two terms with one name.
    """
    terms: dict[str, Plugin] = {}
    for name in names:
        short = label(name)
        if short in (*built_in, *terms):
            raise UserError(
                f"reward.terms has {name}, but there is already a term {short!r}",
                "rename the function; for built-in terms set their own weights",
            )
        terms[short] = _find(name)
    return terms


@cache
def _find(name: str) -> Plugin:
    term = find(REWARDS, name)
    if not callable(term.thing) or isinstance(term.thing, type):
        raise UserError(
            f"{term} is not a function", "write def NAME(sample): ... that returns a number"
        )
    return term


def term_value(term: Plugin, sample: object) -> float:
    """Return a term's value for a dialogue. Raises ``UserError`` if it fails or returns no finite number."""
    value = guarded(f"{term} failed", lambda: term.thing(sample))
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{term} returned {value!r}", "return a finite number")
    return float(value)


def term_sources(names: Mapping[str, float]) -> list[tuple[str, str, float]]:
    """Return the name, the hash of the file, and the weight of each term."""
    return [(label(name), _find(name).source, weight) for name, weight in names.items()]
