"""Questions over the entries of an encyclopedia: half of them compare several entities, half go from one to another.

    When was the first of Ada Vell, Olga Quist, Rolf Birk born?    three entries, in any order
    Where does the mayor of Upper Tarn live?                       the town's entry, then its mayor's

All entries that a question needs belong to its split (``entries``).
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from coterie.environments.encyclopedia.entries import Encyclopedia, Fact
from coterie.environments.encyclopedia.lexicon import BY_NAME, COMPARED, VALUES, paths
from coterie.environments.micro_splits import MicroSplit, check_split

QuestionKind = Literal["compare", "chain"]
COMPARED_ENTITIES = (2, 3, 4)
"""How many entities are compared, each entry equally often drawn."""
HOPS = (2, 2, 2, 3)
"""How many facts a chain has, each entry equally often drawn."""
PATHS = {hops: paths(hops) for hops in (1, *HOPS)}
MISSES = 10_000
"""Draws in a row without a new question, after which there are no more."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and what its answer depends on."""

    question_id: str
    """Unique within (split, seed)."""
    kind: QuestionKind
    facts: tuple[Fact, ...]
    """Of a comparison: those compared, in the order of the question. Of a chain: from its beginning on."""
    greatest: bool = False
    """Of a comparison: whether the greatest value is asked for, not the least."""

    @property
    def answer(self) -> str:
        """The gold answer: of a comparison the least value or the greatest, of a chain the last."""
        if self.kind == "chain":
            return self.facts[-1].value
        choose = max if self.greatest else min
        return choose(self.facts, key=rank).value

    @property
    def conclusion(self) -> str:
        """Of a comparison: its values beside each other, and which it is, in words; of a chain nothing."""
        if self.kind == "chain":
            return ""
        return f"{comparing(self.facts, greatest=self.greatest)}{self.answer}."

    @property
    def text(self) -> str:
        if self.kind == "compare":
            compared = ", ".join(fact.subject for fact in self.facts)
            return BY_NAME[self.facts[0].relation].extremes[self.greatest].format(s=compared)
        *links, last_fact = self.facts
        asked = self.facts[0].subject
        for fact in links:
            asked = BY_NAME[fact.relation].phrase.format(s=asked)
        return BY_NAME[last_fact.relation].asked.format(s=asked)


def comparing(facts: Iterable[Fact], *, greatest: bool) -> str:
    """The words before the value that a comparison asks for."""
    values = ", ".join(f"{fact.value} ({fact.subject})" for fact in facts)
    return f"Of {values} the {'greatest' if greatest else 'least'} is "


def canonical_key(question: Question) -> str:
    """What makes two questions the same: the facts, in any order where they are compared, and what is asked of them."""
    facts = [f"{fact.subject}|{fact.relation}|{fact.value}" for fact in question.facts]
    if question.kind == "compare":
        facts.sort()
    return ";".join((question.kind, str(question.greatest), *facts))


def generate(
    split: MicroSplit,
    count: int,
    seed: int,
    encyclopedia: Encyclopedia,
    kinds: tuple[QuestionKind, ...] = ("compare", "chain"),
    compared: tuple[int, ...] = COMPARED_ENTITIES,
    hops: tuple[int, ...] = HOPS,
) -> list[Question]:
    """``count`` questions of one split, whose kinds take turns.

    Equal arguments give equal questions, and a larger count extends a smaller one. Raises ``ValueError`` for a split
    that there is not, and if the encyclopedia has no more questions.
    """
    check_split(split)
    rng = random.Random(f"encyclopedia/questions/{split}/{seed}/{kinds}/{compared}/{hops}")
    found: list[Question] = []
    seen: set[str] = set()
    missed = 0
    while len(found) < count:
        name, kind = f"{split}-{seed}-{len(found)}", kinds[len(found) % len(kinds)]
        if kind == "compare":
            question = _comparison(name, rng.choice(compared), split, encyclopedia, rng)
        else:
            question = _chain(name, rng.choice(hops), split, encyclopedia, rng)
        key = canonical_key(question)
        if key in seen or not _fair(question):
            missed += 1
            if missed == MISSES:
                raise ValueError(
                    f"this encyclopedia has no more than {len(found)} of {count} questions"
                )
            continue
        missed = 0
        seen.add(key)
        found.append(question)
    return found


def _comparison(
    name: str, count: int, split: MicroSplit, encyclopedia: Encyclopedia, rng: random.Random
) -> Question:
    relation = rng.choice(COMPARED)
    subjects = rng.sample(encyclopedia.names[split, relation.of], count)
    facts = tuple(encyclopedia.fact(one, relation.name) for one in subjects)
    return Question(name, "compare", facts, greatest=rng.random() < 0.5)


def _chain(
    name: str, hops: int, split: MicroSplit, encyclopedia: Encyclopedia, rng: random.Random
) -> Question:
    path = rng.choice(PATHS[hops])
    subject, facts = rng.choice(encyclopedia.names[split, path[0].of]), []
    for relation in path:
        facts.append(encyclopedia.fact(subject, relation.name))
        subject = facts[-1].value
    return Question(name, "chain", tuple(facts))


def _fair(question: Question) -> bool:
    """Whether the values that are compared differ, and a chain does not come back to where it was."""
    values = [fact.value for fact in question.facts]
    passed = values if question.kind == "compare" else [question.facts[0].subject, *values]
    return len(set(passed)) == len(passed)


def rank(fact: Fact) -> int:
    """The place of a value among those that it can be compared with."""
    return VALUES[BY_NAME[fact.relation].to].index(fact.value)
