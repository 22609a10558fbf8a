"""Checks of environments before a run and during episodes. A fault fails only its item, with the reason."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from coterie.config.plugins import error_message, error_place
from coterie.datasets.catalogue import Split
from coterie.engines.protocol import EngineError
from coterie.environments.protocol import Environment, Shared, State
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
    """Return the prompt of an actor; dicts with ``role`` and ``content`` become messages."""
    prompt: Any = environment.see(state, actor)
    if type(prompt) is tuple and set(map(type, prompt)) <= {Message}:
        return prompt
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
    code = inspect.unwrap(getattr(kind, method)).__code__
    return EnvironmentFault(
        f"{kind.__name__}.{method}() returned {value!r:.80}. Return {expected} "
        f"({code.co_filename}, line {code.co_firstlineno})"
    )


def innermost(environment: Any) -> Any:
    """Return the environment inside wrappers, such as for tools."""
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


PARTS = {name: value for name, value in vars(Environment).items() if not name.startswith("_")}
METHODS = tuple(name for name, value in PARTS.items() if inspect.isfunction(value))


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
    """Raise ``UserError`` for faults that would only show at the end of an episode, or never."""
    kind = type(environment).__name__
    missing = [name for name in PARTS if not hasattr(environment, name)]
    if missing:
        raise _error(kind, f"has no {', '.join(missing)}", "add what is missing")
    for name in METHODS:
        is_async = inspect.iscoroutinefunction(PARTS[name])
        if is_async != inspect.iscoroutinefunction(getattr(environment, name)):
            fix = f"write it with {'async def' if is_async else 'def, without async'}"
            raise _error(kind, f"has a method {name} of the wrong kind", fix)
    names = ["turns", "calls", *(f"turns:{name}" for name in environment.actors)]
    for name in environment.limits:
        if name not in names:
            raise _error(kind, f"has a limit of {name!r}", f"choose from {', '.join(names)}")
    low, high = getattr(environment, "score_range", (0.0, 1.0))
    if not low < high:
        raise _error(kind, f"has score_range = ({low}, {high})", "give (low, high), low < high")


def draw_tasks(
    environment: Environment, split: Split, count: int, seed: int, after: Sequence[int] = ()
) -> list[Task]:
    """Return checked tasks of a split (see :meth:`Environment.tasks`)."""
    tasks: object = environment.tasks(split, count, seed, after)
    kind = type(environment).__name__
    if not isinstance(tasks, list) or not all(isinstance(task, Task) for task in tasks):
        what = f"has a tasks() that returns {tasks!r:.80}"
        raise _error(kind, what, "return a list of Task")
    if len({task.id for task in tasks}) < len(tasks):
        raise _error(kind, f"gives two {split} tasks the same id", "give each task a unique id")
    if not tasks and after:
        what = f"returns no more {split} tasks after {sum(after)}"
        raise _error(kind, what, "start again with the first tasks")
    if not tasks:
        raise _error(kind, f"returns no {split} tasks", "return at least one")
    return tasks


def _error(kind: str, what: str, do: str) -> UserError:
    return UserError(f"the environment {kind} {what}", do)
