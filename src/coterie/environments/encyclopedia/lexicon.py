"""Words of the ``encyclopedia`` micro-world, its kinds of entries, and relations between them.

A name has two words, each a single token of the tiny tokenizer (checked by ``scripts/tiny/encyclopedia.py``). Names
share words, as in ``Ada Vell``, ``Ada Quill`` and ``Vell Bank``, so a search also returns irrelevant entries.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["person", "town", "firm"]
Scale = Literal["year", "number"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FIRSTS = _words(
    "Ada Bram Cleo Dov Edda Finn Gerda Hedy Ilse Jory Kasia Leif Mavis Nils Olga Piet Quin Rolf Signe Tove Ulla Vito "
    "Wanda Ximo Yola Zeno Anouk Bodo Cosima Drago Elke Falk Gitta Hektor Ingo Jutta Knut Lotte Malte Nadja Oskar "
    "Petra Ragna Silas Thea Ugo Vera Wim Xenia Ylva Zora Arne Britt Corin Dagny Emeric Frida Gustav Helga Ivar Jelka "
    "Klaas Ludek Mirza"
)
_LASTS = _words(
    "Vell Quill Dorn Hask Lund Pryce Tamm Brandt Corvo Dahl Erhart Fenn Galt Hobb Isley Jarre Keel Lorne Mott Nagel "
    "Orme Pell Quist Rusk Stroud Thorn Umber Voss Wick Yarrow Zell Ambler Bexley Crane Draper Eames Frost Grimm Hale "
    "Ibsen Jost Kerr Lisle Marsh Nye Oakes Pike Quade Rigby Sloan Teague Usher Vance Wray Yates Zahn Arden Birk Cobb "
    "Dunne Ekman Foss Gable Holt"
)
_SIDES = _words("Upper Lower Old New Great Little East West North South Long High Dry Green")
_PLACES = _words(
    "Tarn Moor Ford Glen Harbour Ridge Mill Abbey Bridge Castle Dale Haven Kirk Lea Marsh Oak Pool Quay Rock Stow "
    "Thorpe Vale Weir Wold Barrow Combe Down Fell Grove Heath Isle Knoll Meadow Nook Pass Reach"
)
_TRADES = _words("Bank Mills Press Motors Mining Foods Timber Glass Lines Steel Tools Cloth")

NAMES: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "person": (_FIRSTS, _LASTS),
    "town": (_SIDES, _PLACES),
    "firm": (_LASTS[:40], _TRADES),
}
"""First and second words of names, by kind. Firms are named after people."""
VALUES: dict[str, tuple[str, ...]] = {
    "year": tuple(map(str, range(1921, 1951))),
    "number": tuple(f"{hundreds}00" for hundreds in range(21, 51)),
}
"""Comparable values in ascending order."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation in an entry. In templates ``{s}`` is the entity and ``{v}`` the value."""

    name: str
    of: Kind
    to: Kind | Scale
    sentence: str
    question: str
    phrase: str = ""
    """Phrase for a value that is an entity."""
    extremes: tuple[str, str] = ("", "")
    """Questions for the least and the greatest of several comparable values."""

    @property
    def query(self) -> str:
        return f"{self.name} of {{s}}"


RELATIONS = (
    Relation(
        *("birth", "person", "year", "{s} was born in {v}.", "When was {s} born?"),
        extremes=("When was the first of {s} born?", "When was the last of {s} born?"),
    ),
    Relation(
        *("home", "person", "town", "{s} lives in {v}.", "Where does {s} live?"),
        phrase="the home of {s}",
    ),
    Relation(
        *("size", "town", "number", "{s} has {v} people.", "How many people has {s}?"),
        extremes=(
            "How many people has the smallest of {s}?",
            "How many people has the largest of {s}?",
        ),
    ),
    Relation(
        *("mayor", "town", "person", "The mayor of {s} is {v}.", "Who is the mayor of {s}?"),
        phrase="the mayor of {s}",
    ),
    Relation(
        *("founding", "firm", "year", "{s} was founded in {v}.", "When was {s} founded?"),
        extremes=("When was the first of {s} founded?", "When was the last of {s} founded?"),
    ),
    Relation(
        *("seat", "firm", "town", "{s} has its seat in {v}.", "Where is the seat of {s}?"),
        phrase="the seat of {s}",
    ),
    Relation(
        *("head", "firm", "person", "The head of {s} is {v}.", "Who is the head of {s}?"),
        phrase="the head of {s}",
    ),
)
"""All relations, in the order of the facts in an entry."""
BY_NAME = {one.name: one for one in RELATIONS}
OF_KIND: dict[Kind, tuple[Relation, ...]] = {
    kind: tuple(one for one in RELATIONS if one.of == kind) for kind in NAMES
}
COMPARED = tuple(one for one in RELATIONS if one.extremes[0])


def paths(hops: int) -> tuple[tuple[Relation, ...], ...]:
    chains: list[tuple[Relation, ...]] = [(one,) for one in RELATIONS]
    for _ in range(hops - 1):
        chains = [(*path, one) for path in chains for one in RELATIONS if one.of == path[-1].to]
    return tuple(chains)


def words() -> tuple[str, ...]:
    """Return all words of names and all values as they occur in text: second words with a leading space."""
    firsts = [word for first, _ in NAMES.values() for word in first]
    seconds = [f" {word}" for _, second in NAMES.values() for word in second]
    return tuple(
        dict.fromkeys([*firsts, *seconds, *(one for row in VALUES.values() for one in row)])
    )
