"""Runs one answer's calls in a process that will be ended after it, and writes what they give to a pipe.

Everything here is within the answer's reach. That is sound because nothing here knows what is right: it says
what calls gave, as plain data, and whoever holds the expected values compares them elsewhere.
"""

import json
import os
import struct
import sys
from types import ModuleType
from typing import Any, NoReturn

from coterie.tools.sandbox.inside import confine
from coterie.tools.sandbox.inside.job import Job, write_all
from coterie.tools.sandbox.inside.plain import NotPlain, TooLarge, encode

NAME = "answer"
"""The module that an answer's definitions live in."""
MAX_MESSAGE = 300
"""Characters of what is told of an exception."""
FIRST = struct.Struct(">I")
"""What stands before a job: its first call that is to be run."""
CONFINED = b'{"confined": true}'
"""Told before the answer's first line runs, so no answer can keep it back: what is told later is the answer's own."""
LOADED = b'{"loaded": true}'
RESULTS = 3
"""The descriptor of the pipe, and the only one left but those of ``/dev/null``."""
OURS = 2
"""Our own processes in the jail, which count too where the answer's user is ours."""


def answer(job: int, results: int) -> NoReturn:
    """What the forked process does: read the job, confine, run, end. Never returns."""
    try:
        os.setsid()  # a signal to its group is for its own processes only
        told = os.pread(job, os.fstat(job).st_size, 0)
        os.dup2(results, RESULTS)
        os.closerange(RESULTS + 1, 256)
        open_nothing()
        _confined(Job(**json.loads(told[FIRST.size :])), *FIRST.unpack_from(told))
    finally:
        os._exit(0)


def open_nothing() -> None:
    """A ``/dev/null`` of its own: flags, locks and owners of an open file stay with all who share it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for file in range(RESULTS):
        os.dup2(nowhere, file)
    os.close(nowhere)


def _confined(job: Job, first: int) -> None:
    try:
        confine.limits(
            memory_mib=job.memory_mib,
            file_mib=job.file_mib,
            processes=job.processes + OURS * (os.getuid() == job.uid),
            cpu_seconds=int(job.cpu_seconds * (len(job.calls) - first + 1)) + 1,
        )
        confine.give_up_rights(job.uid, job.gid)
    except OSError as error:
        return _send(_json({"failed": "open", "why": str(error)}))
    _send(CONFINED)
    return run(job, first)


def run(job: Job, first: int) -> None:
    """Write a frame when the source has run, then one for each call from ``first`` on.

    Each call starts from definitions of its own: the source is run again, so that a call can't spoil the next.
    """
    try:
        code = compile(job.source, f"<{NAME}>", "exec")
        spaces = _defined(code, job.legacy)
    except BaseException as error:
        return _send(_failure(error))
    _send(LOADED)
    for index in range(first, len(job.calls)):
        try:
            if index > first:
                spaces = _defined(code, job.legacy)
            value = eval(job.calls[index], *spaces)
            told = _json({"value": encode(value, job.max_record)})
            if len(told) > job.max_record:
                raise TooLarge(f"{len(told):,} bytes, and {job.max_record:,} are allowed")
        except BaseException as error:
            told = _failure(error)
        _send(told)


def _defined(code: Any, legacy: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the source; the globals and locals for its calls.

    ``legacy``: two namespaces, so that functions don't see each other, themselves, or imports.
    """
    module = ModuleType(NAME)
    sys.modules[NAME] = module
    spaces = (vars(module), {} if legacy else vars(module))
    exec(code, *spaces)
    return spaces


def _failure(error: BaseException) -> bytes:
    try:
        text = str(error)[:MAX_MESSAGE]
    except BaseException:
        text = ""
    kind = _KINDS.get(type(error), "error")
    why = text if kind == "output" else f"{type(error).__name__}: {text}"
    return _json({"failed": kind, "why": why[:MAX_MESSAGE]})


_KINDS: dict[type, str] = {NotPlain: "not plain", TooLarge: "output"}


def _json(told: dict[str, Any]) -> bytes:
    return json.dumps(told).encode()


def _send(told: bytes) -> None:
    """Write one frame: 4 bytes length, JSON."""
    write_all(RESULTS, struct.pack(">I", len(told)) + told)
