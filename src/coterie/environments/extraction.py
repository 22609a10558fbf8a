"""Reads the answer that an utterance marks: ``<A>answer</A>`` or ``\\boxed{answer}``.

The two markers of Optima (arXiv 2410.08115, section 4.1 and tables 9 to 11).
"""

import re

from coterie.datasets.problems import boxed_answer
from coterie.environments.numbers import number

_MARKED = re.compile(r"<A>((?:(?!<A>).)*?)</A", re.DOTALL)


def marked_answer(text: str) -> str | None:
    """The last ``<A>answer</A>`` of an utterance with something in it, stripped; ``None`` if there is none.

    A mark that is opened and never closed, as in talk about the mark, is not an answer and hides none.
    """
    return next((one.strip() for one in reversed(_MARKED.findall(text)) if one.strip()), None)


def boxed_number(text: str) -> str | None:
    r"""The number in the last ``\boxed{...}``, in one spelling; what is not a number, as it is."""
    box = boxed_answer(text)
    return None if box is None else (number(box) or box)
