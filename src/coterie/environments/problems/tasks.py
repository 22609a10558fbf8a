"""Word problems of the ``problems`` micro-world: a total of quantities, each of which has to be worked out.

A quantity is somebody's number of something, such as Bob's pens. The question names those that are added up. An owner
among them may have others, which do not count. Then a subgoal that names the owner alone can mean any of them: it is
ambiguous.

What is disjoint between the splits: the *canonical key* of a problem, i.e. the quantities that are added up, with their
numbers. A hash of it decides the split.
"""

import random
from dataclasses import dataclass
from typing import Literal

from coterie.environments.micro_splits import MicroSplit, check_split, split_of_key

Wording = Literal["near", "far"]
"""How problems are told: in the words of training tasks, or in others."""
Sign = Literal["+", "-", "*"]
SIGNS: tuple[Sign, ...] = ("+", "-", "*")
OWNERS = (
    "Ann", "Bob", "Cal", "Dee", "Eve", "Fay", "Gus", "Hal", "Ida", "Jim", "Kay", "Leo", "Mia", "Ned", "Pam", "Ray",
)  # fmt: skip
THINGS = ("pens", "cups", "hats", "keys", "maps", "nuts", "pots", "rugs")
AMBIGUOUS = 0.3
"""How often an owner who counts has quantities that do not."""
MORE = 2
OTHERS = (1, 2)
"""How many owners there are besides, each entry equally often drawn."""
FIRSTS, SECONDS = range(11, 60), range(2, 10)
PARTS = (2, 3)
"""How many quantities are added up, each entry equally often drawn."""
FAR_PARTS = (4,)
"""That of problems in other words."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What is told of somebody's number of something: a calculation."""

    owner: str
    thing: str
    first: int
    sign: Sign
    second: int

    @property
    def calculation(self) -> str:
        return f"{self.first} {self.sign} {self.second}"

    @property
    def value(self) -> int:
        return {
            "+": self.first + self.second,
            "-": self.first - self.second,
            "*": self.first * self.second,
        }[self.sign]


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem."""

    problem_id: str
    """Unique within (split, seed, wording)."""
    parts: tuple[Fact, ...]
    """What is added up, in the order of the question."""
    told: tuple[Fact, ...]
    wording: Wording = "near"

    @property
    def answer(self) -> int:
        return sum(fact.value for fact in self.parts)

    def is_ambiguous(self, part: Fact) -> bool:
        return sum(fact.owner == part.owner for fact in self.told) > 1


def canonical_key(problem: Problem) -> str:
    """What makes two problems the same across splits: what is added up (not the wording, nor what else is told)."""
    return ";".join(f"{fact.owner}|{fact.thing}|{fact.calculation}" for fact in problem.parts)


def generate(
    split: MicroSplit,
    count: int,
    seed: int,
    parts: tuple[int, ...] = PARTS,
    wording: Wording = "near",
    ambiguous: float = AMBIGUOUS,
) -> list[Problem]:
    """``count`` problems of one split. Equal arguments give equal problems, and a larger count extends a smaller one.

    Raises ``ValueError`` for a split that there is not.
    """
    check_split(split)
    rng = random.Random(f"problems/{split}/{seed}/{parts}/{wording}/{ambiguous}")
    found: list[Problem] = []
    seen: set[str] = set()
    while len(found) < count:
        name = f"{split}-{wording}-{seed}-{len(found)}"
        problem = _draw(name, rng.choice(parts), wording, ambiguous, rng)
        key = canonical_key(problem)
        if split_of_key(key) == split and key not in seen:
            seen.add(key)
            found.append(problem)
    return found


def facts(rng: random.Random) -> list[Fact]:
    owners = rng.sample(OWNERS, rng.randint(3, 6))
    return [_fact(owner, rng.choice(THINGS), rng) for owner in owners]


def _draw(name: str, count: int, wording: Wording, ambiguous: float, rng: random.Random) -> Problem:
    owners = rng.sample(OWNERS, count + rng.choice(OTHERS))
    told: list[Fact] = []
    for place, owner in enumerate(owners):
        more = MORE if place < count and rng.random() < ambiguous else 0
        told += [_fact(owner, thing, rng) for thing in rng.sample(THINGS, 1 + more)]
    firsts = [next(fact for fact in told if fact.owner == owner) for owner in owners[:count]]
    return Problem(name, tuple(firsts), tuple(rng.sample(told, len(told))), wording)


def _fact(owner: str, thing: str, rng: random.Random) -> Fact:
    return Fact(owner, thing, rng.choice(FIRSTS), rng.choice(SIGNS), rng.choice(SECONDS))
