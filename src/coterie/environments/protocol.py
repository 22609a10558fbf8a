"""What an environment is: tasks, who acts, what each actor sees, what an act does, and what a path is worth.

An environment knows no tokens, no chat templates, no samplers and no loop. ``rollout`` plays it: it asks the actors,
makes turns of what is said, counts limits, keeps sessions and branches. The state is a frozen value, so a branch of a
pure environment copies nothing; what can't be a value (a game, a Python session, a browser) is a :class:`Session`.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from coterie.datasets.catalogue import Split
from coterie.trajectories.calls import Tool, ToolCall, ToolResult
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Ending
from coterie.trajectories.turn import Finish, Message, Part, Speaker, Turn

ActorKind = Literal["agent", "person"]
"""An ``agent`` is played by a policy; a ``person`` by anybody else: a user simulator, a script, an opponent."""
R = TypeVar("R")
WELL_FORMED = "well_formed"
"""The metric of a grade that says whether an answer was found in the form that was asked for, 0 or 1."""
VIOLATIONS = "violations"
"""The one that counts where a path breaks the form that its prompt asks for, beside the answer's."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment says after an act; it becomes one turn."""

    speaker: Speaker
    parts: tuple[Part, ...] = ()
    """Each with the actors that may see it."""
    results: tuple[ToolResult, ...] = ()
    """One for every call of one turn. Where several actors call at the same time, each has its own observation.
    Without parts they are shown as the environment's syntax shows them."""


@dataclass(frozen=True, slots=True)
class State:
    """Where a path stands: a value that is never changed."""

    task: Task
    seed: int
    """The environment's: the same for all samples and branches of a task."""
    variant: str | None = None
    """What the prompts of this episode ask for besides, such as a format (see ``traits.Formats``)."""
    turns: tuple[Turn, ...] = ()
    """The path: what actors and the environment said, oldest first."""
    data: object = None
    """The environment's own, frozen: a value that can be hashed, such as a tuple or a frozen dataclass."""
    answer: str | None = None
    left: Mapping[str, int] = field(default_factory=dict)
    """What is left of each limit (see ``Environment.limits``)."""
    end: Ending | None = None
    """How it ended; ``None`` while it goes on."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What an act, or the beginning, did."""

    data: object = None
    """The state's new data."""
    seen: tuple[Observation, ...] = ()
    answer: str | None = None
    """The state's new answer; ``None`` leaves it as it is."""
    end: Ending | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    """By actor, of the turns just taken; nobody else has one."""


@dataclass(frozen=True, slots=True)
class Grade:
    """What a path that has ended is worth."""

    score: float | None
    """The benchmark's metric; ``None`` if the path could not be graded, which is never the same as 0."""
    metrics: Mapping[str, float | int | str] = field(default_factory=dict)
    """What else was found, such as which tests passed and why the others failed."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """By actor, where they differ."""


class Session(Protocol):
    """One branch's live thing, never shared by two."""

    def fork(self) -> "AbstractAsyncContextManager[Session] | None":
        """Another session in the same state, entered before this one goes on; ``None`` if that can't be had:
        then the branch is replayed.
        """
        ...


class Shared:
    """What a run keeps open for all branches: a sandbox, tool servers, a judge. Found by its class."""

    def __init__(self, *resources: object) -> None:
        self._resources = {type(resource): resource for resource in resources}
        if len(self._resources) < len(resources):
            raise ValueError(f"two resources of one class: {[type(one) for one in resources]}")

    def __contains__(self, kind: type) -> bool:
        return kind in self._resources

    def __getitem__(self, kind: type[R]) -> R:
        found = self._resources[kind]
        assert isinstance(found, kind)
        return found


class Syntax(Protocol):
    """How calls are written, and results shown, in text."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings: what ends a message that calls."""
        ...

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        """The calls of a message; ``text`` is all that was sampled, its stop string included."""
        ...

    def show(self, results: Sequence[ToolResult]) -> str:
        """Results as text, in the order of the calls; empty where the chat template shows them."""
        ...


class Environment(Protocol):
    """An environment. Base classes in ``environments`` give most of it."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Part of the fingerprint of every stage that plays it."""
        ...

    @property
    def actors(self) -> Mapping[str, ActorKind]:
        """In the order in which turns taken at the same time are recorded."""
        ...

    @property
    def limits(self) -> Mapping[str, int]:
        """``turns`` of all actors, ``turns:NAME`` of one, ``calls``: a path that meets one has ended, truncated."""
        ...

    @property
    def needs(self) -> tuple[type, ...]:
        """Of :class:`Shared`; opened before the run."""
        ...

    @property
    def pure(self) -> bool:
        """Whether all state is in :class:`State`: no sessions, no replay."""
        ...

    @property
    def max_sessions(self) -> int:
        """Sessions that may be live at the same time; of no meaning where it is pure."""
        ...

    @property
    def syntax(self) -> Syntax | None:
        """How calls are written; ``None`` without tools."""
        ...

    @property
    def metric(self) -> str:
        """What a grade's score is, in the words of a report: ``F1``, ``exact match``."""
        ...

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """``count`` tasks; the splits share none.

        ``drawn`` are the counts of the draws before this one, of which these training tasks are the
        continuation: none comes again before all have come. A data set that has fewer gives what it has.
        """
        ...

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]:
        """A session for one branch of a task (not called where it is pure)."""
        ...

    async def begin(self, task: Task, live: Any) -> Transition:
        """The beginning. ``live`` is the branch's session, or :class:`Shared` where the environment is pure."""
        ...

    def acting(self, state: State) -> tuple[str, ...]:
        """Who acts now. Several act at the same time: none sees what the others do."""
        ...

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """Return the prompt of an actor; a dict of ``role`` and ``content`` is a message too."""
        ...

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]: ...

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """What follows the turns that were just taken, which are the last ones of ``state``.

        In a replay ``recorded`` is what the environment said then: what leaves no trace (a search) may be copied.
        """
        ...

    async def grade(self, state: State, live: Any) -> Grade:
        """Return what a path that has ended is worth: a score from 0 to 1.

        A class attribute ``score_range = (low, high)`` declares another range, which is scaled to 0 to 1.
        """
        ...
