"""The ``exchange`` micro-world as an environment: two agents, each with half of the facts.

The recipe ``optima`` runs on it; `tasks` makes the tasks and `prompts` the words.
"""

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
"""What the prompt shows between the marks."""
LEVELS = (1, 2, 2, 2)
"""How many facts the answers need, in turn: one question in four needs one, the others one of each."""


class ExchangeSettings(FormatSettings):
    """Settings of the micro-world, which is made for two agents."""

    turns: int = key(MAX_TURNS, "Most turns of both agents together.", ge=1)


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

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """Tasks of one split; train and held-out are disjoint by construction (see ``tasks``)."""
        start = sum(drawn) if split == "train" else 0
        made = generate_tasks(split, start + count, seed, levels=self.levels)
        return [as_task(task) for task in made[start:]]

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """The agent's instructions, its own facts (which its partner may not see), the question."""
        return self._told(task, agent, (agent,))

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return self._told(task, agent, self.agents)

    def _told(self, task: Task, agent: str, holders: tuple[str, ...]) -> tuple[Part, ...]:
        dealt: dict[str, list[list[str]]] = task.public["facts"]  # type: ignore[assignment]
        facts = [Fact(*fact) for holder in holders for fact in dealt[holder]]
        partner = next(name for name in self.agents if name != agent)
        pieces = system_prompt(agent, partner, str(task.public["question"]), facts)
        return tuple(Part(text, audience=audience, source="task") for text, audience in pieces)

    def answer(self, text: str) -> str | None:
        return marked_answer(text)

    def same(self, first: str, second: str) -> bool:
        return first == second

    def score(self, task: Task, answer: str | None) -> float:
        """Exact match with the gold answer, 0 or 1."""
        return exact_match(answer, [gold_answer(task)])

    def well_formed(self, answer: str) -> bool:
        return answer != EXAMPLE

    def similarity(self, answer: str, other: str) -> float:
        return exact_match(answer, [other])


class ExchangeAlone(Exchange):
    """One agent that holds all facts, beside a partner who holds none and whose answers don't count.

    The ceiling of the micro-world: the partner is there since the packaged model knows only dialogues of
    two, whose first speaker may ask for what it holds itself. Over with the holder's first answer.
    """

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """The micro-world's own prompt: with all facts, or with none."""
        return self._told(task, agent, self.agents if agent == self.agents[0] else ())

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """Ends with the first answer of the agent that holds the facts."""
        newest = taken[-1]
        mine = newest.speaker.name == self.agents[0]
        answer = self.answer(newest.text) if mine else None
        if newest.truncated:
            return Transition(answer=answer, end=LENGTH)
        return Transition(answer=answer, end=None if answer is None else ANSWERED)


def as_task(task: ExchangeTask) -> Task:
    """The record's form of a task: what is shown is public, the answer is a secret."""
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
