"""Report of errors in plug-in code with the plug-in, file and line, without a traceback.

Commands and trials run inside :func:`plugin_errors`. Errors of an environment during an episode only fail the item
(``coterie.environments.checks``).
"""

import sqlite3
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from coterie.config.folders import FULL
from coterie.config.plugins import Plugin, is_installed, used
from coterie.errors import UserError


@contextmanager
def plugin_errors() -> Iterator[None]:
    """Convert errors raised through plug-in code into a ``UserError`` that names the plug-in and the line."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        plugin = _owner(error)
        if plugin is None:
            raise
        raise UserError(
            f"{plugin} failed: {place(error, plugin.modules)}: {first_line(error)}{_called(error)}",
            "fix the plug-in or remove it",
        ) from error


def place(error: BaseException, modules: Collection[str]) -> str:
    """Return the file and line of an error: the innermost in these modules or in files of the user that they call.

    Without any of these modules in the traceback, return where the error was raised.
    """
    places = list(traceback.walk_tb(error.__traceback__))
    own = [n for n, (frame, _) in enumerate(places) if _module(frame) in modules]
    last = own[-1] if own else len(places) - 1
    own_files = [n for n in range(last, len(places)) if not is_installed(_file(places[n][0]))]
    frame, line = places[own_files[-1] if own_files else last]
    return f"{_file(frame)}, line {line}"


def first_line(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error))
    return text.strip().partition("\n")[0]


def _called(error: BaseException) -> str:
    """Return the line of coterie that raised an error, as text; empty if another module raised it."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f" (raised in {_file(frame)}, line {line})" if _is_coterie(frame) else ""


def _owner(error: BaseException) -> Plugin | None:
    """Return the plug-in whose code is innermost in an error's traceback, if any."""
    if isinstance(error, sqlite3.OperationalError) or getattr(error, "errno", None) in FULL:
        return None
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if isinstance(error, OSError) and _is_coterie(frame):
            return None  # an error of the machine in coterie's own code
        owners = [plugin for plugin in used() if _module(frame) in plugin.modules]
        if owners:
            name = frame.f_code.co_qualname.partition(".")[0]
            return next((plugin for plugin in owners if plugin.has(name)), owners[0])
    return None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _is_coterie(frame: FrameType) -> bool:
    return _module(frame).partition(".")[0] == "coterie"
