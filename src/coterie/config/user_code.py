"""Calls of code of a user: a time limit, and the state of the process that such code may change."""

import asyncio
import faulthandler
import inspect
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import partial
from math import isfinite, nan
from numbers import Real
from types import coroutine
from typing import Any

SECONDS = 300.0
"""Time limit of a call."""
GRACE = 30.0
"""Seconds after the limit until the process ends, if the code can't be interrupted."""


class OutOfTime(BaseException):
    """A call took too long. It is no ``Exception``, so that ``except Exception`` in a loop does not catch it."""

    __module__ = "builtins"  # so that messages name the class alone


@contextmanager
def user_code(seconds: float = 0.0) -> Iterator[None]:
    """Stop code of a user after ``seconds`` (0: never), then restore the state of the process (:func:`_state`).

    Only a main thread can be stopped, by a signal, which also interrupts sleeps and regular expressions. Code that
    no signal interrupts ends the process after ``GRACE``, with the traceback of all threads.
    """
    saved, has_ended = _state(), False
    is_timed = seconds and threading.current_thread() is threading.main_thread()

    def stop(*_: object) -> None:
        if not has_ended:
            raise OutOfTime(f"took more than {seconds:g} s")

    if is_timed:
        handler = signal.signal(signal.SIGALRM, stop)
        # The signal comes again each second, in case that the code catches the error.
        timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        # The code may use this timer itself. The second timer needs no signal.
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=2)
    try:
        yield
    finally:
        has_ended = True
        if is_timed:
            faulthandler.cancel_dump_traceback_later()
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(signal.SIGALRM, handler)
        # Setters are called only for values that changed, and not for a folder that was unknown.
        for (value, restore), (current, _) in zip(saved, _state(), strict=False):
            if value not in (current, ""):
                restore(value)


async def call(function: Callable[[], Any], seconds: float) -> Any:
    """Call a plain or asynchronous function of a user. Raises :class:`OutOfTime` after ``seconds``."""
    with user_code(seconds):
        value = function()
    if not inspect.isawaitable(value):
        return value
    # The signal limits the code itself, and the event loop's timeout its waits.
    try:
        async with asyncio.timeout(seconds) as limit:
            return await in_steps(value, seconds)
    except TimeoutError as error:
        if not limit.expired():  # raised by the function itself
            raise
        late = OutOfTime(f"took more than {seconds:g} s")
        raise late.with_traceback((error.__cause__ or error).__traceback__) from error


@coroutine
def in_steps(work: Awaitable[Any], seconds: float = 0.0) -> Generator[Any, Any, Any]:
    """Await work of a user as :func:`user_code`, except for its waits, in which the event loop runs other code."""
    steps = work.__await__()
    resume: Callable[[], Any] = partial(next, steps)
    # Only the code between two waits runs under the limit of user code.
    while True:
        with user_code(seconds):
            try:
                waits_for = resume()
            except StopIteration as end:
                return end.value
        try:
            resume = partial(steps.send, (yield waits_for))
        except BaseException as error:  # also a cancellation, which the work may handle
            resume = partial(steps.throw, error)


def as_number(value: object) -> float | None:
    """Convert a finite number, ``Decimal``, or scalar of NumPy or torch to float; return ``None`` for other values."""
    try:
        value = value.item() if hasattr(value, "item") else value
        figure = float(value) if isinstance(value, Real | Decimal) else nan
    except (TypeError, ValueError, RuntimeError, OverflowError):  # several elements, or too large
        return None
    return figure if isfinite(figure) else None


def _state() -> list[tuple[Any, Callable[[Any], object]]]:
    """Return what would break or change the next training step, each with its setter.

    Random numbers are not restored: a reward that draws would draw the same number each time, and runs do not use them.
    """
    folder = ""
    with suppress(FileNotFoundError):  # deleted
        folder = os.getcwd()
    torch: Any = sys.modules.get("torch")
    state: list[tuple[Any, Callable[[Any], object]]] = [(folder, os.chdir)]
    if torch is not None:  # runs import it before they call user code
        state += [
            (torch.is_grad_enabled(), torch.set_grad_enabled),
            (torch.get_default_dtype(), torch.set_default_dtype),
            (torch.empty(0).is_cpu, lambda _: torch.set_default_device(None)),  # the getter is slow
            (torch.get_deterministic_debug_mode(), torch.set_deterministic_debug_mode),
            (torch.get_num_threads(), torch.set_num_threads),
        ]
    return state
