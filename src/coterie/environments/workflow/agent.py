"""Base class for an agent that thinks, plans, calls tools and answers, in the tags of GAP's trajectories.

It defines the actor, the prompt, the ending and the tools. Subclasses define tasks, answers and grades
(``environment``: questions; ``code``: programs; ``code_maths``: mathematics).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.environments.protocol import ActorKind, Environment, Grade, State, Transition
from coterie.environments.pure import Pure
from coterie.environments.rows import draw
from coterie.environments.settings import EnvironmentSettings
from coterie.environments.talk import ANSWERED
from coterie.environments.with_tools import with_tools
from coterie.environments.workflow.segments import AgentKind
from coterie.environments.workflow.with_plans import PlanTags, WithPlans
from coterie.errors import UserError
from coterie.tools.calls import NativeCalls, ToolSource
from coterie.tools.registry import ToolsSettings
from coterie.tools.tags import Tags
from coterie.trajectories.task import Task
from coterie.trajectories.tree import LENGTH, Ending
from coterie.trajectories.turn import Message, Part, Turn

AGENT = "agent"
NO_ANSWER = Ending("no answer")
ANSWER = "answer"


class AgentSettings(EnvironmentSettings):
    """Settings of prompts and answers."""

    lenient: bool = key(
        False,
        "Accept answers outside their tag, for models without training on the format.",
    )
    prompt: Literal["full", "short", "closed"] = key(
        "full",
        "Content of the prompt: the format and the tools (`full`); one line, for a model that is trained on the format "
        "(`short`); or a request to answer from memory, for an agent without tools (`closed`, with tools=[]).",
    )


class WorkflowAgent(Pure, ABC):
    """Base class for an agent with tools."""

    kind: AgentKind
    """Kind of agent, which determines the rules for the order of tags."""
    graphs = True
    name: str
    metric: str
    settings: AgentSettings
    actors: Mapping[str, ActorKind] = MappingProxyType({AGENT: "agent"})
    limits: Mapping[str, int] = MappingProxyType({"turns": 1})
    """Limit of answers; messages with calls do not count."""

    rows: Rows

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        """Return tasks of a split, or fewer if the data set has fewer."""
        return [self.task_of(row) for row in draw(self.rows, split, count, seed, after)]

    @abstractmethod
    def task_of(self, row: QuestionRow) -> Task:
        """Return a row as a task."""

    @abstractmethod
    def instructions(self) -> str:
        """Return the system prompt; the tools are appended if it is not terse."""

    @abstractmethod
    def read(self, text: str) -> str | None:
        """Return the answer in a message, or ``None``."""

    @abstractmethod
    async def grade(self, state: State, live: Any) -> Grade: ...

    def request(self, task: Task) -> str:
        return f"Question: {task.public['question']}"

    @property
    def terse(self) -> bool:
        """True if the prompt omits the format and the tools."""
        return self.settings.prompt != "full"

    def acting(self, state: State) -> tuple[str, ...]:
        return (AGENT,)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        return (
            Message("system", (Part(self.instructions(), source="task"),)),
            Message("user", (Part(self.request(state.task), source="task"),)),
            *(Message("assistant", turn=turn.id) for turn in state.turns),
        )

    async def act(
        self, state: State, turns: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """End with an answer, without one, or with a truncated message."""
        turn = turns[-1]
        answer = self.read(turn.text)
        if answer is None:
            return Transition(end=LENGTH if turn.truncated else NO_ANSWER)
        return Transition(answer=answer, end=ANSWERED)

    def answer_to(self, task: Task, text: str) -> str | None:
        """Return the answer in a message, for votes and baselines."""
        return self.read(text)

    def with_tools(
        self, sources: Sequence[ToolSource], settings: ToolsSettings, syntax: Tags | NativeCalls
    ) -> Environment:
        """Return this environment with tools and execution of graphs.

        Raises:
            UserError: the prompt is for an agent without tools.
        """
        if self.settings.prompt == "closed":
            raise UserError(
                f"environment.prompt=closed requests answers from memory, but there are tools: {list(settings.use)}",
                "add tools=[], or use environment.prompt=short",
            )
        if isinstance(syntax, Tags):
            syntax = PlanTags(
                syntax.calls,
                ANSWER,
                syntax.observation,
                syntax.inline,
                terse=self.terse,
                graphs=self.graphs,
            )
        return with_tools(self, sources, settings, syntax, WithPlans)
