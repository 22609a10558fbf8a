"""The ``exchange`` environment: two agents, each with half of the facts. The recipe ``optima`` uses it."""

from collections.abc import Sequence
from typing import Any

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.answers import exact_match, marked_answer
from coterie.environments.exchange.prompts import FORMAT_POOL, system_prompt
from coterie.environments.exchange.tasks import (
    AGENTS,
    MAX_TURNS,
    ExchangeTask,
    Fact,
    generate_tasks,
)
from coterie.environments.gold import GRADER, gold_answer
from coterie.environments.protocol import State, Transition
from coterie.environments.settings import FormatSettings
from coterie.environments.talk import ANSWERED, Talk
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.tree import LENGTH
from coterie.trajectories.turn import Part, Turn

FORMATS: tuple[str, ...] = tuple(entry.instruction for entry in FORMAT_POOL)
EXAMPLE = "answer"
"""Example answer in the prompt."""
LEVELS = (1, 2, 2, 2)
"""Number of facts that answers need, in turn: one question in four needs one fact, the others one of each agent."""


class ExchangeSettings(FormatSettings):
    """Settings of the micro-world."""

    turns: int = key(MAX_TURNS, "Maximum turns of both agents together.", ge=1)


class Exchange(Talk):
    """Two agents exchange facts to answer a question."""

    name = "exchange"
    agents: tuple[str, ...] = AGENTS
    metric = "exact match"
    format_agents = agents

    settings_type = ExchangeSettings

    def __init__(
        self, settings: ExchangeSettings | None = None, levels: tuple[int, ...] = LEVELS
    ) -> None:
        settings = settings or ExchangeSettings()
        self.levels = levels
        self.formats = settings.pool(FORMATS)
        self.max_turns = settings.turns

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        """Return tasks of a split. The splits are disjoint (see ``tasks``)."""
        start = sum(after) if split == "train" else 0
        tasks = generate_tasks(split, start + count, seed, levels=self.levels)
        return [as_task(task) for task in tasks[start:]]

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the agent's instructions and facts (hidden from its partner), and the question."""
        return self._prompt_parts(task, agent, (agent,))

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self._prompt_parts(task, agent, self.agents)

    def _prompt_parts(self, task: Task, agent: str, holders: tuple[str, ...]) -> tuple[Part, ...]:
        all_facts: dict[str, list[list[str]]] = task.public["facts"]  # type: ignore[assignment]
        facts = [Fact(*fact) for holder in holders for fact in all_facts[holder]]
        partner = next(name for name in self.agents if name != agent)
        pieces = system_prompt(agent, partner, str(task.public["question"]), facts)
        return tuple(Part(text, audience=audience, source="task") for text, audience in pieces)

    def answer(self, text: str) -> str | None:
        return marked_answer(text)

    def same(self, first: str, second: str) -> bool:
        return first == second

    def score(self, task: Task, answer: str | None) -> float:
        return exact_match(answer, [gold_answer(task)])

    def well_formed(self, answer: str) -> bool:
        return answer != EXAMPLE

    def similarity(self, answer: str, other: str) -> float:
        return exact_match(answer, [other])


class ExchangeAlone(Exchange):
    """Dialogue of an agent with all facts and a partner without facts, whose answers do not count.

    It is the upper bound of the micro-world. The partner is needed because the packaged model knows only dialogues, in
    which the first speaker may ask for facts that it already has. The dialogue ends at the first agent's first answer.
    """

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the prompt with all facts for the first agent, and without facts for its partner."""
        return self._prompt_parts(task, agent, self.agents if agent == self.agents[0] else ())

    async def act(
        self, state: State, turns: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """End at the first answer of the agent with the facts."""
        turn = turns[-1]
        answer = self.answer(turn.text) if turn.speaker.name == self.agents[0] else None
        if turn.truncated:
            return Transition(answer=answer, end=LENGTH)
        return Transition(answer=answer, end=None if answer is None else ANSWERED)


def as_task(task: ExchangeTask) -> Task:

    public = {
        "question": task.question,
        "level": task.level,
        "facts": {
            agent: [[fact.subject, fact.relation, fact.value] for fact in facts]
            for agent, facts in task.facts.items()
        },
    }
    answer = Secret(task.answer, name="answer", readers=frozenset({GRADER}))
    return Task(task.task_id, public, {"answer": answer})
