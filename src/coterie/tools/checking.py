"""Check the calls of a turn once, after sampling.

An invalid call keeps its text and gets an ``error``, which is its result. It never runs.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from typing import Any

import pydantic_core
from jsonschema import Draft201909Validator, Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT201909, DRAFT202012

from coterie.config.text import shallow, whole
from coterie.errors import UserError
from coterie.trajectories.calls import Tool, ToolCall

MAX_ERROR = 1000
"""Characters of an error, which may contain text of the model."""
MAX_STEPS = 200_000
"""Schema keywords evaluated for one call (about a second)."""
LEFT_OUT = ("patternProperties", "unevaluatedItems", "unevaluatedProperties")
"""Keywords that are left to the tool, since the validator does not count their steps."""
_steps: ContextVar[int] = ContextVar("steps", default=0)


def check_tools(tools: Sequence[Tool]) -> None:
    """Raise :class:`UserError` for tools with equal names, or parameters that are not a schema of an object."""
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two tools are called {name!r}", "give each tool a name of its own")
    for tool in tools:
        if not tool.name or not isinstance(tool.parameters, Mapping):
            raise UserError(
                f"the tool {tool.name!r} has no name, or no schema of its parameters",
                "name it, and give {'type': 'object', 'properties': {...}}",
            )
        try:
            shallow(tool.parameters)
            draft, _ = _draft(tool.parameters)
            draft.check_schema(tool.parameters, format_checker=_FORMATS)
        except ValueError as error:
            raise UserError(
                f"the parameters of the tool {tool.name!r} can't be read: {error}",
                "make them simpler",
            ) from error
        except SchemaError as error:
            raise UserError(
                f"the parameters of the tool {tool.name!r} are not a JSON schema: {error.message}",
                "correct them; a tool without parameters has {'type': 'object'}",
            ) from error
        if tool.parameters.get("type") != "object":
            raise UserError(
                f"the parameters of the tool {tool.name!r} are not a schema of an object",
                "give {'type': 'object', 'properties': {...}}",
            )
        _check_references(tool)


def _check_references(tool: Tool) -> None:
    """Raise ``UserError`` for a schema with a dangling or endless reference."""
    base = str(tool.parameters.get("$id", ""))
    _, draft = _draft(tool.parameters)
    schema = draft.create_resource(tool.parameters)
    resolver = Registry().with_resource(base, schema).resolver(base)
    for reference in _references(tool.parameters, draft):
        try:
            contents = resolver.lookup(reference).contents
            if not isinstance(contents, Mapping | bool):
                raise ValueError("it is not a schema")
        except (Unresolvable, ValueError) as error:  # ValueError: a list index is not a number
            raise UserError(
                f"the parameters of the tool {tool.name!r} refer to {reference!r}, which is not a schema in them",
                "write that schema into this one, under $defs",
            ) from error
    try:
        _first_error(tool, {})
    except _TooLong as error:
        raise UserError(
            f"the parameters of the tool {tool.name!r} refer to each other too often",
            "write them with fewer $ref",
        ) from error
    except RecursionError as error:
        raise UserError(
            f"the parameters of the tool {tool.name!r} refer to themselves without end",
            "remove the $ref of the schema to itself",
        ) from error


def validate_calls(
    calls: Sequence[ToolCall], tools: Sequence[Tool], *, max_calls: int | None = None
) -> tuple[ToolCall, ...]:
    """Return the calls with an error on each invalid one; existing errors stay.

    Calls beyond ``max_calls`` are invalid.
    """
    known = {tool.name: tool for tool in tools}

    def error(place: int, call: ToolCall) -> str:
        if max_calls is not None and place >= max_calls:
            return too_many(max_calls)
        return _fault(call, known)[:MAX_ERROR]

    return tuple(
        call if call.error else replace(call, error=error(place, call))
        for place, call in enumerate(calls)
    )


def arguments(call: ToolCall) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(call.arguments)
    return values


def too_many(max_calls: int) -> str:
    return f"not run: only {max_calls} calls of this message are run"


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _references(schema: object, draft: Any) -> Iterator[str]:
    """Yield the references of a schema and its subschemas, but not of plain data (``enum``, ``default``)."""
    if isinstance(schema, Mapping):
        for key in ("$ref", "$dynamicRef"):
            if isinstance(reference := schema.get(key), str):
                yield reference
        for inner in draft.subresources_of(schema):
            yield from _references(inner, draft)


def _draft(schema: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the draft of a schema: 2020-12, or 2019-09 if ``items`` is a list."""
    return _OLDER if _has_tuples(schema) else _NEWER


def _has_tuples(schema: object) -> bool:
    return isinstance(schema, Mapping) and (
        isinstance(schema.get("items"), list)
        or any(map(_has_tuples, DRAFT201909.subresources_of(schema)))
    )


# -- validation in bounded time: a limit on steps, and patterns without backtracking --------------


class _TooLong(Exception):
    """A schema needs more than ``MAX_STEPS``."""


def _first_error(tool: Tool, values: object) -> ValidationError | None:
    """Return the most relevant error of arguments. Raises :class:`_TooLong` and the validator's exceptions."""
    _steps.set(MAX_STEPS)
    # With the default registry it would download referenced schemas.
    validator = _VALIDATORS[_draft(tool.parameters)[0]]
    return best_match(validator(tool.parameters, registry=Registry()).iter_errors(values))


def _count_steps(check: Callable[..., Any]) -> Callable[..., Any]:
    def count(*args: Any) -> Any:
        _steps.set(left := _steps.get() - 1)
        if left < 0:
            raise _TooLong
        return check(*args)

    return count


@cache
def _compile(pattern: str) -> pydantic_core.SchemaValidator | None:
    """Compile a pattern; ``None`` if it has look-around or back references, which need backtracking."""
    with suppress(pydantic_core.SchemaError):
        return pydantic_core.SchemaValidator(pydantic_core.core_schema.str_schema(pattern=pattern))
    return None


_FORMATS = FormatChecker(())


@_FORMATS.checks("regex", re.error)
def _is_pattern(pattern: object) -> bool:
    r"""Return True for a pattern of either engine; Python's lacks ``\p{L}``."""
    return (
        not isinstance(pattern, str) or _compile(pattern) is not None or bool(re.compile(pattern))
    )


def _pattern(_: Any, pattern: str, value: object, __: Any) -> Iterator[ValidationError]:
    validator = _compile(pattern) if isinstance(value, str) else None
    if validator and not validator.isinstance_python(value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _unique(_: Any, unique: bool, value: object, __: Any) -> Iterator[ValidationError]:
    items = value if unique and isinstance(value, list) else []
    if len({json.dumps(one, sort_keys=True) for one in items}) < len(items):
        yield ValidationError("an item of the list is there twice")


def _additional(validator: Any, inner: Any, value: object, schema: Any) -> Iterator[Any]:
    if "patternProperties" not in schema:
        yield from Draft202012Validator.VALIDATORS["additionalProperties"](
            validator, inner, value, schema
        )


_NEWER, _OLDER = (Draft202012Validator, DRAFT202012), (Draft201909Validator, DRAFT201909)
_VALIDATORS: dict[Any, Any] = {
    draft: extend(
        draft,
        {
            name: _count_steps(check)
            for name, check in {
                **draft.VALIDATORS,
                "pattern": _pattern,
                "uniqueItems": _unique,
                "additionalProperties": _additional,
                **dict.fromkeys(LEFT_OUT, lambda *_: ()),
            }.items()
        },
    )
    for draft, _ in (_NEWER, _OLDER)
}


def _fault(call: ToolCall, known: Mapping[str, Tool]) -> str:
    tool = known.get(call.name)
    if tool is None:
        names = ", ".join(known) or "none"
        return f"there is no tool {call.name!r}; the tools are: {names}"
    try:
        values = whole(json.loads(call.arguments, parse_constant=_refuse))
    except (ValueError, RecursionError) as error:
        return f"the arguments are not JSON: {error}"
    try:
        shallow(values)
    except ValueError as error:
        return f"wrong arguments: {error}"
    try:
        fault = _first_error(tool, values)
    except Unresolvable as error:
        return f"the tool's own schema is broken: {error}"
    except RecursionError:
        return "the arguments, or the tool's own schema, nest too deep"
    except _TooLong:
        return "the arguments are too many to be checked by the tool's schema"
    except OverflowError:
        return "wrong arguments: a number is too large"
    if fault is None:
        return ""
    where = f" (at {fault.json_path})" if fault.path else ""
    return f"wrong arguments: {fault.message}{where}"
