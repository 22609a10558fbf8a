"""Python sessions and dialogues with an agent that has one, for tests."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from coterie.environments.acting import write_action, write_answer
from coterie.environments.plans.python_maths import PythonMaths
from coterie.environments.protocol import Grade, Shared, State
from coterie.record.tree import Task
from coterie.tools.sandbox.pool import CellResult, Sandbox
from coterie.tools.sandbox.worker import SandboxSettings
from tests.helpers.converse import converse

ONE_WORKER = SandboxSettings(workers=1)
QUICK = SandboxSettings(
    workers=1, wall_seconds=0.6, cpu_seconds=0.3, memory_mib=200, shown_characters=200
)


def run_in_sandbox(
    work: Callable[[Sandbox], Coroutine[Any, Any, Any]], settings: SandboxSettings = ONE_WORKER
) -> Any:
    async def run() -> Any:
        async with Sandbox(settings) as sandbox:
            return await work(sandbox)

    return asyncio.run(asyncio.wait_for(run(), 120))


def run_cells(
    *cells: str, settings: SandboxSettings = ONE_WORKER, seed: int = 0
) -> list[CellResult]:
    async def work(sandbox: Sandbox) -> list[CellResult]:
        async with sandbox.session(seed) as session:
            return [await session.run(cell) for cell in cells]

    found: list[CellResult] = run_in_sandbox(work, settings)
    return found


def cell_texts(*cells: str, settings: SandboxSettings = ONE_WORKER, seed: int = 0) -> list[str]:
    return [found.text for found in run_cells(*cells, settings=settings, seed=seed)]


def play_python(environment: PythonMaths, task: Task, *said: str) -> tuple[State, Grade | None]:
    found: tuple[State, Grade | None] = run_in_sandbox(
        lambda sandbox: converse(environment, task, said, Shared(sandbox))
    )
    return found


def observed_texts(state: State) -> list[str]:
    return [turn.text for turn in state.turns if turn.speaker.name == "environment"]


def act(cell: str) -> str:
    return write_action(cell)


def answer(text: object) -> str:
    return write_answer(str(text))
