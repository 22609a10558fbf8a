"""Names in texts, whatever their case, accents and punctuation: whether a text has one, and how it spells it there."""

import re
import unicodedata
from collections.abc import Sequence

_WORD = re.compile(r"[^\W_]+(?:[\u0300-\u036f]+[^\W_]*)*")
_BRACKETS = re.compile(r"\s*\([^()]*\)")
LEAST = 2
"""Words that a part of a name must have to stand for the whole: one word alone may be anybody's."""

_EMPTY = (
    "a an the of in on at to for from by with and or but is are was were be been being do does did has have had that "
    "this these those which who whom whose what when where why how it its he she his her they their them as than then "
    "also both s there can could would will about into"
)
"""Words of a question that no page is found by."""


def words(text: str) -> tuple[str, ...]:
    """Its words without case, accents and punctuation."""
    return tuple(map(_folded, _WORD.findall(text)))


def telling(question: str) -> list[str]:
    """The words that pages can be found by, as they are written."""
    empty = set(_EMPTY.split())
    kept = (one.strip("\"'.,;:?!()[]") for one in question.split())
    return [one for one in kept if not set(words(one)) <= empty]


def says(text: str, name: str) -> bool:
    """Whether the words of a name stand in a text one after the other. A name without words stands nowhere."""
    return _place(words(text), words(name)) is not None


def spelled(text: str, name: str) -> str:
    """A name as a text spells it; empty if it is not there. One that begins with a capital is preferred."""
    found = list(_WORD.finditer(text))
    folded, wanted = tuple(_folded(one[0]) for one in found), words(name)
    spans = [
        (found[place].start(), found[place + len(wanted) - 1].end())
        for place in range(len(folded) - len(wanted) + 1)
        if wanted and folded[place : place + len(wanted)] == wanted
    ]
    spans.sort(key=lambda span: text[span[0]].islower())
    return _with_bracket(text, *spans[0]) if spans else ""


def bare(name: str) -> str:
    """A name without what stands in brackets, such as ``(1929 film)``."""
    return _BRACKETS.sub("", name).strip() or name


def alike(one: str, other: str) -> bool:
    """Whether two spellings can be of the same: equal words, or the one within the other."""
    first, second = sorted((words(bare(one)), words(bare(other))), key=len)
    if first == second:
        return bool(first)
    return len(first) >= LEAST and _place(second, first) is not None


def places_of(name: str, among: Sequence[str]) -> list[int]:
    """Where a name is among others: equal ones, or, if there are none, those that are alike."""
    equal = [place for place, one in enumerate(among) if words(one) == words(name)]
    return equal or [place for place, one in enumerate(among) if alike(one, name)]


def _folded(word: str) -> str:
    plain = unicodedata.normalize("NFKD", word)
    return "".join(one for one in plain if not unicodedata.combining(one)).casefold()


def _place(text: tuple[str, ...], part: tuple[str, ...]) -> int | None:
    places = range(len(text) - len(part) + 1) if part else ()
    return next((place for place in places if text[place : place + len(part)] == part), None)


def _with_bracket(text: str, start: int, stop: int) -> str:
    span = text[start:stop]
    closed = text[stop : stop + 1] == ")" and span.count("(") > span.count(")")
    return span + ")" * closed
