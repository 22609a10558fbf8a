"""Checks of environments before a run and during episodes. A fault fails only its item, with the reason."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from coterie.config.plugins import error_message, error_place
from coterie.datasets.catalogue import Split
from coterie.engines.protocol import EngineError
from coterie.environments.protocol import ActorKind, Environment, Shared, State
from coterie.errors import UserError
from coterie.record.tree import Task
from coterie.record.turn import Message, Role

T = TypeVar("T")


class EnvironmentFault(EngineError):
    """An unexpected error of an environment. Only its episode fails."""


class faults_of:  # a class, since a generator costs a microsecond more at each of many calls
    """Turns every exception that an environment did not mean to raise into a :class:`EnvironmentFault`."""

    def __init__(self, environment: object) -> None:
        self.environment = environment

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, EngineError | UserError):
            return
        own = {kind.__module__ for kind in type(self.environment).__mro__} - {"builtins"}
        raise EnvironmentFault(
            f"{type(self.environment).__name__} failed with {error_message(error)} ({error_place(error, own)})"
        ) from error


def messages_of(environment: Environment, state: State, actor: str) -> tuple[Message, ...]:
    """Return the prompt of an actor; dicts with ``role`` and ``content`` become messages.

    Raises:
        EnvironmentFault: ``see`` returned something else.
    """
    prompt: Any = environment.see(state, actor)
    if isinstance(prompt, list | tuple):
        messages = tuple(message for one in prompt if (message := _message(one)) is not None)
        if len(messages) == len(prompt):
            return messages
    raise wrong_return(
        environment, "see", prompt, "messages: Message, or dicts of role and content"
    )


def check_return(environment: Environment, method: str, value: object, kind: type[T]) -> T:
    """Return ``value``. Raise :class:`EnvironmentFault` if it has another type than ``kind``."""
    if not isinstance(value, kind):
        raise wrong_return(environment, method, value, f"a {kind.__name__}")
    return value


def wrong_return(
    environment: Environment, method: str, value: object, expected: str
) -> EnvironmentFault:
    """Return an error with the file and line of the method."""
    kind = type(innermost(environment))
    function = inspect.unwrap(getattr(kind, method))
    code = function.__code__
    return EnvironmentFault(
        f"{kind.__name__}.{method}() returned {value!r:.80}. Return {expected} "
        f"({code.co_filename}, line {code.co_firstlineno})"
    )


def innermost(environment: Any) -> Any:
    """Return the environment inside wrappers, such as for tools or a baseline."""
    while hasattr(environment, "environment"):
        environment = environment.environment
    return environment


def _message(one: object) -> Message | None:
    if isinstance(one, Message):
        return one
    if not isinstance(one, dict) or one.keys() != {"role", "content"}:
        return None
    role, content = one["role"], one["content"]
    return Message.of(role, content) if role in get_args(Role) and type(content) is str else None


KINDS: tuple[ActorKind, ...] = ("agent", "person")
ATTRIBUTES = ("name", "version", "actors", "limits", "needs", "pure", "max_sessions", "syntax", "metric")  # fmt: skip
METHODS = ("tasks", "open", "begin", "acting", "see", "tools", "act", "grade")
AWAITED = ("begin", "act", "grade")


def check_environment(environment: Environment, shared: Shared) -> None:
    """Raise ``UserError`` if the :class:`Environment` interface is incomplete, or ``shared`` lacks a resource."""
    check_parts(environment)
    check_needs(environment, shared)


def check_needs(environment: Environment, has: Shared | Mapping[type, object]) -> None:
    """Raise ``UserError`` if a resource of the environment is missing."""
    for need in environment.needs:
        if need not in has:
            raise _error(
                type(environment).__name__,
                f"needs a {need.__name__}, which this run does not have",
                "pass one in Shared",
            )


def check_parts(environment: Environment) -> None:
    """Raise ``UserError`` if attributes or methods of :class:`Environment` are missing or wrong."""
    kind = type(environment).__name__
    missing = [name for name in (*ATTRIBUTES, *METHODS) if not hasattr(environment, name)]
    if missing:
        raise _error(kind, f"has no {', '.join(missing)}", "add what is missing")
    for name in METHODS:
        _check_method(environment, name)
    _check_actors(kind, environment.actors)
    _check_limits(kind, environment.limits, environment.actors)
    low, high = getattr(environment, "score_range", (0.0, 1.0))
    if not low < high:
        raise _error(kind, f"has score_range = ({low}, {high})", "give (low, high), low < high")
    if not environment.pure and environment.max_sessions < 1:
        raise _error(kind, f"has max_sessions = {environment.max_sessions}", "allow at least 1")
    syntax = environment.syntax
    if syntax is not None and not (
        isinstance(getattr(syntax, "stop", None), tuple) and hasattr(syntax, "parse")
    ):
        raise _error(kind, "has a syntax without a tuple stop, or without parse", "give a Syntax")


def draw_tasks(
    environment: Environment, split: Split, count: int, seed: int, after: Sequence[int] = ()
) -> list[Task]:
    """Return checked tasks of a split (see :meth:`Environment.tasks`).

    Raises:
        UserError: the environment does not return a list of tasks with unique ids.
    """
    tasks: object = environment.tasks(split, count, seed, after)
    kind = type(environment).__name__
    if not isinstance(tasks, list):
        raise _error(kind, f"has a tasks() that returns {_a(tasks)}", "return a list of Task")
    for number, task in enumerate(tasks, 1):
        if not isinstance(task, Task):
            raise _error(kind, f"returns {_a(task)} as {split} task {number}", "return a Task")
        if not task.id:
            raise _error(
                kind, f"gives {split} task {number} an empty id", "give each task a unique id"
            )
    if len({task.id for task in tasks}) < len(tasks):
        raise _error(kind, f"gives two {split} tasks the same id", "give each task a unique id")
    if not tasks and after:
        what = f"returns no more {split} tasks after {sum(after)}"
        raise _error(kind, what, "start again with the first tasks")
    if not tasks:
        raise _error(kind, f"returns no {split} tasks", "return at least one")
    return tasks


def _a(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _check_method(environment: Environment, name: str) -> None:
    kind, method = type(environment).__name__, getattr(environment, name)
    if not callable(method):
        raise _error(kind, f"has a {name} that is not a method", "write it as a method")
    if (name in AWAITED) != inspect.iscoroutinefunction(method):
        definition = "async def" if name in AWAITED else "def, without async"
        raise _error(kind, f"has a method {name} of the wrong kind", f"write it with {definition}")
    expected = inspect.signature(getattr(Environment, name)).parameters.values()
    parameters = [one for one in expected if one.name != "self"]
    places = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    keywords = {one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
    try:
        inspect.signature(method).bind(*places, **keywords)
    except TypeError as error:
        raise _error(
            kind,
            f"has a method {name} with other parameters: {error}",
            f"give it {', '.join((*places, *keywords))}",
        ) from error


def _check_actors(kind: str, actors: Mapping[str, ActorKind]) -> None:
    if not isinstance(actors, Mapping) or not actors:
        raise _error(kind, "has no actors", "give {'NAME': 'agent'}, one for each")
    for name, role in actors.items():
        if role not in KINDS:
            raise _error(kind, f"has an actor {name!r} of kind {role!r}", f"give one of {KINDS}")


def _check_limits(kind: str, limits: Mapping[str, int], actors: Mapping[str, ActorKind]) -> None:
    names = ["turns", "calls", *(f"turns:{name}" for name in actors)]
    for name, limit in limits.items():
        if name not in names:
            raise _error(kind, f"has a limit of {name!r}", f"choose from {', '.join(names)}")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise _error(kind, f"has a limit of {limit!r} {name}", "give a whole number from 1")


def _error(kind: str, what: str, do: str) -> UserError:
    return UserError(f"the environment {kind} {what}", do)
