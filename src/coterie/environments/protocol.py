"""Interface of environments: tasks, actors, observations, transitions and grades; checks of an environment.

``rollout`` prompts the actors, records their messages as turns, counts limits, and manages sessions and branches. The
state is a frozen value. Anything that can't be a value (a game, a browser) is a :class:`Session`.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

from coterie.config.plugins import error_message, error_place
from coterie.datasets.catalogue import Split
from coterie.engines.protocol import EngineError
from coterie.errors import UserError
from coterie.record.tree import Ending, Task
from coterie.record.turn import (
    Finish,
    Message,
    Part,
    Role,
    Speaker,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
)

ActorKind = Literal["agent", "person"]
"""A policy controls an ``agent``. A user simulator, a script or an opponent controls a ``person``."""
R = TypeVar("R")
T = TypeVar("T")
WELL_FORMED = "well_formed"
"""Name of the grade metric for answers in the requested format, 0 or 1."""
SUCCESS_OF = "success/"
"""Beginning of the names of grade metrics of the success on one type of task. Reports add their unweighted mean."""
MESSAGES = "messages"
CUT_OFF = "cut_off"
"""Metric: number of messages cut off at a token limit; over many episodes, their share of all messages."""
VIOLATIONS = "violations"
"""Name of the grade metric that counts other breaches of the format that the prompt requests."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A message of the environment after an act. It becomes one turn."""

    speaker: Speaker
    parts: tuple[Part, ...] = ()
    """Parts of the message, each with the actors that may see it."""
    results: tuple[ToolResult, ...] = ()
    """One result for each call of a turn. If several actors call at the same time, each has its own observation.
    Without ``parts``, the environment's syntax renders them."""
    calls: tuple[ToolCall, ...] = ()
    """Calls in a message that no agent sampled, which a prompt shows as an assistant's."""


@dataclass(frozen=True, slots=True)
class State:
    """Immutable state of a trajectory."""

    task: Task
    seed: int
    """Seed of the environment, the same for all samples and branches of a task."""
    variant: str | None = None
    """Additional request in the prompts of this episode, such as a format."""
    turns: tuple[Turn, ...] = ()
    """Turns of the actors and the environment, oldest first."""
    data: object = None
    """Data of the environment: a hashable value, such as a tuple or a frozen dataclass."""
    answer: str | None = None
    left: Mapping[str, int] = field(default_factory=dict)
    """Remaining amount of each limit (see ``Environment.limits``)."""
    end: Ending | None = None
    prompt_tokens: int = 0
    """In an act: number of tokens of the last turn's prompt; 0 if its sampler counts none."""


@dataclass(frozen=True, slots=True)
class Transition:
    """Effect of an act, or of the beginning of an episode."""

    data: object = None
    seen: tuple[Observation, ...] = ()
    answer: str | None = None
    """New ``State.answer``; ``None`` keeps the current one."""
    end: Ending | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards by actor, only for actors of the turns just taken."""


@dataclass(frozen=True, slots=True)
class Grade:
    """Score and metrics of a finished trajectory."""

    score: float | None
    """Metric of the benchmark; ``None`` if the trajectory can't be graded, which differs from 0."""
    metrics: Mapping[str, float | int | str] = field(default_factory=dict)
    """Further results, such as which tests passed and why the others failed."""
    rewards: Mapping[str, float] = field(default_factory=dict)


class Session(Protocol):
    """Mutable resource of a single branch."""

    def fork(self) -> "AbstractAsyncContextManager[Session] | None":
        """Return a copy of the session, or ``None`` if it can't be copied, in which case the branch is replayed.

        The copy is entered before this session continues.
        """


class Replayed:
    """Base class of a session that can't be copied, so its branches are replayed."""

    __slots__ = ()

    def fork(self) -> None:
        """Return None."""


class Shared:
    """Resources that all branches of a run share (a sandbox, tool servers, a judge), indexed by class."""

    def __init__(self, *resources: object) -> None:
        self._resources = {type(resource): resource for resource in resources}
        if len(self._resources) < len(resources):
            raise ValueError(
                f"two resources of one class: {[type(resource) for resource in resources]}"
            )

    def __contains__(self, kind: type) -> bool:
        return kind in self._resources

    def __getitem__(self, kind: type[R]) -> R:
        resource = self._resources[kind]
        assert isinstance(resource, kind)
        return resource


class Syntax(Protocol):
    """Text format of tool calls and results."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings that end a message with calls."""

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        """Parse the calls of a message. ``text`` is the complete sample, including its stop string."""

    def show(self, results: Sequence[ToolResult]) -> str:
        """Render results in the order of the calls; return "" if the chat template renders them."""


class Environment(Protocol):
    """An environment. The base classes in ``environments`` implement most of it."""

    @property
    def name(self) -> str:
        """Name of the environment."""

    @property
    def version(self) -> str:
        """Version of the environment, which is part of the fingerprints of stages."""

    @property
    def actors(self) -> Mapping[str, ActorKind]:
        """Actors by name. Simultaneous turns are recorded in this order."""

    @property
    def limits(self) -> Mapping[str, int]:
        """Limits that truncate a trajectory: ``turns`` (all actors), ``turns:NAME`` (one actor), ``calls``."""

    @property
    def needs(self) -> tuple[type, ...]:
        """Classes of the resources in :class:`Shared` that must be open before the run."""

    @property
    def pure(self) -> bool:
        """True if all state is in :class:`State`: no sessions, no replay."""

    @property
    def max_sessions(self) -> int:
        """Maximum number of open sessions; ignored for pure environments."""

    @property
    def syntax(self) -> Syntax | None:
        """Format of tool calls; ``None`` without tools."""

    @property
    def metric(self) -> str:
        """Name of the score in reports, such as ``F1`` or ``exact match``."""

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        """Return ``count`` tasks of a split. The splits have no task in common.

        ``previous_counts`` holds the counts of earlier draws. Training tasks continue after them, and no task repeats
        before all have been returned. Fewer tasks are returned if the data set has fewer.
        """

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]:
        """Open a session for one branch of a task. Not called for pure environments."""

    async def begin(self, task: Task, session: Any) -> Transition:
        """Begin an episode. ``session`` is the session of the branch, or :class:`Shared` for pure environments."""

    def next_actors(self, state: State) -> tuple[str, ...]:
        """Return the actors whose turn it is. Several act simultaneously: none sees the turns of the others."""

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        """Return the prompt of an actor. A dict of ``role`` and ``content`` is accepted as a message.

        Before the first turn, the plan asks for the prompts of all agents, including those who do not act first.
        """

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        """Return the tools that an actor may call."""

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        """Apply ``turns``, the last turns of ``state``.

        In a replay ``replayed`` holds the turns of the environment at that time. Results without side effects
        (such as a search) may be copied from them.
        """

    async def grade(self, state: State, session: Any) -> Grade:
        """Grade a finished trajectory with a score from 0 to 1.

        A class attribute ``score_range = (low, high)`` declares another range, which is scaled to [0, 1].
        """


Openers = Mapping[type, Callable[[], AbstractAsyncContextManager[Any]]]


@runtime_checkable
class Votes(Protocol):
    """Comparable answers, for voting."""

    def answer_to(self, task: Task, text: str) -> str | None:
        """Return the normalized answer in a message, or ``None``."""

    def same(self, first: str, second: str) -> bool:
        """Return True if two answers are equal. May take seconds and is called from any thread."""

    def similarity(self, answer: str, other: str) -> float:
        """Return the metric of one answer with the other as the reference, in [0, 1]."""


@runtime_checkable
class Shortens(Protocol):
    """Environment that can shorten a prompt that exceeds the context of the model."""

    def shorter(self, state: State, actor: str) -> Iterable[tuple[Message, ...]]:
        """Yield shorter prompts of an actor, the longest first. The first that fits is used."""


class AnswersRequests(ABC):
    """Environment whose prompts are the requests of a program. A role may have several conversations at a time."""

    @abstractmethod
    def request_limits(self, state: State) -> tuple[tuple[str, ...], int | None]:
        """Return the stop strings and the maximum number of tokens that the current request asks for."""

    @abstractmethod
    async def deliver(self, session: Any, sampling: Awaitable[T]) -> T:
        """Return the sampled reply. Cancels the sampling and raises ``RequestWithdrawn`` if nobody waits for it."""

    @abstractmethod
    async def refuse(self, state: State, session: Any, error: EngineError) -> Transition:
        """End a request that was withdrawn or does not fit the model's context, and wait for what follows."""


def check_graded(environment: object) -> None:
    """Raise the ``UserError`` in ``ungraded``, which an environment has whose data lacks labels."""
    if (error := getattr(environment, "ungraded", None)) is not None:
        raise error


def openers_of(environment: object, logs: Path) -> Openers:
    """Return ``openers(logs)``: functions that open what the environment needs. Servers write logs to ``logs``."""
    openers: Openers = environment.openers(logs) if hasattr(environment, "openers") else {}
    return openers


def formats_of(environment: Environment) -> tuple[str, ...]:
    """Return the format prompts that an episode may have as ``State.variant``; none by default."""
    formats: tuple[str, ...] = getattr(environment, "formats", ())
    return formats


def agents_of(environment: Environment) -> tuple[str, ...]:
    return tuple(name for name, kind in environment.actors.items() if kind == "agent")


def persons_of(environment: Environment) -> tuple[str, ...]:
    return tuple(name for name, kind in environment.actors.items() if kind == "person")


def most_turns(environment: Environment) -> int:
    """Return the maximum number of agent turns. Raise ``UserError`` if they are not limited."""
    limits = environment.limits
    if "turns" in limits:
        return limits["turns"]
    # Without a common limit, the limits of the agents add up.
    agents = agents_of(environment)
    unlimited = [name for name in agents if f"turns:{name}" not in limits]
    if unlimited:
        raise UserError(
            f"the environment {environment.name} does not limit the turns of {', '.join(unlimited)}",
            "add limits = {'turns': NUMBER}",
        )
    return sum(limits[f"turns:{name}"] for name in agents)


class Pure:
    """Defaults of a pure environment."""

    version = "1"
    needs: tuple[type, ...] = ()
    pure = True
    max_sessions = 1
    syntax: Syntax | None = None

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]:
        """Open no session."""
        return nullcontext()

    async def begin(self, task: Task, session: Any) -> Transition:
        """Begin an episode without an observation."""
        return Transition()

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        """Return no tools."""
        return ()


AGENT = "agent"


class OneAgent:
    """Defaults of an environment in which one agent acts."""

    actors: Mapping[str, ActorKind] = MappingProxyType({AGENT: "agent"})

    def next_actors(self, state: State) -> tuple[str, ...]:
        """Return the agent."""
        return tuple(self.actors)


class Answers(ABC):
    """Comparable answers (:class:`Votes`) that are equal or not."""

    @abstractmethod
    def answer(self, text: str) -> str | None:
        """Return the answer in a message, or ``None``."""

    def answer_to(self, task: Task, text: str) -> str | None:
        """Return the answer in a message, or ``None``."""
        return self.answer(text)

    def same(self, first: str, second: str) -> bool:
        """Return True if two answers are equal."""
        return first == second

    def similarity(self, answer: str, other: str) -> float:
        """Return 1 for equal answers, else 0."""
        return float(self.same(answer, other))


class EnvironmentFault(EngineError):
    """An unexpected error of an environment. Only its episode fails."""


class RequestWithdrawn(EngineError):
    """No client waits for the reply to a program's request, which is therefore not sampled."""


class faults_of:  # a class, since a generator costs a microsecond more at each of many calls
    """Turns every exception that an environment did not mean to raise into a :class:`EnvironmentFault`."""

    def __init__(self, environment: object) -> None:
        self.environment = environment

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Errors of engines and users keep their type, and cancellation is no fault.
        if not isinstance(error, Exception) or isinstance(error, EngineError | UserError):
            return
        # The error names a line of the environment's own code, not of a library that it calls.
        modules = {base.__module__ for base in type(self.environment).__mro__} - {"builtins"}
        name, position = type(self.environment).__name__, error_place(error, modules)
        raise EnvironmentFault(f"{name} failed with {error_message(error)} ({position})") from error


def messages_of(environment: Environment, state: State, actor: str) -> tuple[Message, ...]:
    """Return the prompt of an actor; dicts with ``role`` and ``content`` become messages."""
    prompt: Any = environment.observe(state, actor)
    # The usual case, first because this runs for every prompt.
    if type(prompt) is tuple and set(map(type, prompt)) <= {Message}:
        return prompt
    wrong, position = prompt, ""
    if isinstance(prompt, list | tuple):
        # Texts of own turns in dicts become references to the turns, which keep the exact tokens.
        own_turns = [turn for turn in state.turns if turn.speaker.name == actor]
        messages = [_message(message, own_turns) for message in prompt]
        if None not in messages:
            return tuple(filter(None, messages))
        index = messages.index(None)
        wrong, position = prompt[index], f" as message {index + 1}"
    expected = "messages: Message, or dicts of role and content"
    raise wrong_return(environment, "observe", wrong, expected, position)


def check_return(environment: Environment, method: str, value: object, kind: type) -> None:
    """Raise :class:`EnvironmentFault` if a returned value has another type than ``kind``."""
    if not isinstance(value, kind):
        raise wrong_return(environment, method, value, f"a {kind.__name__}")


def wrong_return(
    environment: Environment, method: str, value: object, expected: str, position: str = ""
) -> EnvironmentFault:
    """Return an error with the file and line of the method."""
    # The class that the user wrote, not a wrapper around it.
    environment_class = type(innermost(environment))
    code = inspect.unwrap(getattr(environment_class, method)).__code__
    return EnvironmentFault(
        f"{environment_class.__name__}.{method}() returned {value!r:.80}{position}. Return {expected} "
        f"({code.co_filename}, line {code.co_firstlineno})"
    )


def innermost(environment: Any) -> Any:
    # Wrappers, such as ``WithTools``, hold the environment in this attribute.
    while hasattr(environment, "environment"):
        environment = environment.environment
    return environment


def _message(item: object, own_turns: list[Turn]) -> Message | None:
    """Return a message. The text of the next of the actor's ``own_turns`` stands for its sampled tokens."""
    if isinstance(item, Message):
        return item
    if not isinstance(item, dict) or item.keys() != {"role", "content"}:
        return None
    role, content = item["role"], item["content"]
    if role == "assistant":
        # Turns are matched in order, so that equal texts refer to different turns.
        for index, turn in enumerate(own_turns):
            if turn.text == content:
                del own_turns[: index + 1]
                return Message("assistant", turn=turn.id)
    return Message.of(role, content) if role in get_args(Role) and type(content) is str else None


# Everything that an environment must have: the attributes and methods of the interface above.
PARTS = {name: value for name, value in vars(Environment).items() if not name.startswith("_")}
METHODS = tuple(name for name, value in PARTS.items() if inspect.isfunction(value))


def check_needs(environment: Environment, has: Shared | Mapping[type, object]) -> None:
    """Raise ``UserError`` for a resource that the environment needs and ``has`` lacks."""
    for need in environment.needs:
        if need not in has:
            raise _error(
                type(environment).__name__,
                f"needs a {need.__name__}, which this run does not have",
                "pass one in Shared",
            )


def check_parts(environment: Environment) -> None:
    """Raise ``UserError`` for faults that would only show at the end of an episode, or never."""
    class_name = type(environment).__name__
    missing = [name for name in PARTS if not hasattr(environment, name)]
    if missing:
        raise _error(class_name, f"has no {', '.join(missing)}", "add what is missing")
    kinds = set(environment.actors.values())
    if "agent" not in kinds or not kinds <= {"agent", "person"}:
        fix = 'use "agent" (a policy; at least one) and "person" (a user simulator)'
        raise _error(
            class_name, f"has actors of the kinds {', '.join(map(str, kinds)) or 'none'}", fix
        )
    names = ["turns", "calls", *(f"turns:{name}" for name in environment.actors)]
    for name in environment.limits:
        if name not in names:
            raise _error(class_name, f"has a limit of {name!r}", f"choose from {', '.join(names)}")
    low, high = getattr(environment, "score_range", (0.0, 1.0))
    if not low < high:
        raise _error(
            class_name, f"has score_range = ({low}, {high})", "give (low, high), low < high"
        )


def draw_tasks(
    environment: Environment,
    split: Split,
    count: int,
    seed: int,
    previous_counts: Sequence[int] = (),
) -> list[Task]:
    """Return checked tasks of a split (see :meth:`Environment.tasks`)."""
    tasks: object = environment.tasks(split, count, seed, previous_counts)
    class_name = type(environment).__name__
    if not isinstance(tasks, list) or not all(isinstance(task, Task) for task in tasks):
        problem = f"has a tasks() that returns {tasks!r:.80}"
        raise _error(class_name, problem, "return a list of Task")
    # Tasks with one id would share a tree.
    if len({task.id for task in tasks}) < len(tasks):
        raise _error(
            class_name, f"gives two {split} tasks the same id", "give each task a unique id"
        )
    if not tasks:
        problem = f"returns no {split} tasks after {sum(previous_counts)}"
        raise _error(
            class_name, problem, "return at least one, and the first ones again after all others"
        )
    return tasks


def _error(class_name: str, problem: str, fix: str) -> UserError:
    return UserError(f"the environment {class_name} {problem}", fix)
