"""Whether a prompt that somebody else wrote asks a held-out question, wherever in the prompt it stands.

Compared are words alone: case, spaces, punctuation and signs that nobody sees make no other question.
"""

import re
import unicodedata
from collections.abc import Iterable

_WORD = re.compile(r"[^\W_]+")
_LEAST = 4
"""Words by which a question is found; one of fewer by all of them."""
Words = tuple[str, ...]


class HeldOutQuestions:
    """The words of some questions, to be found in longer texts."""

    def __init__(self, questions: Iterable[str]) -> None:
        self._beginning: dict[Words, list[Words]] = {}
        for question in questions:
            if asked := words(question):
                self._beginning.setdefault(asked[:_LEAST], []).append(asked)

    def asked_in(self, text: str) -> bool:
        said = words(text)
        return any(
            said[place : place + len(one)] == one
            for place in range(len(said))
            for length in range(1, _LEAST + 1)
            for one in self._beginning.get(said[place : place + length], ())
        )


def words(text: str) -> Words:
    """The words of a text, without what is not seen (zero-width signs, soft hyphens)."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    seen = "".join(sign for sign in plain if unicodedata.category(sign) != "Cf")
    return tuple(_WORD.findall(seen))
