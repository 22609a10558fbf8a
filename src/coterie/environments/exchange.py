"""The ``exchange`` micro-world: two agents hold different facts and must talk to answer a question.

Answers of level 1 need one fact of either agent, of level 2 one fact of each (``the pet of the friend of Nora``). Each
word with a leading space is a single token of the tiny tokenizer. Question, answer and key facts decide the split.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.dialogue import Dialogue, FormatSettings
from coterie.environments.protocol import State, Transition
from coterie.environments.qa_metrics import TEACHER, exact_match, gold_answer, grader_secret
from coterie.environments.settings import (
    MicroSplit,
    series,
    split_of_key,
    split_random,
    split_words,
)
from coterie.record.tree import ANSWERED, LENGTH, Task
from coterie.record.turn import Part, Turn

PEOPLE: tuple[str, ...] = split_words(
    "Nora Omar Kim Liam Mia Noah Zoe Ivan Lena Hugo Rosa Theo Vera Yuri Anya Boris Clara Diego Elsa Felix "
    "Gina Hana Igor Jane Karl Lucy Marco Nina Otto Paula Rita Sven Tara Umar Viola Wendy Xena Yara Zane "
    "Amir Bella Cyrus Dora Emil Fiona Greta Henry Iris Jonas Kira"
)
_VALUES = {
    "home": "Paris Rome Oslo Cairo Lima Tokyo Delhi Quito Dublin Prague Berlin Madrid",
    "job": "baker pilot nurse lawyer farmer teacher painter doctor sailor judge miner tailor",
    "pet": "cat dog parrot rabbit turtle hamster pony goat lizard duck goose ferret",
    "meal": "pizza soup rice pasta salad curry stew bread cheese fish beans noodles",
    "sport": "tennis golf chess rugby boxing hockey cricket judo polo rowing skiing darts",
    "car": "red blue green white black yellow pink grey brown orange purple silver",
}


@dataclass(frozen=True)
class Relation:
    """A relation between a person ``{s}`` and a value ``{v}``, with its phrases."""

    name: str
    question: str
    sentence: str

    @cached_property
    def values(self) -> tuple[str, ...]:
        return split_words(_VALUES[self.name]) if self.name in _VALUES else PEOPLE

    @property
    def links_people(self) -> bool:
        """True if the value is a person, so that a second hop can start there."""
        return self.name not in _VALUES


RELATIONS: tuple[Relation, ...] = (
    Relation("home", "Where does {s} live?", "{s} lives in {v}"),
    Relation("job", "What is the job of {s}?", "{s} works as a {v}"),
    Relation("pet", "What pet does {s} have?", "{s} has a {v}"),
    Relation("meal", "What does {s} like to eat?", "{s} likes to eat {v}"),
    Relation("sport", "What does {s} play?", "{s} plays {v}"),
    Relation("car", "What colour is the car of {s}?", "the car of {s} is {v}"),
    Relation("friend", "Who is the friend of {s}?", "the friend of {s} is {v}"),
    Relation("boss", "Who is the boss of {s}?", "the boss of {s} is {v}"),
    Relation("cousin", "Who is the cousin of {s}?", "the cousin of {s} is {v}"),
)

BY_NAME: dict[str, Relation] = {relation.name: relation for relation in RELATIONS}
LINKS: tuple[str, ...] = tuple(r.name for r in RELATIONS if r.links_people)
"""Relations whose value is a person: the first hop of a two-hop question."""
ENDS: tuple[str, ...] = tuple(r.name for r in RELATIONS if not r.links_people)


AGENTS: tuple[str, str] = ("Alice", "Bob")
MAX_TURNS = 8


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
    level: int
    question: str
    answer: str
    """The right answer, a single word. Hidden from the agents."""
    facts: dict[str, tuple[Fact, ...]]
    key: tuple[tuple[str, Fact], ...]
    """Facts that the answer needs, in hop order, each with its agent. Hidden from the agents."""


def canonical_key(task: ExchangeTask) -> str:
    """Return the identity of a task across splits: question, answer and key facts, but not the facts' agents."""
    hops = ";".join(f"{fact.subject}|{fact.relation}|{fact.value}" for _, fact in task.key)
    return f"{task.question}|{task.answer}|{hops}"


@series
def generate_tasks(
    split: MicroSplit,
    seed: int,
    levels: tuple[int, ...] = (1, 2),
    facts_per_agent: tuple[int, int] = (3, 4),
) -> Iterator[ExchangeTask]:
    """Yield the tasks of a split, with alternating levels.

    ``facts_per_agent`` is the minimum and maximum number of facts of an agent.
    """
    rng, number = split_random(split, f"exchange/{split}/{seed}/{levels}/{facts_per_agent}"), 0
    while True:
        level = levels[number % len(levels)]
        task = _draw(f"{split}-{seed}-L{level}-{number}", level, facts_per_agent, rng)
        # A task of another split is drawn again under the same number.
        if split_of_key(canonical_key(task)) == split:
            number += 1
            yield task


def _draw(
    task_id: str, level: int, facts_per_agent: tuple[int, int], rng: random.Random
) -> ExchangeTask:
    # People are taken from one shuffled list, so facts never share a person by chance.
    people = rng.sample(PEOPLE, len(PEOPLE))
    # Either agent may hold the first fact that the answer needs.
    holders = rng.sample(AGENTS, 2)
    key = _key_facts(level, people, rng)
    question = BY_NAME[key[0].relation].question.format(s=key[0].subject)
    if level == 2:
        subject = f"the {key[0].relation} of {key[0].subject}"
        question = BY_NAME[key[1].relation].question.format(s=subject)
    facts_of: dict[str, list[Fact]] = {agent: [] for agent in AGENTS}
    for agent, fact in zip(holders, key, strict=False):
        facts_of[agent].append(fact)
    # Other facts never repeat a value of the facts that the answer needs.
    used = {fact.value for fact in key}
    for agent in AGENTS:
        size = max(rng.randint(*facts_per_agent), len(facts_of[agent]))
        while len(facts_of[agent]) < size:
            facts_of[agent].append(_distractor(key[-1].relation, people, used, rng))
        # The position of the needed fact must not give it away.
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


FORMAT_POOL = {
    "arrow": "Write only facts with arrows: name relation > value.",
    "pairs": "Write only name . relation = value pairs.",
    "call": "Write like code: get ( name ) and got ( value ).",
    "table": "Write rows of a table, with | between cells.",
    "json": "Write each fact as a JSON object.",
    "list": "Write a list of all your facts, one to a line.",
    "qa": "Write questions and answers in short sentences.",
    "plain": "Write plain, friendly sentences.",
    "steps": "Think in numbered steps.",
    "dump": "Tell your partner all your facts in full sentences first.",
    "letter": "Write polite letters with a greeting and a signature.",
    "chatty": "Chat like old friends, with small talk.",
}
"""Formats of the first iteration by style, from the tersest to the most verbose."""


def system_prompt(
    agent: str, partner: str, question: str, facts: Iterable[Fact]
) -> tuple[Part, ...]:
    """Return the system prompt of an agent. A model reads the question with the facts in its context."""
    texts = [
        f"You are {agent}, talking to {partner}. Share facts, then both write <A>answer</A>.\n",
        "Your facts:\n",
        *(f"- {fact.subject} {fact.relation}: {fact.value}\n" for fact in facts),
    ]
    return (
        *(Part(text, audience=frozenset({agent}), source="task") for text in texts),
        Part(f"Question: {question}", audience=frozenset(AGENTS), source="task"),
    )


LEVELS = (1, 2, 2, 2)
"""Number of facts that answers need, in turn: one question in four needs one fact, the others one of each agent."""


class ExchangeSettings(FormatSettings):
    """Settings of the micro-world."""

    turns: int = key(MAX_TURNS, "Maximum turns of both agents together.", ge=1)


class Exchange(Dialogue):
    """Two agents exchange facts to answer a question."""

    name = "exchange"
    agents: tuple[str, ...] = AGENTS
    metric = "exact match"
    example = "answer"
    format_agents = agents

    settings_type = ExchangeSettings

    def __init__(
        self, settings: ExchangeSettings | None = None, levels: tuple[int, ...] = LEVELS
    ) -> None:
        settings = settings or ExchangeSettings()
        self.levels = levels
        self.formats = settings.pool(tuple(FORMAT_POOL.values()))
        self.max_turns = settings.turns

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        tasks = generate_tasks(split, seed, self.levels).draw(split, count, previous_counts)
        return [as_task(task) for _, task in tasks]

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self._prompt_parts(task, agent, (agent,))

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self._prompt_parts(task, agent, self.agents)

    def _prompt_parts(self, task: Task, agent: str, holders: tuple[str, ...]) -> tuple[Part, ...]:
        all_facts: dict[str, list[list[str]]] = task.public["facts"]  # type: ignore[assignment]
        facts = [Fact(*fact) for holder in holders for fact in all_facts[holder]]
        partner = next(name for name in self.agents if name != agent)
        return system_prompt(agent, partner, str(task.public["question"]), facts)

    def score(self, task: Task, answer: str | None) -> float:
        return exact_match(answer, [gold_answer(task)])

    def similarity(self, answer: str, other: str) -> float:
        return exact_match(answer, [other])


def as_task(task: ExchangeTask) -> Task:
    public = {
        "question": task.question,
        "level": task.level,
        "facts": {
            agent: [[fact.subject, fact.relation, fact.value] for fact in facts]
            for agent, facts in task.facts.items()
        },
    }
    return Task(task.task_id, public, grader_secret("answer", task.answer, TEACHER))


class ExchangeAlone(Exchange):
    """Dialogue of an agent with all facts and a partner without facts, whose answers do not count.

    It is the upper bound of the micro-world. The partner is needed because the packaged model knows only dialogues, in
    which the first speaker may ask for facts that it already has. The dialogue ends at the first agent's first answer.
    """

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self._prompt_parts(task, agent, self.agents if agent == self.agents[0] else ())

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        turn = turns[-1]
        answer = self.answer(turn.text) if turn.speaker.name == self.agents[0] else None
        if turn.truncated:
            return Transition(answer=answer, end=LENGTH)
        return Transition(answer=answer, end=None if answer is None else ANSWERED)
