"""Optional interfaces of environments, which recipes and baselines use. Rollouts need none of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from coterie.environments.protocol import Environment, State
from coterie.environments.user_simulator import UserSimulator
from coterie.errors import UserError
from coterie.tools.calls import NativeCalls, ToolSource
from coterie.tools.registry import ToolsSettings
from coterie.tools.tags import Tags
from coterie.trajectories.task import Task
from coterie.trajectories.turn import Message

Openers = Mapping[type, Callable[[], AbstractAsyncContextManager[Any]]]
"""Functions that open the resources of an environment, by class."""


@runtime_checkable
class Votes(Protocol):
    """Comparable answers, for voting."""

    def answer_to(self, task: Task, text: str) -> str | None:
        """Return the normalized answer in a message, or ``None``."""
        ...

    def same(self, first: str, second: str) -> bool:
        """Return True if two answers are equal. May take seconds and is called from any thread."""
        ...

    def similarity(self, answer: str, other: str) -> float:
        """Return the metric of one answer with the other as the reference, in [0, 1]."""
        ...


@runtime_checkable
class Graded(Protocol):
    """Score that depends only on the final answer."""

    def score(self, task: Task, answer: str | None) -> float:
        """Return the benchmark's metric for a final answer, in [0, 1]."""
        ...

    def well_formed(self, answer: str) -> bool:
        """Return True if an answer is not a copy of the example in the prompt."""
        ...


@runtime_checkable
class Formats(Protocol):
    """Variants of the environment whose prompts request a format."""

    @property
    def formats(self) -> tuple[str, ...]:
        """Pool of format prompts; may be empty."""
        ...


@runtime_checkable
class Scripted(Protocol):
    """A user that a script can simulate."""

    @property
    def script(self) -> UserSimulator | None:
        """Default user simulator; ``None`` without one."""
        ...


@runtime_checkable
class Opens(Protocol):
    """Resources that the environment opens itself, such as a model."""

    def openers(self, logs: Path) -> Openers:
        """Return the openers by class; servers write logs to ``logs``."""
        ...


@runtime_checkable
class Shortens(Protocol):
    """Shorter prompts for when a prompt exceeds the context of the model."""

    def shorter(self, state: State, actor: str) -> Iterable[tuple[Message, ...]]:
        """Return shorter and shorter prompts of an actor."""
        ...


@runtime_checkable
class TakesTools(Protocol):
    """An environment with its own handling of the tools of a run."""

    def with_tools(
        self, sources: Sequence[ToolSource], settings: ToolsSettings, syntax: Tags | NativeCalls
    ) -> Environment: ...


@runtime_checkable
class MayLackGrades(Protocol):
    """An environment whose data may lack labels. Without them it supports training, but not evaluation."""

    ungraded: UserError | None
    """The reason why no trajectory can be graded, or ``None``."""


def check_graded(environment: object) -> None:
    """Raise ``UserError`` if no trajectory of the environment can be graded."""
    if isinstance(environment, MayLackGrades) and environment.ungraded is not None:
        raise environment.ungraded


def openers_of(environment: object, logs: Path) -> Openers:
    return environment.openers(logs) if isinstance(environment, Opens) else {}


def agents_of(environment: Environment) -> tuple[str, ...]:
    """Return the actors that policies control, in order."""
    return tuple(name for name, kind in environment.actors.items() if kind == "agent")


def formats_of(environment: Environment) -> tuple[str, ...]:
    """Return the pool of format prompts; it may be empty."""
    return environment.formats if isinstance(environment, Formats) else ()


def most_turns(environment: Environment) -> int:
    """Return the maximum number of agent turns. Raise ``UserError`` if they are not limited."""
    limits = environment.limits
    if "turns" in limits:
        return limits["turns"]
    agents = agents_of(environment)
    unlimited = [name for name in agents if f"turns:{name}" not in limits]
    if unlimited:
        raise UserError(
            f"the environment {environment.name} does not limit the turns of {', '.join(unlimited)}",
            "add limits = {'turns': NUMBER}",
        )
    return sum(limits[f"turns:{name}"] for name in agents)


def persons_of(environment: Environment) -> tuple[str, ...]:
    """Return the actors that no policy controls."""
    return tuple(name for name, kind in environment.actors.items() if kind == "person")
