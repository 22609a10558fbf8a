"""Whether an environment is one: found out before anything expensive begins."""

import inspect
from collections.abc import Mapping, Sequence

from coterie.datasets.catalogue import Split
from coterie.environments.protocol import ActorKind, Environment, Shared
from coterie.errors import UserError
from coterie.trajectories.task import Task

KINDS: tuple[ActorKind, ...] = ("agent", "person")
ATTRIBUTES = ("name", "version", "actors", "limits", "needs", "pure", "max_sessions", "syntax", "metric")  # fmt: skip
METHODS = ("tasks", "open", "begin", "acting", "see", "tools", "act", "grade")
AWAITED = ("begin", "act", "grade")


def check_environment(environment: Environment, shared: Shared) -> None:
    """Refuse, with :class:`UserError`, what does not fit :class:`Environment`, or needs what ``shared`` has not."""
    check_parts(environment)
    check_needs(environment, shared)


def check_needs(environment: Environment, has: Shared | Mapping[type, object]) -> None:
    """Refuse, with :class:`UserError`, an environment that needs what a run does not have."""
    for need in environment.needs:
        if need not in has:
            raise _refused(
                type(environment).__name__,
                f"needs a {need.__name__}, which this run does not have",
                "give one in Shared",
            )


def check_parts(environment: Environment) -> None:
    """Refuse, with :class:`UserError`, what does not have the attributes and methods of :class:`Environment`."""
    kind = type(environment).__name__
    missing = [name for name in (*ATTRIBUTES, *METHODS) if not hasattr(environment, name)]
    if missing:
        raise _refused(kind, f"has no {', '.join(missing)}", "add what is missing")
    for name in METHODS:
        _check_method(environment, name)
    _check_actors(kind, environment.actors)
    _check_limits(kind, environment.limits, environment.actors)
    low, high = getattr(environment, "score_range", (0.0, 1.0))
    if not low < high:
        raise _refused(kind, f"has score_range = ({low}, {high})", "give (low, high), low < high")
    if not environment.pure and environment.max_sessions < 1:
        raise _refused(kind, f"has max_sessions = {environment.max_sessions}", "allow at least 1")
    syntax = environment.syntax
    if syntax is not None and not (
        isinstance(getattr(syntax, "stop", None), tuple) and hasattr(syntax, "parse")
    ):
        raise _refused(kind, "has a syntax without a tuple stop, or without parse", "give a Syntax")


def drawn(
    environment: Environment, split: Split, count: int, seed: int, before: Sequence[int] = ()
) -> list[Task]:
    """The tasks of a split that come after those drawn before (the first ones), checked.

    Raises ``UserError`` for what is not a list of tasks with ids of their own.
    """
    found: object = environment.tasks(split, count, seed, before)
    kind = type(environment).__name__
    if not isinstance(found, list):
        raise _refused(kind, f"has tasks() that give {_a(found)}", "give a list of Task")
    for place, task in enumerate(found, 1):
        if not isinstance(task, Task):
            raise _refused(kind, f"gives {_a(task)} as {split} task {place}", "give a Task")
        if not task.id:
            raise _refused(
                kind, f"gives {split} task {place} an empty id", "give it one of its own"
            )
    if len({task.id for task in found}) < len(found):
        raise _refused(kind, f"gives two {split} tasks of one id", "give each an id of its own")
    if not found and before:
        what = f"gives no more {split} tasks after {sum(before)}"
        raise _refused(kind, what, "go on with the first ones where they end")
    if not found:
        raise _refused(kind, f"gives no {split} tasks", "give at least one")
    return found


def _a(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _check_method(environment: Environment, name: str) -> None:
    kind, method = type(environment).__name__, getattr(environment, name)
    if not callable(method):
        raise _refused(kind, f"has a {name} that is not a method", "write it as a method")
    if (name in AWAITED) != inspect.iscoroutinefunction(method):
        way = "async def" if name in AWAITED else "def, without async"
        raise _refused(kind, f"has a method {name} of the wrong sort", f"write it with {way}")
    expected = inspect.signature(getattr(Environment, name)).parameters.values()
    given = [one for one in expected if one.name != "self"]
    places = [one.name for one in given if one.kind is one.POSITIONAL_OR_KEYWORD]
    named = {one.name: None for one in given if one.kind is one.KEYWORD_ONLY}
    try:
        inspect.signature(method).bind(*places, **named)
    except TypeError as error:
        raise _refused(
            kind,
            f"has a method {name} with other parameters: {error}",
            f"give it {', '.join((*places, *named))}",
        ) from error


def _check_actors(kind: str, actors: Mapping[str, ActorKind]) -> None:
    if not isinstance(actors, Mapping) or not actors:
        raise _refused(kind, "has no actors", "give {'NAME': 'agent'}, one for each")
    for name, role in actors.items():
        if role not in KINDS:
            raise _refused(kind, f"has an actor {name!r} of kind {role!r}", f"give one of {KINDS}")


def _check_limits(kind: str, limits: Mapping[str, int], actors: Mapping[str, ActorKind]) -> None:
    known = ["turns", "calls", *(f"turns:{name}" for name in actors)]
    for name, limit in limits.items():
        if name not in known:
            raise _refused(kind, f"has a limit of {name!r}", f"limits are of {', '.join(known)}")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise _refused(kind, f"has a limit of {limit!r} {name}", "give a whole number from 1")


def _refused(kind: str, what: str, do: str) -> UserError:
    return UserError(f"the environment {kind} {what}", do)
