"""Run one answer's calls in a process of its own, and write their results to a pipe.

The answer can reach everything here. That is safe because no expected value is here: the process reports results as
plain data, and the host compares them.
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
"""Name of the module that holds an answer's definitions."""
MAX_MESSAGE = 300
"""Characters of an exception's message."""
FIRST = struct.Struct(">I")
"""Header of a job: the index of the first call to run."""
CONFINED = b'{"confined": true}'
"""Sent before the answer's first line runs, so no answer can suppress it. Later frames may come from the answer."""
LOADED = b'{"loaded": true}'
RESULTS = 3
"""Descriptor of the pipe; all others are ``/dev/null``."""
OURS = 2
"""Number of our own processes in the jail; they count against the limit if the answer runs as our user."""


def answer(job: int, results: int) -> NoReturn:
    """Read the job, confine this process, run the calls and exit. Never returns."""
    try:
        os.setsid()  # a signal to its group is for its own processes only
        content = os.pread(job, os.fstat(job).st_size, 0)
        os.dup2(results, RESULTS)
        os.closerange(RESULTS + 1, 256)
        open_nothing()
        _run_confined(Job(**json.loads(content[FIRST.size :])), *FIRST.unpack_from(content))
    finally:
        os._exit(0)


def open_nothing() -> None:
    """Open a private ``/dev/null``, since processes share the flags, locks and owner of an inherited file."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for file in range(RESULTS):
        os.dup2(nowhere, file)
    os.close(nowhere)


def _run_confined(job: Job, first: int) -> None:
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

    The source runs again before each call, so that no call changes the definitions of the next.
    """
    try:
        code = compile(job.source, f"<{NAME}>", "exec")
        spaces = _define(code, job.legacy)
    except BaseException as error:
        return _send(_failure(error))
    _send(LOADED)
    for index in range(first, len(job.calls)):
        try:
            if index > first:
                spaces = _define(code, job.legacy)
            value = eval(job.calls[index], *spaces)
            frame = _json({"value": encode(value, job.max_record)})
            if len(frame) > job.max_record:
                raise TooLarge(f"{len(frame):,} bytes, and {job.max_record:,} are allowed")
        except BaseException as error:
            frame = _failure(error)
        _send(frame)


def _define(code: Any, legacy: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the source; return the globals and locals for its calls.

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


def _json(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode()


def _send(frame: bytes) -> None:
    """Write one frame: 4 bytes length, JSON."""
    write_all(RESULTS, struct.pack(">I", len(frame)) + frame)
