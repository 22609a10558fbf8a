"""What an environment may have besides the protocol. Recipes and baselines ask for it; nobody who plays it does."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from coterie.environments.protocol import Environment, State
from coterie.environments.user_simulator import UserSimulator
from coterie.errors import UserError
from coterie.tools.native import NativeCalls
from coterie.tools.source import ToolSource
from coterie.tools.tags import Tags
from coterie.tools.toolbox import ToolsSettings
from coterie.trajectories.task import Task
from coterie.trajectories.turn import Message, Part

Openers = Mapping[type, Callable[[], AbstractAsyncContextManager[Any]]]
"""How each thing is opened that an environment may need."""


@runtime_checkable
class Votes(Protocol):
    """Answers that can be compared, and so be voted on."""

    def answer_to(self, task: Task, text: str) -> str | None:
        """The answer that an utterance gives, in one spelling; ``None`` if it gives none."""
        ...

    def same(self, first: str, second: str) -> bool:
        """Whether two answers are the same one. May take seconds and is called from any thread."""
        ...

    def similarity(self, answer: str, other: str) -> float:
        """How much two answers are the same, in [0, 1]: the metric of one if the other were right."""
        ...


@runtime_checkable
class Graded(Protocol):
    """A final answer alone tells what a path is worth."""

    def score(self, task: Task, answer: str | None) -> float:
        """The benchmark's metric for a final answer, in [0, 1]."""
        ...

    def well_formed(self, answer: str) -> bool:
        """Whether an answer that was found is more than a copy of what the prompt shows as an example."""
        ...


@runtime_checkable
class Solo(Protocol):
    """The tasks can be given to one agent alone."""

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """What an agent is told who holds all that the agents hold, and works alone."""
        ...


@runtime_checkable
class Formats(Protocol):
    """Prompts that ask for a format: the variants of this environment."""

    @property
    def formats(self) -> tuple[str, ...]:
        """The pool of format prompts; may be empty."""
        ...


@runtime_checkable
class Scripted(Protocol):
    """A person whom a script can play."""

    @property
    def script(self) -> UserSimulator | None:
        """Who plays the person if nobody else is named; ``None`` if there is no such script."""
        ...


@runtime_checkable
class Opens(Protocol):
    """Opens by itself some of what it needs, such as a model of its own."""

    def openers(self, logs: Path) -> Openers:
        """How they are opened; ``logs`` is where servers leave theirs."""
        ...


@runtime_checkable
class Shortens(Protocol):
    """Knows what an actor can do without when a prompt outgrows its model's context."""

    def shorter(self, state: State, actor: str) -> Iterable[tuple[Message, ...]]:
        """What an actor is shown instead, ever shorter."""
        ...


@runtime_checkable
class TakesTools(Protocol):
    """Has its own way with tools that a run gives to its agents."""

    def given(
        self, sources: Sequence[ToolSource], settings: ToolsSettings, syntax: Tags | NativeCalls
    ) -> Environment: ...


@runtime_checkable
class MayLackGrades(Protocol):
    """Its data may not tell what is right. It can be trained in then, and not be evaluated."""

    ungraded: UserError | None
    """Why no path can be graded; ``None`` where they can be."""


def check_graded(environment: object) -> None:
    """Refuse, with ``UserError``, to evaluate where no path can be graded."""
    if isinstance(environment, MayLackGrades) and environment.ungraded is not None:
        raise environment.ungraded


def openers_of(environment: object, logs: Path) -> Openers:
    return environment.openers(logs) if isinstance(environment, Opens) else {}


def agents_of(environment: Environment) -> tuple[str, ...]:
    """The actors that a policy plays, in their order."""
    return tuple(name for name, kind in environment.actors.items() if kind == "agent")


def formats_of(environment: Environment) -> tuple[str, ...]:
    """The pool of format prompts; empty where there are none."""
    return environment.formats if isinstance(environment, Formats) else ()


def most_turns(environment: Environment) -> int:
    """How many turns the agents have at most. Raises ``UserError`` where they may go on without end."""
    limits = environment.limits
    if "turns" in limits:
        return limits["turns"]
    agents = agents_of(environment)
    unlimited = [name for name in agents if f"turns:{name}" not in limits]
    if unlimited:
        raise UserError(
            f"the environment {environment.name} has no limit of turns of {', '.join(unlimited)}",
            "give it limits = {'turns': NUMBER}",
        )
    return sum(limits[f"turns:{name}"] for name in agents)


def persons_of(environment: Environment) -> tuple[str, ...]:
    """The actors that anybody else plays."""
    return tuple(name for name, kind in environment.actors.items() if kind == "person")
