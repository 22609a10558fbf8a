"""Tasks of the ``exchange`` micro-world: a question, its answer, and the facts of each agent.

Answers of level 1 need one fact of either agent. Answers of level 2 need one fact of each agent (``the pet of the
friend of Nora``). No person is the subject of two facts of a task, so names are unique keys.

A hash of a task's canonical key (question, answer, and key facts in hop order) decides its split, so no key is in two
splits. The splits share single facts, words and distractors.
"""

import random
from dataclasses import dataclass

from coterie.environments.exchange.lexicon import BY_NAME, ENDS, LINKS, PEOPLE, RELATIONS
from coterie.environments.micro_splits import MicroSplit, check_split, split_of_key

AGENTS: tuple[str, str] = ("Alice", "Bob")
"""The agents in speaking order."""
MAX_TURNS = 8
"""Maximum turns of a dialogue without agreement."""


@dataclass(frozen=True)
class Fact:
    """A fact about a person."""

    subject: str
    relation: str
    value: str


@dataclass(frozen=True)
class ExchangeTask:
    """A question for two agents with different facts."""

    task_id: str
    """Unique within (split, seed): split, seed, level and index."""
    level: int
    """Number of facts that the answer needs: 1 or 2."""
    question: str
    answer: str
    """The right answer, a single word. Hidden from the agents."""
    facts: dict[str, tuple[Fact, ...]]
    """Facts by agent, in the order of the prompt."""
    key: tuple[tuple[str, Fact], ...]
    """Facts that the answer needs, in hop order, each with its agent. Hidden from the agents."""


def canonical_key(task: ExchangeTask) -> str:
    """Return the identity of a task across splits: question, answer and key facts, but not the facts' agents."""
    hops = ";".join(f"{fact.subject}|{fact.relation}|{fact.value}" for _, fact in task.key)
    return f"{task.question}|{task.answer}|{hops}"


def split_of(task: ExchangeTask) -> MicroSplit:
    """Return the split that may contain this task, by the hash of its canonical key."""
    return split_of_key(canonical_key(task))


def generate_tasks(
    split: MicroSplit,
    count: int,
    seed: int,
    levels: tuple[int, ...] = (1, 2),
    facts_per_agent: tuple[int, int] = (3, 4),
) -> list[ExchangeTask]:
    """Return ``count`` tasks of a split, with alternating levels.

    ``facts_per_agent`` is the minimum and maximum number of facts of an agent. The result is deterministic, and a
    larger count extends a smaller one.
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
    facts_of: dict[str, list[Fact]] = {agent: [] for agent in AGENTS}
    for agent, fact in zip(holders, key, strict=False):
        facts_of[agent].append(fact)
    used = {fact.value for fact in key}
    for agent in AGENTS:
        size = max(rng.randint(*facts_per_agent), len(facts_of[agent]))
        while len(facts_of[agent]) < size:
            facts_of[agent].append(_distractor(key[-1].relation, people, used, rng))
        rng.shuffle(facts_of[agent])
    facts = {agent: tuple(facts_of[agent]) for agent in AGENTS}
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


def _distractor(relation_name: str, people: list[str], used: set[str], rng: random.Random) -> Fact:
    """Return a fact about another person with a new value, half of the time of the question's relation."""
    relation = BY_NAME[relation_name] if rng.random() < 0.5 else rng.choice(RELATIONS)
    subject = people.pop()
    if relation.links_people:
        return Fact(subject, relation.name, people.pop())
    value = rng.choice([v for v in relation.values if v not in used])
    used.add(value)
    return Fact(subject, relation.name, value)
