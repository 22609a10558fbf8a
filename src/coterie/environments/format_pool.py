"""Pools of formats from files: JSONL with ``{"index", "format"}`` a line, or a YAML list of texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, StringConstraints, ValidationError

from coterie.config.plain import wrong_at
from coterie.config.text import read_json
from coterie.errors import UserError

MAX_LENGTH = 400
"""Characters of a format; it is an instruction of a line or two, shown with every prompt."""
SUFFIXES = (".jsonl", ".yaml", ".yml")


class FormatLine(BaseModel):
    """One line of a pool file."""

    index: int = 0
    """Which one it is; for people, the order of the lines counts."""
    format: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_LENGTH)
    ]
    """What an agent is asked to do, such as ``Write key = value pairs.``"""


def read_pool(file: Path) -> tuple[str, ...]:
    """The formats of a file, in its order.

    Raises ``UserError`` for a missing or empty file and, by its line, for a format that is broken,
    empty, too long, or there twice.
    """
    if file.suffix not in SUFFIXES:
        raise UserError(f"{file} is of an unknown format", f"give one of {', '.join(SUFFIXES)}")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the pool of formats {file} can't be read: {error}", _ADVICE) from error
    lines = _jsonl(text, file) if file.suffix == ".jsonl" else _yaml(text, file)
    pool: dict[str, int] = {}
    for number, raw in lines:
        try:
            one = FormatLine.model_validate({"format": raw} if isinstance(raw, str) else raw)
        except ValidationError as error:
            raise _broken(file, number, wrong_at(error.errors()[0])) from error
        if one.format in pool:
            raise _broken(file, number, f"the same format is in line {pool[one.format]}")
        pool[one.format] = number
    if not pool:
        raise UserError(f"the pool of formats {file} is empty", _ADVICE)
    return tuple(pool)


_ADVICE = (
    'give a JSONL file with lines such as {"index": 0, "format": "Write key = value pairs."} or a YAML '
    "list of texts; `coterie data prompt-pool` writes one"
)


def _broken(file: Path, line: int, why: object) -> UserError:
    return UserError(f"{file}, line {line} is broken: {why}", _ADVICE)


def _jsonl(text: str, file: Path) -> Iterator[tuple[int, object]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, read_json(line)
            except ValueError as error:
                raise _broken(file, number, f"no JSON ({error})") from error


def _yaml(text: str, file: Path) -> Iterator[tuple[int, object]]:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _broken(file, line, error.problem or "no YAML") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: of a date
        raise UserError(f"the pool of formats {file} can't be read: {error}", _ADVICE) from error
    if node is None:
        return
    if not isinstance(node, yaml.SequenceNode):
        raise _broken(file, node.start_mark.line + 1, "this is not a list")
    for item, value in zip(node.value, values, strict=True):
        yield item.start_mark.line + 1, value
