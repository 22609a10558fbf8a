"""Tasks of the `exchange` micro-world: a question, its answer, and the facts that each agent holds.

Level 1 needs one fact, which either agent may hold. Level 2 needs two (`the pet of the friend of Nora`),
one from each agent. No person is the subject of two facts of a task, so a name is a key.

What is disjoint between the splits: the *canonical key* of a task, i.e. (question, answer, key facts in
hop order). A hash of it decides the split, so no task of one split asks a question whose answer and key
facts occur together in another. Single facts, words and distractors are shared between the splits.
"""

import random
from dataclasses import dataclass

from coterie.environments.exchange.lexicon import BY_NAME, ENDS, LINKS, PEOPLE, RELATIONS
from coterie.environments.micro_splits import MicroSplit, check_split, split_of_key

AGENTS: tuple[str, str] = ("Alice", "Bob")
"""The two agents; Alice always speaks first."""
MAX_TURNS = 8
"""A dialogue that has not agreed on an answer by now ends."""


@dataclass(frozen=True)
class Fact:
    """One thing that is known about one person."""

    subject: str
    relation: str
    value: str


@dataclass(frozen=True)
class ExchangeTask:
    """One question for two agents who hold different facts."""

    task_id: str
    """Unique within (split, seed): split, seed, level and index."""
    level: int
    """Number of facts that the answer needs: 1 or 2."""
    question: str
    answer: str
    """The one right answer, a single word. Not for the agents' eyes."""
    facts: dict[str, tuple[Fact, ...]]
    """The facts that each agent holds, by agent, in the order shown."""
    key: tuple[tuple[str, Fact], ...]
    """The facts that the answer needs, in hop order, each with the agent who holds it. Not for the agents' eyes."""


def canonical_key(task: ExchangeTask) -> str:
    """What makes two tasks the same across splits: question, answer and key facts (not their holders)."""
    hops = ";".join(f"{fact.subject}|{fact.relation}|{fact.value}" for _, fact in task.key)
    return f"{task.question}|{task.answer}|{hops}"


def split_of(task: ExchangeTask) -> MicroSplit:
    """The one split that may contain this task, by the hash of its canonical key."""
    return split_of_key(canonical_key(task))


def generate_tasks(
    split: MicroSplit,
    count: int,
    seed: int,
    levels: tuple[int, ...] = (1, 2),
    facts_per_agent: tuple[int, int] = (3, 4),
) -> list[ExchangeTask]:
    """`count` tasks of one split; the levels take turns.

    `facts_per_agent` is the least and the greatest number of facts that an agent holds. Equal arguments
    give equal tasks, and a larger count extends a smaller one.
    """
    check_split(split)
    if not set(levels) <= {1, 2}:
        raise ValueError(f"unknown levels {levels!r}: the exchange micro-world has levels 1 and 2")
    rng = random.Random(f"exchange/{split}/{seed}/{levels}/{facts_per_agent}")
    tasks: list[ExchangeTask] = []
    while len(tasks) < count:
        level = levels[len(tasks) % len(levels)]
        task = _draw(f"{split}-{seed}-L{level}-{len(tasks)}", level, facts_per_agent, rng)
        if split_of(task) == split:
            tasks.append(task)
    return tasks


def _draw(
    task_id: str, level: int, facts_per_agent: tuple[int, int], rng: random.Random
) -> ExchangeTask:
    people = rng.sample(PEOPLE, len(PEOPLE))
    holders = rng.sample(AGENTS, 2)
    key = _key_facts(level, people, rng)
    question = BY_NAME[key[0].relation].question.format(s=key[0].subject)
    if level == 2:
        subject = f"the {key[0].relation} of {key[0].subject}"
        question = BY_NAME[key[1].relation].question.format(s=subject)
    held: dict[str, list[Fact]] = {agent: [] for agent in AGENTS}
    for agent, fact in zip(holders, key, strict=False):
        held[agent].append(fact)
    used = {fact.value for fact in key}
    for agent in AGENTS:
        wanted = max(rng.randint(*facts_per_agent), len(held[agent]))
        while len(held[agent]) < wanted:
            held[agent].append(_distractor(key[-1].relation, people, used, rng))
        rng.shuffle(held[agent])
    facts = {agent: tuple(held[agent]) for agent in AGENTS}
    return ExchangeTask(
        task_id, level, question, key[-1].value, facts, tuple(zip(holders, key, strict=False))
    )


def _key_facts(level: int, people: list[str], rng: random.Random) -> list[Fact]:
    subject = people.pop()
    if level == 1:
        relation = rng.choice(RELATIONS)
        value = people.pop() if relation.links_people else rng.choice(relation.values)
        return [Fact(subject, relation.name, value)]
    bridge = people.pop()
    end = rng.choice(ENDS)
    return [
        Fact(subject, rng.choice(LINKS), bridge),
        Fact(bridge, end, rng.choice(BY_NAME[end].values)),
    ]


def _distractor(asked: str, people: list[str], used: set[str], rng: random.Random) -> Fact:
    """A fact about somebody else, of the asked relation half of the time; its value is new to the task."""
    relation = BY_NAME[asked] if rng.random() < 0.5 else rng.choice(RELATIONS)
    subject = people.pop()
    if relation.links_people:
        return Fact(subject, relation.name, people.pop())
    value = rng.choice([v for v in relation.values if v not in used])
    used.add(value)
    return Fact(subject, relation.name, value)
