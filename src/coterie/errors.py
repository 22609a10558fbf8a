"""Error type for users: the problem and the fix.

The command line prints a ``UserError`` without a traceback and exits with status 2.
"""

import difflib
from collections.abc import Iterable

CONTROL_CHARACTERS = dict.fromkeys({*range(32), *range(127, 160)} - {*b"\t\n"}, "\ufffd")
"""Table for ``str.translate``. Texts of models and servers must not send commands to a terminal."""


class UserError(Exception):
    """Error that the user can fix.

    Args:
        what: The problem and its location.
        todo: The fix.
    """

    def __init__(self, what: str, todo: str = "") -> None:
        super().__init__(f"{what}\n  -> {todo}" if todo else what)
        self.what = what
        self.todo = todo


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that is most similar to a misspelled one, if any, regardless of case."""
    plain = {name.lower().replace("-", "_"): name for name in names}
    near = difflib.get_close_matches(word.lower().replace("-", "_"), plain, n=1, cutoff=cutoff)
    return plain[near[0]] if near else None


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a question with the nearest known word and a trailing space; empty without a similar word."""
    near = nearest(word, names)
    return f"did you mean {near!r}? " if near else ""
