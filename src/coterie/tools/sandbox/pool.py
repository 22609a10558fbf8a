"""Run answers and references concurrently, and grade answers. See the package's docstring."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from coterie.errors import UserError
from coterie.tools.sandbox.crew import SandboxFailed, WorkerPool
from coterie.tools.sandbox.inside.plain import NotPlain, Wire, encode
from coterie.tools.sandbox.results import CallResult, Graded, Mode, judge, read_record
from coterie.tools.sandbox.session import PythonSession, Sessions
from coterie.tools.sandbox.settings import SandboxSettings


class Sandbox:
    """Asynchronous context that runs Python written by a model. Many tasks may share it.

    References run in jails where no answer ever runs. Entering raises ``UserError`` on a machine that does not support
    jails.
    """

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self.settings = settings or SandboxSettings()
        self.answers = WorkerPool(self.settings)
        self.references = WorkerPool(self.settings)
        self.sessions = Sessions(self.settings)

    async def __aenter__(self) -> Self:
        try:
            await self._check()
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
                await self.sessions.workers.close()

    async def run(
        self,
        source: str,
        calls: Sequence[str],
        *,
        mode: Mode = "module",
        limits: SandboxSettings | None = None,
    ) -> list[CallResult]:
        """Run ``source`` and evaluate each of ``calls``; return the results in the same order.

        ``calls`` are expressions. The source runs again for each, so no call affects another. ``limits`` (seconds,
        memory, processes, files, results) replace the settings of the sandbox for this answer.
        """
        results, _ = await _results(self.answers, source, calls, mode, limits)
        return results

    async def run_apart(
        self, source: str, calls: Sequence[str], limits: SandboxSettings
    ) -> AsyncIterator[CallResult]:
        """Run each call like :meth:`run`, in a process tree and a folder of its own."""
        left = limits.total_seconds
        for call in calls:
            if left <= 0:
                yield CallResult(call, None, "timeout", "no time was left for this call")
                continue
            own = limits.model_copy(update={"total_seconds": left})
            (result,), seconds = await _results(self.answers, source, [call], "module", own)
            left -= seconds
            yield result

    def session(self, seed: int) -> AbstractAsyncContextManager[PythonSession]:
        """Open a session, whose cells share one state; ``seed`` is for its ``random``."""
        return self.sessions.open(seed)

    async def run_reference(
        self, source: str, calls: Sequence[str], *, mode: Mode = "module"
    ) -> list[CallResult]:
        """Run a reference solution like :meth:`run`."""
        results, _ = await _results(self.references, source, calls, mode)
        return results

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
        """Run the calls, and compare their results with ``expected``.

        ``expected`` are plain values (``inside.plain``), which stay on the host. ``tolerance`` is for floats;
        ``strict`` also compares types (``compare.same``). Raises ``UserError`` for tests that can't be graded.
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
        """Grade like :meth:`grade`, with expected values in plain form, such as :meth:`run_reference` returns."""
        if not calls or len(calls) != len(expected):
            raise _ungradable(len(calls), len(expected))
        records, _ = await self.answers.run(source, calls, legacy=mode == "legacy")

        def judge_all() -> Graded:
            tests = zip(map(read_record, calls, records), expected, strict=True)
            return Graded(tuple(judge(one, wire, mode, tolerance, strict) for one, wire in tests))

        return await asyncio.to_thread(judge_all)  # large values would block the event loop

    async def _check(self) -> None:
        """Raise ``UserError`` if a trivial answer does not run."""
        try:
            (result,) = await self.run("def f(x):\n    return x + 1", ["f(1)"])
            why = result.reason
        except SandboxFailed as error:
            why = str(error)
        if why:
            raise UserError(
                f"the sandbox starts but cannot run a trivial answer: {why}",
                "the interpreter's files must be readable by every user; see docs/howto/sandbox.md",
            )


async def _results(
    workers: WorkerPool,
    source: str,
    calls: Sequence[str],
    mode: Mode,
    limits: SandboxSettings | None = None,
) -> tuple[list[CallResult], float]:
    """Return the result of each call, and the seconds of all calls."""
    if not calls:
        return [], 0.0
    records, seconds = await workers.run(source, calls, legacy=mode == "legacy", limits=limits)
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
