"""Code of a user: what it changes is restored, and what does not return is stopped."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from coterie.config.user_code import OutOfTime, call, user_code


def leave_a_deleted_folder() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)


CHANGES: dict[str, Callable[[], object]] = {
    "gradients": lambda: torch.set_grad_enabled(False),
    "dtype": lambda: torch.set_default_dtype(torch.bfloat16),
    "device": lambda: torch.set_default_device("meta"),
    "determinism": lambda: torch.use_deterministic_algorithms(True),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "folder": lambda: os.chdir("/"),
    "deleted folder": leave_a_deleted_folder,
    "alarm": lambda: signal.alarm(9),
    "handler": lambda: signal.signal(signal.SIGALRM, signal.SIG_IGN),
}


def state() -> list[object]:
    return [torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device(),
            torch.get_deterministic_debug_mode(), torch.get_num_threads(), os.getcwd(),
            signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("is_async", [False, True])
def test_what_code_of_a_user_changes_is_restored(
    change: Callable[[], object], is_async: bool
) -> None:
    before, inside = state(), []

    async def work() -> None:
        change()
        inside.append(state)
        await asyncio.sleep(0)

    asyncio.run(call(work if is_async else change, 60.0))
    assert state() == before
    with pytest.raises(KeyError), user_code(60.0):
        raise KeyError(change())
    assert state() == before


def test_concurrent_calls_do_not_restore_each_others_changes() -> None:
    seen = []

    async def change(own: float, others: float) -> None:
        torch.set_grad_enabled(False)
        await asyncio.sleep(own)
        seen.append(torch.is_grad_enabled())
        await asyncio.sleep(others)

    async def together() -> None:
        await asyncio.gather(*(call(partial(change, n / 100, n / 50), 60.0) for n in range(4)))

    asyncio.run(together())
    assert torch.is_grad_enabled() and seen == [True] * 4


def test_an_error_of_the_code_and_a_cancellation_reach_it() -> None:
    heard = []

    async def work() -> float:
        try:
            await asyncio.sleep(9)
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise
        return 1.0

    async def slow() -> None:
        raise TimeoutError("its own")

    async def cancel() -> None:
        task = asyncio.create_task(call(work, 60.0))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
    assert heard == ["cancelled"]
    with pytest.raises(TimeoutError, match="its own"):
        asyncio.run(call(slow, 60.0))
    with pytest.raises(OutOfTime):
        asyncio.run(call(work, 0.01))


def test_code_that_no_signal_interrupts_ends_the_process(tmp_path: Path) -> None:
    code = "from itertools import repeat\ndef endless(): sum(repeat(0))\n"
    (tmp_path / "endless.py").write_text(code)
    lines = (
        "from coterie.config import user_code as u; from endless import endless; u.GRACE = 0.2",
        "with u.user_code(0.1): endless()",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr and 'endless.py", line 2 in endless' in ended.stderr
