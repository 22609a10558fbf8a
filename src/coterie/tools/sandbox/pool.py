"""The sandbox: runs answers and references, several at a time, and grades answers. See the package's docstring."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from coterie.errors import UserError
from coterie.tools.sandbox.crew import Crew, SandboxFailed
from coterie.tools.sandbox.inside.plain import NotPlain, Wire, encode
from coterie.tools.sandbox.results import CallResult, Graded, Mode, judge, read_record
from coterie.tools.sandbox.session import PythonSession, Sessions
from coterie.tools.sandbox.settings import SandboxSettings


class Sandbox:
    """Runs Python that a model wrote. An asynchronous context: inside it workers are up; may be used by many tasks.

    References, which know what is right, run in jails where no answer ever does. Entering raises ``UserError``, with
    what to do, on a machine that can't contain processes.
    """

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self.settings = settings or SandboxSettings()
        self.answers = Crew(self.settings)
        self.references = Crew(self.settings)
        self.sessions = Sessions(self.settings)

    async def __aenter__(self) -> Self:
        try:
            await self._prove()
        except BaseException:
            await self.answers.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.answers.close()
        finally:
            try:
                await self.references.close()
            finally:
                await self.sessions.crew.close()

    async def run(
        self,
        source: str,
        calls: Sequence[str],
        *,
        mode: Mode = "module",
        limits: SandboxSettings | None = None,
    ) -> list[CallResult]:
        """What each call gives after ``source`` has been run, in the order of the calls.

        ``calls`` are expressions. Each sees definitions of its own, so none can spoil another. ``limits`` are those of
        this answer (seconds, memory, processes, files, results), in the place of the sandbox's own.
        """
        found, _ = await _results(self.answers, source, calls, mode, limits)
        return found

    async def run_apart(
        self, source: str, calls: Sequence[str], limits: SandboxSettings
    ) -> AsyncIterator[CallResult]:
        """As :meth:`run`, with a process tree and a folder for each call, which sees none of the others."""
        left = limits.total_seconds
        for call in calls:
            if left <= 0:
                yield CallResult(call, None, "timeout", "no time was left for this call")
                continue
            own = limits.model_copy(update={"total_seconds": left})
            (found,), seconds = await _results(self.answers, source, [call], "module", own)
            left -= seconds
            yield found

    def session(self, seed: int) -> AbstractAsyncContextManager[PythonSession]:
        """A session, whose cells share one state (``session``); ``seed`` is that of ``random`` in it."""
        return self.sessions.open(seed)

    async def run_reference(
        self, source: str, calls: Sequence[str], *, mode: Mode = "module"
    ) -> list[CallResult]:
        """As :meth:`run`, for a source that says what is right."""
        found, _ = await _results(self.references, source, calls, mode)
        return found

    async def grade(
        self,
        source: str,
        calls: Sequence[str],
        expected: Sequence[Any],
        *,
        mode: Mode = "module",
        tolerance: float = 0.0,
        strict: bool = False,
    ) -> Graded:
        """Run the calls, and compare what they give with ``expected``.

        ``expected`` are plain values (``inside.plain``); they stay here. ``tolerance`` is for floats, ``strict``
        compares types too (``compare.same``). Raises ``UserError`` for tests that can't be graded.
        """
        if len(calls) != len(expected):
            raise _ungradable(len(calls), len(expected))
        wires = [_plain(call, value) for call, value in zip(calls, expected, strict=True)]
        return await self.grade_wires(
            source, calls, wires, mode=mode, tolerance=tolerance, strict=strict
        )

    async def grade_wires(
        self,
        source: str,
        calls: Sequence[str],
        expected: Sequence[Wire],
        *,
        mode: Mode = "module",
        tolerance: float = 0.0,
        strict: bool = False,
    ) -> Graded:
        """As :meth:`grade`, with the plain forms of the values, such as :meth:`run_reference` gives."""
        if not calls or len(calls) != len(expected):
            raise _ungradable(len(calls), len(expected))
        records, _ = await self.answers.run(source, calls, legacy=mode == "legacy")

        def judged() -> Graded:
            tests = zip(map(read_record, calls, records), expected, strict=True)
            return Graded(tuple(judge(one, wire, mode, tolerance, strict) for one, wire in tests))

        return await asyncio.to_thread(judged)  # large values take long, and others are waiting

    async def _prove(self) -> None:
        """Refuse a sandbox in which the simplest answer doesn't run."""
        try:
            (result,) = await self.run("def f(x):\n    return x + 1", ["f(1)"])
            why = result.reason
        except SandboxFailed as error:
            why = str(error)
        if why:
            raise UserError(
                f"the sandbox starts but runs nothing: {why}",
                "the interpreter's files must be readable by every user; see docs/howto/sandbox.md",
            )


async def _results(
    crew: Crew,
    source: str,
    calls: Sequence[str],
    mode: Mode,
    limits: SandboxSettings | None = None,
) -> tuple[list[CallResult], float]:
    """What each call gives, and the seconds that all took."""
    if not calls:
        return [], 0.0
    records, seconds = await crew.run(source, calls, legacy=mode == "legacy", limits=limits)
    return await asyncio.to_thread(lambda: list(map(read_record, calls, records))), seconds


def _ungradable(calls: int, expected: int) -> UserError:
    return UserError(
        f"{calls} calls and {expected} expected values can't be graded",
        "give at least one call, and one value for each",
    )


def _plain(call: str, value: object) -> Wire:
    try:
        return encode(value)
    except NotPlain as error:
        raise UserError(
            f"the expected value of `{call}` can't be compared: {error}", "give plain values"
        ) from error
