"""JSONL files that grow by a line at a time, and are continued after a process was killed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.config.folders import make_folder, reason_of
from coterie.errors import UserError


def resume_lines(file: Path) -> bool:
    """Cut half a line off the end of a file, or make its folder; whether it has lines.

    Raises ``UserError`` for a name that does not end in ``.jsonl``, and a place that can't be written to.
    """
    if file.suffix != ".jsonl":
        raise UserError(f"{file} can't be added to", "give a file whose name ends in .jsonl")
    make_folder(file.parent)
    if not file.exists():
        return False
    try:
        with file.open("r+b") as opened:
            written = opened.read()
    except OSError as error:
        raise UserError(
            f"{file} can't be added to: {reason_of(error)}", "give another file"
        ) from error
    whole = written[: written.rfind(b"\n") + 1]
    if whole != written:
        file.write_bytes(whole)
    return bool(whole.strip())


def append_line(file: Path, fields: Mapping[str, Any]) -> None:
    """Add one object; it is on disk when this returns."""
    with file.open("a", encoding="utf-8", newline="\n") as opened:
        opened.write(json.dumps(fields, ensure_ascii=False) + "\n")
