r"""The answer that a text of mathematics boxes: ``\boxed{...}``, as MATH and its solvers write it."""

import re
from collections.abc import Mapping

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{)?")
_BARE = re.compile(r"[-+]?[\d.\\][^\s$]*|[a-zA-Z](?=\s*(?:\$|\Z))")
"""What stands in a box without braces: a number, a command, or a letter that ends the formula."""


def boxed_answer(text: str) -> str | None:
    r"""The content of the last box that has some, braces matched, stripped; ``None`` if there is none.

    A box that is never closed, as in talk about the box, is none and hides none. ``\fbox{...}`` is a
    box too, and so is ``\boxed 5`` (MATH's own solutions have both).
    """
    boxes = list(_BOX.finditer(text))
    ends = _ends(text) if boxes else {}
    return next((found for box in reversed(boxes) if (found := _content(text, box, ends))), None)


def _content(text: str, box: re.Match[str], ends: Mapping[int, int]) -> str | None:
    if box[1] is None:
        bare = _BARE.match(text, box.end())
        return bare[0] if bare else None
    end = ends.get(box.start(1))
    return None if end is None else text[box.end() : end].strip()


def _ends(text: str) -> dict[int, int]:
    """Where each brace that is closed is closed; found at once, for a text may open thousands."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            ends[opened.pop()] = brace.start()
    return ends
