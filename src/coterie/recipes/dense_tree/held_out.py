"""Held-out questions that text from elsewhere may ask: it is not trained on.

The released code trained on the tasks that it evaluated; its pairs, and anybody's, are looked through.
"""

from collections.abc import Iterable, Sequence

BEGINNING = 32
"""Characters of a question by which it is looked up. A shorter one counts only as all of a message, or its end."""


class HeldOut:
    """Questions, whatever their case and spacing."""

    def __init__(self, questions: Iterable[str]) -> None:
        self._long: dict[str, list[str]] = {}
        self._short = set[str]()
        for text in map(_plain, questions):
            if len(text) >= BEGINNING:
                self._long.setdefault(text[:BEGINNING], []).append(text)
            elif text:
                self._short.add(text)

    def is_asked(self, messages: Sequence[tuple[str, str]]) -> bool:
        """Whether a message of the user (role, text) has one of them."""
        return any(role == "user" and self._is_in(_plain(text)) for role, text in messages)

    def _is_in(self, text: str) -> bool:
        starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == " ")]
        return any(
            text.startswith(question, start)
            for start in starts
            for question in self._long.get(text[start : start + BEGINNING], ())
        ) or any(text[start:] in self._short for start in starts if len(text) - start < BEGINNING)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
