"""Which calls of a turn can be run: checked once, after sampling.

A call that can't be run keeps its text and gets an ``error``: it is answered with that, and never run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from coterie.errors import UserError
from coterie.trajectories.calls import Tool, ToolCall


def check_tools(tools: Sequence[Tool]) -> None:
    """Refuse, with :class:`UserError`, tools of one name and parameters that are no schema of an object."""
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two tools are called {name!r}", "give each tool a name of its own")
    for tool in tools:
        try:
            Draft202012Validator.check_schema(tool.parameters)
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


def checked(
    calls: Sequence[ToolCall], tools: Sequence[Tool], *, max_calls: int
) -> tuple[ToolCall, ...]:
    """The calls with an error on each that can't be run; an error that is there already stays."""
    known = {tool.name: tool for tool in tools}
    return tuple(
        call
        if call.error
        else replace(
            call, error=_too_many(max_calls) if place >= max_calls else _fault(call, known)
        )
        for place, call in enumerate(calls)
    )


def arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call that was checked."""
    found: dict[str, Any] = json.loads(call.arguments)
    return found


def _too_many(max_calls: int) -> str:
    return f"not run: a message has at most {max_calls} calls"


def _validator(tool: Tool) -> Draft202012Validator:
    """Without a registry of its own it would fetch schemas that a tool's schema refers to."""
    return Draft202012Validator(tool.parameters, registry=Registry())


def _fault(call: ToolCall, known: Mapping[str, Tool]) -> str:
    """Why a call can't be run; empty if it can."""
    tool = known.get(call.name)
    if tool is None:
        names = ", ".join(known) or "none"
        return f"there is no tool {call.name!r}; the tools are: {names}"
    try:
        given = json.loads(call.arguments)
    except (ValueError, RecursionError) as error:
        return f"the arguments are not JSON: {error}"
    try:
        fault = best_match(_validator(tool).iter_errors(given))
    except Unresolvable as error:
        return f"the tool's own schema is broken: {error}"
    if fault is None:
        return ""
    where = f" (at {fault.json_path})" if fault.path else ""
    return f"wrong arguments: {fault.message}{where}"
