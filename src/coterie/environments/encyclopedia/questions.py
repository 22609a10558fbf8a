"""Questions about the entries of an encyclopedia: half compare several entities, half follow a chain of entities.

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
"""Numbers of entities in a comparison; each entry is equally likely."""
HOPS = (2, 2, 2, 3)
"""Numbers of facts in a chain; each entry is equally likely."""
PATHS = {hops: paths(hops) for hops in (1, *HOPS)}
MISSES = 10_000
"""Number of successive draws without a new question after which generation fails."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the facts that its answer depends on."""

    question_id: str
    """Unique within (split, seed)."""
    kind: QuestionKind
    facts: tuple[Fact, ...]
    """The compared facts in the order of the question, or the facts of a chain from its beginning."""
    greatest: bool = False
    """True for comparisons that ask for the greatest value, not the least."""

    @property
    def answer(self) -> str:
        """Gold answer: the least or greatest value of a comparison, or the last value of a chain."""
        if self.kind == "chain":
            return self.facts[-1].value
        choose = max if self.greatest else min
        return choose(self.facts, key=rank).value

    @property
    def conclusion(self) -> str:
        """Sentence with the values of a comparison and the answer; "" for a chain."""
        if self.kind == "chain":
            return ""
        return f"{comparing(self.facts, greatest=self.greatest)}{self.answer}."

    @property
    def text(self) -> str:
        if self.kind == "compare":
            compared = ", ".join(fact.subject for fact in self.facts)
            return BY_NAME[self.facts[0].relation].extremes[self.greatest].format(s=compared)
        *links, last_fact = self.facts
        subject = self.facts[0].subject
        for fact in links:
            subject = BY_NAME[fact.relation].phrase.format(s=subject)
        return BY_NAME[last_fact.relation].question.format(s=subject)


def comparing(facts: Iterable[Fact], *, greatest: bool) -> str:
    """Return the text before the answer in the conclusion of a comparison."""
    values = ", ".join(f"{fact.value} ({fact.subject})" for fact in facts)
    return f"Of {values} the {'greatest' if greatest else 'least'} is "


def canonical_key(question: Question) -> str:
    """Return the identity of a question: its kind and its facts, in any order for a comparison."""
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
    """Return ``count`` questions of a split, with alternating kinds.

    The result is deterministic, and a larger count extends a smaller one.

    Raises:
        ValueError: the split is unknown, or the encyclopedia has too few questions.
    """
    check_split(split)
    rng = random.Random(f"encyclopedia/questions/{split}/{seed}/{kinds}/{compared}/{hops}")
    questions: list[Question] = []
    seen: set[str] = set()
    misses = 0
    while len(questions) < count:
        name, kind = f"{split}-{seed}-{len(questions)}", kinds[len(questions) % len(kinds)]
        if kind == "compare":
            question = _comparison(name, rng.choice(compared), split, encyclopedia, rng)
        else:
            question = _chain(name, rng.choice(hops), split, encyclopedia, rng)
        key = canonical_key(question)
        if key in seen or not _fair(question):
            misses += 1
            if misses == MISSES:
                raise ValueError(
                    f"this encyclopedia has only {len(questions)} of {count} questions"
                )
            continue
        misses = 0
        seen.add(key)
        questions.append(question)
    return questions


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
    """Return True if compared values differ, or a chain visits no entity twice."""
    values = [fact.value for fact in question.facts]
    if question.kind == "chain":
        values.append(question.facts[0].subject)
    return len(set(values)) == len(values)


def rank(fact: Fact) -> int:
    """Return the index of a value among comparable values."""
    return VALUES[BY_NAME[fact.relation].to].index(fact.value)
