"""JSONL files of published systems: their lines, with the numbers that name a broken one."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from coterie.config.folders import whole_file
from coterie.config.plain import wrong_at
from coterie.config.text import read_json
from coterie.errors import UserError

L = TypeVar("L", bound=BaseModel)
NEW = "an import makes a new run: give another --folder"
"""What to do where an import's folder is there already."""


@dataclass(frozen=True, slots=True)
class LineFile:
    """A file of one object a line, which can be read as often as is needed, a line at a time."""

    path: Path

    def objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(number, object) of each line that isn't blank. Raises ``UserError`` that names a broken one."""
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise UserError(
                f"{self.path} can't be read: {error.strerror}", "check the path"
            ) from error
        with file:
            for number, data in enumerate(file, 1):
                if data.strip():
                    yield number, self.parsed(number, data)

    def parsed(self, number: int, data: bytes) -> dict[str, Any]:
        """The object of a line; ``UserError`` if it holds none."""
        try:
            fields = read_json(data.decode("utf-8-sig"))
        except ValueError as error:
            raise self.broken(number, f"not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise self.broken(number, "not a JSON object")
        return fields

    def validated(self, number: int, fields: Mapping[str, Any], kind: type[L]) -> L:
        """The object as a line of a kind; ``UserError`` with the first thing that is wrong."""
        try:
            return kind.model_validate(fields)
        except ValidationError as error:
            raise self.broken(number, wrong_at(error.errors()[0])) from error

    def broken(self, number: int, reason: str) -> UserError:
        """The error that names a line."""
        return UserError(
            f"{self.path}, line {number}: {reason}", "correct the line; nothing was imported"
        )


def write_objects(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write a new file of lines; it appears when it is whole. ``UserError`` if it can't be made."""
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
