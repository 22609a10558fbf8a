"""Whose an error is that was raised in a plug-in's own code: a person reads that, and the line, and no traceback.

Commands and trials do their work in :func:`blamed`. Errors that an environment raises while it is played fail an item
and no more (``coterie.environments.faults``).
"""

import sqlite3
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from coterie.config.folders import FULL
from coterie.config.plugins import Found, is_installed, used
from coterie.errors import UserError


@contextmanager
def blamed() -> Iterator[None]:
    """Turns an error on whose way there is code of a plug-in into a ``UserError`` that says whose, and where."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        found = _owner(error)
        if found is None:
            raise
        raise UserError(
            f"{found} failed: {place(error, found.modules)}: {first_line(error)}{_called(error)}",
            "correct the plug-in, or leave it out",
        ) from error


def place(error: BaseException, modules: Collection[str]) -> str:
    """The file and the line of these modules in which an error was raised, or of what lies beside them and they called.

    If these modules have no part in it, it is where the error was raised.
    """
    places = list(traceback.walk_tb(error.__traceback__))
    own = [n for n, (frame, _) in enumerate(places) if _module(frame) in modules]
    last = own[-1] if own else len(places) - 1
    nearer = [n for n in range(last, len(places)) if not is_installed(_file(places[n][0]))]
    frame, line = places[nearer[-1] if nearer else last]
    return f"{_file(frame)}, line {line}"


def first_line(error: BaseException) -> str:
    said = "".join(traceback.format_exception_only(error))
    return said.strip().partition("\n")[0]


def _called(error: BaseException) -> str:
    """The line of coterie that raised an error, if one did."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f" (raised in {_file(frame)}, line {line})" if _is_coterie(frame) else ""


def _owner(error: BaseException) -> Found | None:
    """The plug-in whose code is the innermost of all plug-ins' on an error's way; ``None`` if there is none."""
    if isinstance(error, sqlite3.OperationalError) or getattr(error, "errno", None) in FULL:
        return None
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if isinstance(error, OSError) and _is_coterie(frame):
            return None  # the machine's, met by our own work for the plug-in
        owners = [found for found in used() if _module(frame) in found.modules]
        if owners:
            named = frame.f_code.co_qualname.partition(".")[0]
            return next((one for one in owners if one.has(named)), owners[0])
    return None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _is_coterie(frame: FrameType) -> bool:
    return _module(frame).partition(".")[0] == "coterie"
