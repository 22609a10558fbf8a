"""Calls of code of a user: a time limit, and the state of the process that such code may change."""

import asyncio
import faulthandler
import inspect
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
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
_TORCH = {
    "is_grad_enabled": "set_grad_enabled",
    "get_default_dtype": "set_default_dtype",
    "get_deterministic_debug_mode": "set_deterministic_debug_mode",
    "get_num_threads": "set_num_threads",
}
"""Getters and setters of PyTorch's state that would break or change the next training step."""


class OutOfTime(BaseException):
    """A call took too long. It is no ``Exception``, so that ``except Exception`` in a loop does not catch it."""

    __module__ = "builtins"  # so that messages name the class alone


class user_code:  # a class, since a generator costs a microsecond more at each of many calls
    """Context for code of a user: it stops the code after ``seconds`` (0: never), then restores the process.

    It restores the state in ``_TORCH``, the default device and the working directory. Random numbers are not
    restored: a reward that draws would draw the same number each time, and runs do not use them.

    Only a main thread can be stopped, by a signal, which also interrupts sleeps and regular expressions. Code that
    no signal interrupts ends the process after ``GRACE``, with the traceback of all threads.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        self.seconds = seconds if is_main else 0.0

    def __enter__(self) -> None:
        self._state, self._has_ended = _state(), False
        if self.seconds:
            self._handler = signal.signal(signal.SIGALRM, self._stop)
            # The signal comes again each second, in case that the code catches the error.
            self._timer = signal.setitimer(signal.ITIMER_REAL, self.seconds, 1.0)
            # The code may use this timer itself. The second timer needs no signal.
            faulthandler.dump_traceback_later(self.seconds + GRACE, exit=True, file=2)

    def __exit__(self, *_: object) -> None:
        self._has_ended = True
        if self.seconds:
            faulthandler.cancel_dump_traceback_later()
            signal.setitimer(signal.ITIMER_REAL, *self._timer)
            signal.signal(signal.SIGALRM, self._handler)
        if _state() != self._state:
            _restore(*self._state)

    def _stop(self, *_: object) -> None:
        if not self._has_ended:
            raise OutOfTime(f"took more than {self.seconds:g} s")


async def call(function: Callable[[], Any], seconds: float) -> Any:
    """Call a plain or asynchronous function of a user. Raises :class:`OutOfTime` after ``seconds``."""
    with user_code(seconds):
        value = function()
    if not inspect.isawaitable(value):
        return value
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
    """Await work of a user as :class:`user_code`, except for its waits, in which the event loop runs other code."""
    steps = work.__await__()
    resume: Callable[[], Any] = partial(next, steps)
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


def _state() -> tuple[list[Any], Any, str]:
    # Before PyTorch is imported there is nothing to restore. Runs import it before they call user code.
    torch: Any = sys.modules.get("torch")
    values = [] if torch is None else [getattr(torch, name)() for name in _TORCH]
    device = torch and torch.empty(0).device  # get_default_device is 20 times slower
    try:
        return values, device, os.getcwd()
    except FileNotFoundError:  # deleted
        return values, device, ""


def _restore(values: list[Any], device: Any, folder: str) -> None:
    torch: Any = sys.modules.get("torch")
    for setter, value in zip(_TORCH.values(), values, strict=False):
        getattr(torch, setter)(value)
    if device is not None and torch.empty(0).device != device:
        torch.set_default_device(None if device.type == "cpu" else device)
    if folder:
        os.chdir(folder)
