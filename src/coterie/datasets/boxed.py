r"""The answer that a text of mathematics boxes: ``\boxed{...}``, as MATH and its solvers write it."""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{)?")
_BARE = re.compile(r"[-+]?[\d.\\][^\s$]*|[a-zA-Z](?=\s*(?:\$|\Z))")
"""What stands in a box without braces: a number, a command, or a letter that ends the formula."""


def boxed_answer(text: str) -> str | None:
    r"""The content of the last box that has some, braces matched, stripped; ``None`` if there is none.

    A box that is never closed, as in talk about the box, is none and hides none. ``\fbox{...}`` is a
    box too, and so is ``\boxed 5`` (MATH's own solutions have both).
    """
    for found in reversed(list(_BOX.finditer(text))):
        if content := _content(text, found):
            return content
    return None


def _content(text: str, box: re.Match[str]) -> str | None:
    if box[1] is None:
        bare = _BARE.match(text, box.end())
        return bare[0] if bare else None
    begin, depth = box.end(), 1
    for index in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[begin:index].strip()
    return None
