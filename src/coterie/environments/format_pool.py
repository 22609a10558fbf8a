"""Reader of format pools: rows of ``{"index", "format"}`` (JSONL, JSON, Parquet), or a YAML list of texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, StringConstraints, ValidationError

from coterie.config.plain import wrong_at
from coterie.datasets.files import numbered
from coterie.errors import UserError

MAX_LENGTH = 400
"""Maximum characters of a format, which is a short instruction in every prompt."""


class FormatLine(BaseModel):
    """One line of a pool file."""

    index: int = 0
    """Index for readers of the file; only the order of the lines counts."""
    format: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_LENGTH)
    ]
    """Instruction for an agent, such as ``Write key = value pairs.``"""


def read_pool(file: Path) -> tuple[str, ...]:
    """Return the formats of a file, in order.

    Raises:
        UserError: the file is missing or empty, or a line is invalid, empty, too long or a duplicate.
    """
    pool: dict[str, str] = {}
    for place, raw in _yaml(file) if file.suffix in (".yaml", ".yml") else numbered(file):
        try:
            one = FormatLine.model_validate({"format": raw} if isinstance(raw, str) else raw)
        except ValidationError as error:
            raise _broken(file, place, wrong_at(error.errors()[0])) from error
        if one.format in pool:
            raise _broken(file, place, f"it repeats the format of {pool[one.format]}")
        pool[one.format] = place
    if not pool:
        raise UserError(f"the format pool {file} is empty", _ADVICE)
    return tuple(pool)


_ADVICE = (
    'use a JSONL file with lines such as {"index": 0, "format": "Write key = value pairs."}, or a YAML '
    "list of texts; `coterie data prompt-pool` writes one"
)


def _broken(file: Path, place: str, why: object) -> UserError:
    return UserError(f"{file}, {place} is broken: {why}", _ADVICE)


def _yaml(file: Path) -> Iterator[tuple[str, object]]:
    try:
        text = file.read_text(encoding="utf-8-sig")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _broken(file, f"line {line}", error.problem or "no YAML") from error
    except (
        OSError,
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: dates
        raise UserError(f"the format pool {file} can't be read: {error}", _ADVICE) from error
    if node is None:
        return
    if not isinstance(node, yaml.SequenceNode):
        raise _broken(file, f"line {node.start_mark.line + 1}", "this is not a list")
    for item, value in zip(node.value, values, strict=True):
        yield f"line {item.start_mark.line + 1}", value
