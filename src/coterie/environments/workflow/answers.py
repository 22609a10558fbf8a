"""The final answer of a trajectory: how it is read, and how right it is. Training and evaluation read it alike.

The answer stands in the last complete ``<answer>...</answer>``; several answers are divided by ``|``. GAP's released
code asks that all of them are right while it trains, and looks at the first one only when it evaluates. Here one
setting says which, and it holds for both.
"""

import re
from collections.abc import Sequence
from typing import Literal

from coterie.environments.answers import exact_match, f1

SEPARATOR = "|"
Several = Literal["all", "first"]
_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_OPEN = re.compile(r"<answer>((?:(?!<answer>).)*)\Z", re.DOTALL)
_SAID = re.compile(r"(?:final answer|answer)\s*(?:is|:)\s*(.+)", re.IGNORECASE)
_LEFT = re.compile(r"</?[a-z_]{1,30}>")


def final_answer(text: str, *, lenient: bool = False) -> str | None:
    """The answer of a message; ``None`` if it gives none.

    ``lenient`` also takes one whose tag is not closed, ``the answer is X``, and at last the last line: for models that
    were never trained on the form.
    """
    found = next((one.strip() for one in reversed(_TAG.findall(text)) if one.strip()), None)
    if found is not None or not lenient:
        return found
    if (opened := _OPEN.search(text)) and opened[1].strip():
        return opened[1].strip().splitlines()[0].strip()
    plain = [line.strip() for line in _LEFT.sub("\n", text).splitlines() if line.strip()]
    said = [one[1] for line in plain if (one := _SAID.search(line))]
    last = (said or plain)[-1:]
    return last[0].strip(" .*\"'") or None if last else None


def parts(answer: str, several: Several) -> tuple[str, ...]:
    """The answers that count: all that are not empty, or the first of them."""
    found = tuple(part for one in answer.split(SEPARATOR) if (part := one.strip()))
    return found if several == "all" else found[:1]


def matches(answer: str | None, golds: Sequence[str], several: Several) -> float:
    """1.0 if every answer that counts is one of the right ones (exact match), else 0.0."""
    found = () if answer is None else parts(answer, several)
    return float(bool(found) and all(exact_match(one, golds) for one in found))


def overlap(answer: str | None, golds: Sequence[str], several: Several) -> float:
    """The mean F1 of the answers that count."""
    found = () if answer is None else parts(answer, several)
    return sum(f1(one, golds) for one in found) / len(found) if found else 0.0
