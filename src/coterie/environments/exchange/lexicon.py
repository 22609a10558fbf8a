"""Words of the ``exchange`` micro-world: people, relations and their values.

Each word with a leading space is a single token of the tiny tokenizer (checked by ``scripts/tiny/exchange.py``), so
facts are copied token by token.
"""

from dataclasses import dataclass


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE: tuple[str, ...] = _words(
    "Nora Omar Kim Liam Mia Noah Zoe Ivan Lena Hugo Rosa Theo Vera Yuri Anya Boris Clara Diego Elsa Felix "
    "Gina Hana Igor Jane Karl Lucy Marco Nina Otto Paula Rita Sven Tara Umar Viola Wendy Xena Yara Zane "
    "Amir Bella Cyrus Dora Emil Fiona Greta Henry Iris Jonas Kira"
)


@dataclass(frozen=True)
class Relation:
    """A relation between a person and a value, with its phrases."""

    name: str
    """Name of the relation in facts, such as ``home``."""
    values: tuple[str, ...]
    question: str
    """Question with ``{s}`` for the person, such as ``Where does {s} live?``."""
    sentence: str
    """Statement with ``{s}`` and ``{v}``, such as ``{s} lives in {v}``."""

    @property
    def links_people(self) -> bool:
        """True if the value is a person, so that a second hop can start there."""
        return self.values is PEOPLE


RELATIONS: tuple[Relation, ...] = (
    Relation(
        "home",
        _words("Paris Rome Oslo Cairo Lima Tokyo Delhi Quito Dublin Prague Berlin Madrid"),
        "Where does {s} live?",
        "{s} lives in {v}",
    ),
    Relation(
        "job",
        _words("baker pilot nurse lawyer farmer teacher painter doctor sailor judge miner tailor"),
        "What is the job of {s}?",
        "{s} works as a {v}",
    ),
    Relation(
        "pet",
        _words("cat dog parrot rabbit turtle hamster pony goat lizard duck goose ferret"),
        "What pet does {s} have?",
        "{s} has a {v}",
    ),
    Relation(
        "meal",
        _words("pizza soup rice pasta salad curry stew bread cheese fish beans noodles"),
        "What does {s} like to eat?",
        "{s} likes to eat {v}",
    ),
    Relation(
        "sport",
        _words("tennis golf chess rugby boxing hockey cricket judo polo rowing skiing darts"),
        "What does {s} play?",
        "{s} plays {v}",
    ),
    Relation(
        "car",
        _words("red blue green white black yellow pink grey brown orange purple silver"),
        "What colour is the car of {s}?",
        "the car of {s} is {v}",
    ),
    Relation("friend", PEOPLE, "Who is the friend of {s}?", "the friend of {s} is {v}"),
    Relation("boss", PEOPLE, "Who is the boss of {s}?", "the boss of {s} is {v}"),
    Relation("cousin", PEOPLE, "Who is the cousin of {s}?", "the cousin of {s} is {v}"),
)

BY_NAME: dict[str, Relation] = {relation.name: relation for relation in RELATIONS}
LINKS: tuple[str, ...] = tuple(r.name for r in RELATIONS if r.links_people)
"""Relations whose value is a person: the first hop of a two-hop question."""
ENDS: tuple[str, ...] = tuple(r.name for r in RELATIONS if not r.links_people)
"""Relations whose value is not a person: the last hop of a two-hop question."""


def words() -> tuple[str, ...]:
    """Return all names, relations and values without duplicates, in a fixed order."""
    all_words = [*PEOPLE, *(r.name for r in RELATIONS), *(v for r in RELATIONS for v in r.values)]
    return tuple(dict.fromkeys(all_words))
