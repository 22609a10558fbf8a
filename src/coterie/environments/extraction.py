"""Reads the answer that an utterance marks: ``<A>answer</A>`` or ``\\boxed{answer}``.

The two markers of Optima (arXiv 2410.08115, section 4.1 and tables 9 to 11); the rules for boxed
numbers are those of Lewkowycz et al. 2022, appendix D, as far as numbers need them.
"""

import re
from decimal import Decimal

from coterie.datasets.boxed import boxed_answer

_MARKED = re.compile(r"<A>(.*?)</A", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?|-?\.\d+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def marked_answer(text: str) -> str | None:
    """The last ``<A>answer</A>`` of an utterance, stripped; ``None`` if there is none or it is empty."""
    found = _MARKED.findall(text)
    return (found[-1].strip() or None) if found else None


def number(text: str) -> str | None:
    """The number that a text states, in one spelling (``1,200.50 dollars`` is ``1200.5``).

    What follows the last ``=`` counts, and of that the first number; ``None`` if there is none.
    """
    stated = _THOUSANDS.sub("", text.rpartition("=")[2].replace(r"\!", "").replace("{,}", ","))
    found = _NUMBER.search(_THOUSANDS.sub("", stated))
    if found is None:
        return None
    value = Decimal(found[0])
    return f"{value.normalize():f}" if value else "0"


def boxed_number(text: str) -> str | None:
    r"""The number in the last ``\boxed{...}``, in one spelling; what is no number, as it is."""
    box = boxed_answer(text)
    return None if box is None else (number(box) or box)


def same_number(first: str, second: str) -> bool:
    """Whether two answers state the same number; what states none equals its own text only."""
    return (number(first) or first) == (number(second) or second)
