"""Runs the calls of one turn: in stages, so many at a time, each with a time limit, its result cut to a length.

Calls that only look go side by side; one that changes the environment (``Tool.alone``) runs in its place in the
order, beside no other. Results come in the order of the calls, whatever order they finish in. Every call is
answered: a call that can't be run with what is wrong with it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from coterie.config.settings import Settings, key
from coterie.engines.protocol import EngineError
from coterie.tools.checking import arguments, too_many
from coterie.trajectories.calls import Tool, ToolCall, ToolResult, place

Function = Callable[[Mapping[str, Any]], Awaitable[str]]
"""Does what a tool does: its arguments in, a text out."""
FIRST_PAUSE = 0.2
"""Seconds before the second try of a call; each later pause is twice as long."""


class ToolError(Exception):
    """A call failed, and the agent that made it is told why: a page that is not there, a wrong argument."""


class ToolUnavailable(EngineError):
    """A tool can't be reached, by no fault of the agent: the item fails, which is never a score of 0."""


class CallLimits(Settings):
    """How calls are run."""

    max_calls: int = key(
        16, "Calls of one message that are run; those beyond are answered with an error.", ge=1
    )
    width: int = key(8, "Calls that run at the same time.", ge=1)
    seconds: float = key(
        30.0, "Time limit of a call; one that is late is answered with an error.", gt=0
    )
    tries: int = key(
        3,
        "Tries of a call whose tool can't be reached; one that changes the environment is tried once.",
        ge=1,
    )
    max_characters: int = key(8000, "Characters of a result that are shown; the rest is cut out of its middle.",
                              ge=100)  # fmt: skip


async def run_calls(
    calls: Sequence[ToolCall],
    tools: Sequence[Tool],
    functions: Mapping[str, Function],
    limits: CallLimits,
) -> tuple[ToolResult, ...]:
    """One result for each call, in their order. The calls were checked; ``functions`` are the tools' by name.

    Raises :class:`ToolUnavailable` if a tool can't be reached, when the calls beside it have ended.
    """
    alone = {tool.name for tool in tools if tool.alone}
    room, start = asyncio.Semaphore(limits.width), time.monotonic()

    async def answer(call: ToolCall) -> ToolResult:
        if call.error:
            return ToolResult(call.id, call.error, error=True)
        if place(call.id) >= limits.max_calls:
            return ToolResult(call.id, too_many(limits.max_calls), error=True)
        async with room:
            tries, began = 1 if call.name in alone else limits.tries, time.monotonic()
            text, error = await _run(call, functions[call.name], limits, tries)
            took = round(began - start, 6), round(time.monotonic() - began, 6)
            shown = cut_text(text, limits.max_characters)
            left_out = max(0, len(text) - limits.max_characters)
            return ToolResult(call.id, shown, error, *took, left_out)

    results: list[ToolResult] = []
    for stage in stages(calls, alone):
        found = await asyncio.gather(*map(answer, stage), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
            results.append(one)
    return tuple(results)


def stages(calls: Sequence[ToolCall], alone: set[str]) -> list[list[ToolCall]]:
    """Calls that run side by side, stage after stage: neighbours that only look, or one that changes something.

    A call that is not run hinders nobody.
    """
    numbered = enumerate(calls)
    groups = groupby(
        numbered, lambda one: one[0] if one[1].name in alone and not one[1].error else -1
    )
    return [[call for _, call in group] for _, group in groups]


def cut_text(text: str, max_characters: int) -> str:
    """A text of at most about so many characters: its beginning and its end, and how much is left out."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[{left_out:,} characters are left out here]\n{text[-half:]}"


def _text(found: str) -> str:
    """A result without halves of characters, which no tokenizer takes."""
    return found.encode(errors="replace").decode()


async def _run(
    call: ToolCall, function: Function, limits: CallLimits, tries: int
) -> tuple[str, bool]:
    for number in range(tries):
        limit = asyncio.timeout(limits.seconds)
        try:
            async with limit:
                return _text(await function(arguments(call))), False
        except ToolError as error:
            return _text(f"{error}"), True
        except TimeoutError as error:
            if not limit.expired():
                return _text(f"no answer in time: {error}"), True
            return f"no answer within {limits.seconds:g} seconds", True
        except ToolUnavailable:
            if number == tries - 1:
                raise
            await asyncio.sleep(FIRST_PAUSE * 2**number)
    raise AssertionError("the last try returns or raises")
