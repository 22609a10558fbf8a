"""Ctrl-C while a stage samples and trains: the first one saves and stops, the second one ends the process."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from coterie.errors import UserError
from coterie.progress import Progress

INTERRUPTED = 130
"""Exit status after Ctrl-C."""
TERMINATED = threading.Event()
"""Set by SIGTERM and SIGHUP, which else act as Ctrl-C (``coterie.cli.app``). No stage begins after it (``runs.loop``):
Python drops the ``KeyboardInterrupt`` of a signal that arrives in a callback, such as ``__del__``."""


class Interruption:
    """Handler of Ctrl-C in a block of the current task, which then ends with ``KeyboardInterrupt``.

    The first Ctrl-C saves a checkpoint:

    * while the task waits for samples: at once, and then cancels the task;
    * in an update that may be left (``can_leave``): raises there, and saves at the end of the block;
    * in any other update: after the update, and then cancels the task.

    The second Ctrl-C ends the process without any cleanup.

    Args:
        save: Saves the newest state. It is called before sessions and servers are closed, which may take long.
        can_leave: Returns True if work that blocks the event loop may be left now.
        progress: Receives messages.
    """

    def __init__(
        self, save: Callable[[], None], can_leave: Callable[[], bool], progress: Progress
    ) -> None:
        self._save, self._can_leave, self._progress = save, can_leave, progress
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        # Ctrl-C was pressed, the checkpoint is written, an update is running.
        self._requested = self._saved = self._working = False
        self._before = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> "Interruption":
        with suppress(ValueError):  # only the main thread handles signals
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        # The handler stays, so that a second Ctrl-C ends the process while servers are closed.
        if self._requested:
            self._save_once()
            raise KeyboardInterrupt
        with suppress(ValueError):
            signal.signal(signal.SIGINT, self._before)
        # Their object holds this handler. As a cycle, it and its models would live until a full garbage collection.
        del self._save, self._can_leave

    def working(self, works: bool) -> None:
        """Note that an update begins (``works``) or has ended; weights can't be saved in between."""
        # Ctrl-C came before this update: stop here, while the weights belong to a whole step.
        if works and self._requested:
            raise KeyboardInterrupt
        self._working = works
        # Ctrl-C came during the update. It is complete now, so the weights can be saved.
        if self._requested:
            self._loop.call_soon(self._stop)

    def _handle(self, *_: object) -> None:
        # Closing servers or saving may hang, so the second Ctrl-C leaves without any cleanup.
        if self._requested:
            self._progress.close()  # shows the cursor again
            os._exit(INTERRUPTED)
        self._requested = True
        # Empty if the update, if any, need not be waited for.
        when = "" if not self._working or self._can_leave() else " when this step is trained"
        self._progress.say(f"saving a checkpoint{when}; press Ctrl-C again to end at once")
        # The update blocks the event loop, so only an exception can stop it.
        if self._working and not when:
            raise KeyboardInterrupt
        # A signal may arrive at any line of code, so the event loop stops the task later.
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        """Save, then cancel the task. During an update nothing is done, since :meth:`working` calls this at its end."""
        if self._task is not None and not self._working and not self._saved:
            self._save_once()
            self._task.cancel()

    def _save_once(self) -> None:
        if not self._saved:
            self._saved = True
            try:
                self._save()
            except (OSError, UserError) as error:
                self._progress.say(f"the checkpoint can't be saved: {error}")
