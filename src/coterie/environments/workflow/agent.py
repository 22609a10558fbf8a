"""One agent that is asked something, thinks, plans, calls tools and answers, in the tags of GAP's trajectories.

What is the same for all of them: who acts, what the agent is shown, how it ends, and how it is given tools. What is
asked, how an answer is read and what it is worth subclasses say (``environment``: questions; ``code``: programs;
``code_maths``: mathematics).
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
from coterie.tools.native import NativeCalls
from coterie.tools.source import ToolSource
from coterie.tools.tags import Tags
from coterie.tools.toolbox import ToolsSettings
from coterie.trajectories.task import Task
from coterie.trajectories.tree import LENGTH, Ending
from coterie.trajectories.turn import Message, Part, Turn

AGENT = "agent"
NO_ANSWER = Ending("no answer")
ANSWER = "answer"


class AgentSettings(EnvironmentSettings):
    """How an agent is asked, and its answers are read."""

    lenient: bool = key(
        False,
        "Take an answer outside of its tag too, for models that were not trained on the form.",
    )
    prompt: Literal["full", "short", "closed"] = key(
        "full",
        "How much the prompt says: all of the form and of the tools; for a model that is trained on the form, one "
        "line (`short`); or, for an agent without tools, that it is to answer from memory (`closed`, with tools=[]).",
    )


class WorkflowAgent(Pure, ABC):
    """One agent, a task, tools."""

    kind: AgentKind
    """By which rules the order of its tags is judged."""
    graphs = True
    name: str
    metric: str
    settings: AgentSettings
    actors: Mapping[str, ActorKind] = MappingProxyType({AGENT: "agent"})
    limits: Mapping[str, int] = MappingProxyType({"turns": 1})
    """Of answers; messages that call come besides."""

    rows: Rows

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """Tasks of one split of the data set, as many as it has at most."""
        return [self.task_of(row) for row in draw(self.rows, split, count, seed, drawn)]

    @abstractmethod
    def task_of(self, row: QuestionRow) -> Task:
        """The record's form of a row."""

    @abstractmethod
    def instructions(self) -> str:
        """The system prompt, to which the tools are added where it is not terse."""

    @abstractmethod
    def read(self, text: str) -> str | None:
        """The answer that a message gives; ``None`` if it gives none."""

    @abstractmethod
    async def grade(self, state: State, live: Any) -> Grade: ...

    def asked(self, task: Task) -> str:
        return f"Question: {task.public['question']}"

    @property
    def terse(self) -> bool:
        """Whether the prompt leaves out what is said of the form and of the tools."""
        return self.settings.prompt != "full"

    def acting(self, state: State) -> tuple[str, ...]:
        return (AGENT,)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        return (
            Message("system", (Part(self.instructions(), source="task"),)),
            Message("user", (Part(self.asked(state.task), source="task"),)),
            *(Message("assistant", turn=turn.id) for turn in state.turns),
        )

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """Over: with an answer, without one, or in the middle of a sentence."""
        said = taken[-1]
        answer = self.read(said.text)
        if answer is None:
            return Transition(end=LENGTH if said.truncated else NO_ANSWER)
        return Transition(answer=answer, end=ANSWERED)

    def answer_to(self, task: Task, text: str) -> str | None:
        """The answer that a message gives, for votes and baselines."""
        return self.read(text)

    def given(
        self, sources: Sequence[ToolSource], settings: ToolsSettings, syntax: Tags | NativeCalls
    ) -> Environment:
        """This environment with tools, and with graphs that are carried out.

        Raises ``UserError`` where the prompt is for an agent without tools.
        """
        if self.settings.prompt == "closed":
            raise UserError(
                f"environment.prompt=closed asks for answers from memory, and there are tools: {list(settings.use)}",
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
