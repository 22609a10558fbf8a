"""Runs one answer's calls in a process that will be ended after it, and writes what they give to a pipe.

Everything here is within the answer's reach. That is sound because nothing here knows what is right: it says
what calls gave, as plain data, and whoever holds the expected values compares them elsewhere.
"""

import json
import os
import struct
import sys
from types import ModuleType
from typing import Any

from coterie.tools.sandbox.inside.plain import NotPlain, encode

NAME = "answer"
"""The module that an answer's definitions live in."""
LONGEST_MESSAGE = 300
"""Characters of an exception's text."""


def run(source: str, calls: list[str], first: int, legacy: bool, pipe: int) -> None:
    """Write a frame when the source has run, then one for each of ``calls[first:]``.

    Each call starts from definitions of its own: the source is run again, so that a call can't spoil the next.
    """
    try:
        code = compile(source, f"<{NAME}>", "exec")
        spaces = _defined(code, legacy)
    except BaseException as error:
        return send(pipe, _failure(error))
    send(pipe, {"loaded": True})
    for index in range(first, len(calls)):
        try:
            if index > first:
                spaces = _defined(code, legacy)
            value = eval(calls[index], *spaces)
            told: dict[str, Any] = {"value": encode(value)}
        except BaseException as error:
            told = _failure(error)
        send(pipe, told)


def _defined(code: Any, legacy: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the source; the globals and locals for its calls.

    ``legacy``: two namespaces, so that functions don't see each other, themselves, or imports.
    """
    module = ModuleType(NAME)
    sys.modules[NAME] = module
    spaces = (vars(module), {} if legacy else vars(module))
    exec(code, *spaces)
    return spaces


def _failure(error: BaseException) -> dict[str, Any]:
    kind = "not plain" if type(error) is NotPlain else "error"
    try:
        text = str(error)[:LONGEST_MESSAGE]
    except BaseException:
        text = ""
    return {"failed": kind, "why": f"{type(error).__name__}: {text}"}


def send(pipe: int, told: dict[str, Any]) -> None:
    """Write one frame: 4 bytes length, JSON."""
    data = json.dumps(told).encode()
    data = struct.pack(">I", len(data)) + data
    while data:
        data = data[os.write(pipe, data) :]
