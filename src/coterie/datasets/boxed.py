r"""The answer that a text of mathematics boxes: ``\boxed{...}``, as MATH and its solvers write it."""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{)?")
_BARE = re.compile(r"[^\s$]+")


def boxed_answer(text: str) -> str | None:
    r"""The content of the last box, braces matched, stripped; ``None`` if it is empty or never closed.

    ``\fbox{...}`` is a box too, and so is ``\boxed 5`` (MATH's own solutions have both).
    """
    found = list(_BOX.finditer(text))
    if not found:
        return None
    if found[-1][1] is None:
        bare = _BARE.match(text, found[-1].end())
        return bare[0] if bare else None
    begin, depth = found[-1].end(), 1
    for index in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[begin:index].strip() or None
    return None
