"""Error messages of the command line: user errors are printed without a traceback."""

import errno
import re
import sqlite3
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text
from typer.exceptions import TyperException

from coterie.config.folders import FULL
from coterie.config.plugins import plugin_errors
from coterie.errors import UserError

USER_ERROR = 2
"""Exit status after a user error."""
INTERRUPTED = 130
"""Exit status after Ctrl-C."""
PLACES = (
    *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.ELOOP, errno.ENODEV, errno.ENXIO),
)
"""Errors of a path that the user named."""
DISK = (errno.EIO, errno.EFBIG, errno.EROFS, errno.ESTALE)
"""Errors of a disk, which may lack a file name."""
WORDING = {
    "Input should be": "must be",
    "Value error, ": "",
    "integer": "whole number",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
_HELP = "`coterie COMMAND --help` has examples"


def run_app(app: Callable[..., Any], console: Console) -> None:
    """Run a command. User errors are printed and exit with status 2."""
    try:
        with plugin_errors():
            status = app(standalone_mode=False)
    except UserError as error:
        _refuse(console, error.what, error.todo)
    except TyperException as error:
        _refuse_usage(console, error)
    except OSError as error:
        _refuse_os(console, error)
    except sqlite3.OperationalError as error:
        _refuse(console, f"SQLite: {error}", "check the disk and the permissions of the run folder")
    if status == INTERRUPTED:
        console.print("stopped; the same command resumes where this left off")
    if isinstance(status, int) and status:
        sys.exit(status)


def _refuse(console: Console, what: str, todo: str) -> NoReturn:
    console.print(Text.assemble(("error:", "bold red"), " ", what))
    if todo:
        console.print(Text.assemble("  ", ("->", "bold"), " ", todo))
    sys.exit(USER_ERROR)


def _refuse_os(console: Console, error: OSError) -> NoReturn:
    """Report a full disk or an unusable path. Raises other errors again, since they are bugs."""
    if error.errno in FULL:
        _refuse(
            console,
            f"the disk is full{f' (writing {error.filename})' if error.filename else ''}; "
            "finished work is kept",
            "free some space and repeat the command; it resumes where it stopped",
        )
    if error.errno in DISK:
        _refuse(
            console,
            f"can't write or read {error.filename or 'a file'}: {error.strerror}",
            "check the disk and its file size limit, then repeat the command",
        )
    if error.errno not in PLACES or error.filename is None:
        raise error
    _refuse(
        console,
        f"{error.filename}: {error.strerror}",
        "check the path and its permissions, or give another path",
    )


def _refuse_usage(console: Console, error: TyperException) -> NoReturn:
    text = error.format_message()
    if text.lstrip().startswith("Usage:"):  # a group without a command prints its help
        print(text)
        sys.exit(error.exit_code)
    context = getattr(error, "ctx", None)
    help_ = f"`{context.command_path} --help` has examples" if context else _HELP
    if text.startswith("No such option: --"):
        help_ = f"settings are written as key=value, without dashes; {help_}"
    _refuse(console, _plain(text), help_)


def _plain(text: str) -> str:
    """Reword a validator's message about an option."""
    text = re.sub(r"Input should be a valid (\w+).*", r"must be a valid \1", text)
    for old, new in WORDING.items():
        text = text.replace(old, new)
    return text
