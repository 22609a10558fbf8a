"""Detection of texts that quote the answer of another agent.

A plan that quotes the right actions makes them likely, and leaves nothing to do for the agent that should write them.
"""

import re
from collections.abc import Sequence

SHORTEST = 6
"""Minimum length of a quote in characters, without spaces."""
_NAME = re.compile(r"^\s*\w+\s*=\s*")


def quotes(text: str, hidden: Sequence[str]) -> bool:
    """Return True if a text contains a hidden text, ignoring spaces and the name of its result."""
    bare = _bare(text)
    needles = (_bare(_NAME.sub("", one)) for one in hidden)
    return any(len(needle) >= SHORTEST and needle in bare for needle in needles)


def _bare(text: str) -> str:
    return "".join(text.split()).lower()
