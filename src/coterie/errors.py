"""The one error type that is meant for a person: what was wrong, where, and what to do.

The command line prints a ``UserError`` without a traceback and exits with status 2.
"""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake or shortage that the person at the keyboard can fix.

    ``what`` says what is wrong and where; ``todo`` says what to do about it.
    """

    def __init__(self, what: str, todo: str = "") -> None:
        super().__init__(f"{what}\n  -> {todo}" if todo else what)
        self.what = what
        self.todo = todo


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that is most like a misspelt one, whatever its case; ``None`` if none is like it."""
    plain = {one.lower().replace("-", "_"): one for one in known}
    near = difflib.get_close_matches(word.lower().replace("-", "_"), plain, n=1, cutoff=cutoff)
    return plain[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question with the nearest known word, and a blank to go on after it; empty if there is none."""
    near = nearest(word, known)
    return f"did you mean {near!r}? " if near else ""
