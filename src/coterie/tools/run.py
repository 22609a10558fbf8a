"""Run the calls of one turn, with limits on concurrency, time and the length of results.

Read-only calls run concurrently. A call that changes the environment (``Tool.alone``) runs alone, in order. Results
have the order of the calls. The result of an invalid call is its error.
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
"""Function of a tool, from arguments to a text."""
FIRST_PAUSE = 0.2
"""Seconds before the second attempt of a call; the pause doubles."""


class ToolError(Exception):
    """A call failed. The agent sees the message: a missing page, a wrong argument."""


class ToolUnavailable(EngineError):
    """A tool is unavailable through no fault of the agent. The item fails, instead of a score of 0."""


class CallLimits(Settings):
    """Limits of calls."""

    max_calls: int = key(16, "Calls per message; further calls return an error.", ge=1)
    width: int = key(8, "Concurrent calls.", ge=1)
    seconds: float = key(
        30.0, "Time limit of a call in seconds; a late call returns an error.", gt=0
    )
    tries: int = key(
        3,
        "Attempts of a call whose tool is unavailable; a call that changes the environment has one.",
        ge=1,
    )
    max_characters: int = key(8000, "Characters of a result; a longer one loses its middle.",
                              ge=100)  # fmt: skip


async def run_calls(
    calls: Sequence[ToolCall],
    tools: Sequence[Tool],
    functions: Mapping[str, Function],
    limits: CallLimits,
) -> tuple[ToolResult, ...]:
    """Run checked calls; return one result for each, in order. ``functions`` are by tool name.

    Raises :class:`ToolUnavailable` after the concurrent calls have ended.
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
            result = cut_text(text, limits.max_characters)
            left_out = max(0, len(text) - limits.max_characters)
            return ToolResult(call.id, result, error, *took, left_out)

    results: list[ToolResult] = []
    for stage in stages(calls, alone):
        for one in await asyncio.gather(*map(answer, stage), return_exceptions=True):
            if isinstance(one, BaseException):
                raise one
            results.append(one)
    return tuple(results)


def stages(calls: Sequence[ToolCall], alone: set[str]) -> list[list[ToolCall]]:
    """Group calls into stages: adjacent read-only calls, or one call that changes something.

    Calls with an error count as read-only.
    """
    groups = groupby(
        enumerate(calls), lambda one: one[0] if one[1].name in alone and not one[1].error else -1
    )
    return [[call for _, call in group] for _, group in groups]


def cut_text(text: str, max_characters: int) -> str:
    """Return at most about ``max_characters`` of a text: its beginning, a note and its end."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[{left_out:,} characters are left out here]\n{text[-half:]}"


def _text(result: str) -> str:
    """Replace lone surrogates, which tokenizers refuse."""
    return result.encode(errors="replace").decode()


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
