"""Errors in the code of an environment, which fail only the episode in which they occur."""

import inspect
from typing import Any, TypeVar, get_args

from coterie.config.blame import first_line, place
from coterie.engines.protocol import EngineError
from coterie.environments.protocol import Environment, State
from coterie.errors import UserError
from coterie.trajectories.turn import Message, Role

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
            f"{type(self.environment).__name__} failed with {first_line(error)} ({place(error, own)})"
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
