"""An environment's own faults: the item that meets one fails, with the reason, and no other."""

import inspect
from typing import Any, TypeVar, get_args

from coterie.config.blame import first_line, place
from coterie.engines.protocol import EngineError
from coterie.environments.protocol import Environment, State
from coterie.errors import UserError
from coterie.trajectories.turn import Message, Role

T = TypeVar("T")


class EnvironmentFault(EngineError):
    """An environment met what it did not expect: the item that met it fails, and no other."""


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
    """Return what an actor sees; dicts with ``role`` and ``content`` become messages.

    Raises:
        EnvironmentFault: ``see`` returned something else.
    """
    seen: Any = environment.see(state, actor)
    if isinstance(seen, list | tuple):
        messages = tuple(message for one in seen if (message := _message(one)) is not None)
        if len(messages) == len(seen):
            return messages
    raise wrong_return(environment, "see", seen, "messages: Message, or dicts of role and content")


def check_return(environment: Environment, method: str, value: object, kind: type[T]) -> T:
    """Return ``value``; raise :class:`EnvironmentFault` if it is of another type."""
    if not isinstance(value, kind):
        raise wrong_return(environment, method, value, f"a {kind.__name__}")
    return value


def wrong_return(
    environment: Environment, method: str, value: object, expected: str
) -> EnvironmentFault:
    """Return the fault of a method with its file and line."""
    kind = type(innermost(environment))
    function = inspect.unwrap(getattr(kind, method))
    code = function.__code__
    return EnvironmentFault(
        f"{kind.__name__}.{method}() returned {value!r:.80}. Return {expected} "
        f"({code.co_filename}, line {code.co_firstlineno})"
    )


def innermost(environment: Any) -> Any:
    """Return the environment inside those that only add tools or a method of answering."""
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
