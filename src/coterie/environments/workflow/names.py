"""Search for names in texts, ignoring case, accents and punctuation."""

import re
import unicodedata
from collections.abc import Sequence

_WORD = re.compile(r"[^\W_]+(?:[\u0300-\u036f]+[^\W_]*)*")
_BRACKETS = re.compile(r"\s*\([^()]*\)")
LEAST = 2
"""Minimum words of a partial name that identifies the whole name, since a single word is ambiguous."""

_EMPTY = (
    "a an the of in on at to for from by with and or but is are was were be been being do does did has have had that "
    "this these those which who whom whose what when where why how it its he she his her they their them as than then "
    "also both s there can could would will about into"
)
"""Stop words of questions."""


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text without case, accents and punctuation."""
    return tuple(map(_fold, _WORD.findall(text)))


def telling(question: str) -> list[str]:
    """Return the words of a question that are no stop words, in their spelling."""
    empty = set(_EMPTY.split())
    stripped = (one.strip("\"'.,;:?!()[]") for one in question.split())
    return [one for one in stripped if not set(words(one)) <= empty]


def says(text: str, name: str) -> bool:
    """Return True if a text contains the words of a name in sequence; False for a name without words."""
    return _place(words(text), words(name)) is not None


def spelling_in(text: str, name: str) -> str:
    """Return the spelling of a name in a text, preferably with a capital letter, or ""."""
    matches = list(_WORD.finditer(text))
    folded, target = tuple(_fold(one[0]) for one in matches), words(name)
    spans = [
        (matches[place].start(), matches[place + len(target) - 1].end())
        for place in range(len(folded) - len(target) + 1)
        if target and folded[place : place + len(target)] == target
    ]
    spans.sort(key=lambda span: text[span[0]].islower())
    return _with_bracket(text, *spans[0]) if spans else ""


def bare(name: str) -> str:
    """Return a name without text in brackets, such as ``(1929 film)``."""
    return _BRACKETS.sub("", name).strip() or name


def alike(one: str, other: str) -> bool:
    """Return True if two names are equal or one contains the other."""
    first, second = sorted((words(bare(one)), words(bare(other))), key=len)
    if first == second:
        return bool(first)
    return len(first) >= LEAST and _place(second, first) is not None


def places_of(name: str, among: Sequence[str]) -> list[int]:
    """Return the indices of equal names, or else of names that are :func:`alike`."""
    equal = [place for place, one in enumerate(among) if words(one) == words(name)]
    return equal or [place for place, one in enumerate(among) if alike(one, name)]


def _fold(word: str) -> str:
    plain = unicodedata.normalize("NFKD", word)
    return "".join(one for one in plain if not unicodedata.combining(one)).casefold()


def _place(text: tuple[str, ...], part: tuple[str, ...]) -> int | None:
    places = range(len(text) - len(part) + 1) if part else ()
    return next((place for place in places if text[place : place + len(part)] == part), None)


def _with_bracket(text: str, start: int, stop: int) -> str:
    span = text[start:stop]
    closed = text[stop : stop + 1] == ")" and span.count("(") > span.count(")")
    return span + ")" * closed
