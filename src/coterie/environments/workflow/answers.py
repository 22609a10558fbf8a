"""Parser and scores of the final answer of a trajectory, the same for training and evaluation.

The answer is in the last complete ``<answer>...</answer>``, and ``|`` separates several answers. GAP's released code
requires all of them to be right in training, but only the first in evaluation. Here one setting applies to both.
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
    """Return the answer in a message, or ``None``.

    ``lenient`` also accepts an unclosed tag, ``the answer is X``, or else the last line, for models without training on
    the format.
    """
    tagged = next((one.strip() for one in reversed(_TAG.findall(text)) if one.strip()), None)
    if tagged is not None or not lenient:
        return tagged
    if (unclosed := _OPEN.search(text)) and unclosed[1].strip():
        return unclosed[1].strip().splitlines()[0].strip()
    plain = [line.strip() for line in _LEFT.sub("\n", text).splitlines() if line.strip()]
    stated = [one[1] for line in plain if (one := _SAID.search(line))]
    last = (stated or plain)[-1:]
    return last[0].strip(" .*\"'") or None if last else None


def parts(answer: str, several: Several) -> tuple[str, ...]:
    """Return all non-empty answers, or the first of them."""
    answers = tuple(part for one in answer.split(SEPARATOR) if (part := one.strip()))
    return answers if several == "all" else answers[:1]


def matches(answer: str | None, golds: Sequence[str], several: Several) -> float:
    """Return 1.0 if every answer that counts equals a right answer (exact match), else 0.0."""
    answers = () if answer is None else parts(answer, several)
    return float(bool(answers) and all(exact_match(one, golds) for one in answers))


def overlap(answer: str | None, golds: Sequence[str], several: Several) -> float:
    """Return the average F1 of the answers that count."""
    answers = () if answer is None else parts(answer, several)
    return sum(f1(one, golds) for one in answers) / len(answers) if answers else 0.0
