"""The files of MOAT's released code, as they are on disk.

    NAME_multi_I.csv                    columns output_0, output_1, ...: K plans of each line of the plan file
    NAME_multi_de_I.csv                 the same, of the lines alone that the ground file has too
    NAME_subgoal_I.jsonl                lines of the plan file with ``ctxs``: the same plans, from the last to the first
    NAME_score_I.csv                    a row for each line of the ground file; column c is of ``ctxs[c]``
    dpo_I.jsonl                         {"prompt", "chosen", "rejected"}
    train_ground_I.jsonl                {"input", "output", "score", "target_output"}: the actions for ``ctxs[0]`` of
                                        all lines, then those for ``ctxs[1]``, and so on
    train_ground_I_corrected.jsonl      {"messages", "reward", "co_messages"}

A score is a mean loss, so it is the negative of a mean log-likelihood. A prompt is one string, with marks for turns.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from coterie.config.folders import whole_file
from coterie.errors import UserError

_COLUMN = re.compile(r"output_(\d+)")
_TURN = re.compile(r"<\|(system|user|assistant)\|>\n")


class _MoatLine(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Sampled(_MoatLine):
    """One plan of a line."""

    id: str
    """``output_J``: it is the plan of column J."""
    subgoal: str | float | None = None
    """Its text; not a number where there was none."""


class PlansLine(_MoatLine):
    """A line of a plan file with its plans, the last one first."""

    id: str
    ctxs: tuple[Sampled, ...]
    empty_kept: bool = False
    """Whether empty plans are empty texts. This key is ours: the released code puts another plan in their place."""


class PairLine(_MoatLine):
    """Two plans of one prompt."""

    prompt: str
    chosen: str | float | None
    rejected: str | float | None
    """Not a number where there was no text, as in the lines of plans."""


class ActionsLine(_MoatLine):
    """What the grounder made of one plan."""

    input: str
    output: str | float | None
    score: float | None = None
    target_output: str = ""


class Said(_MoatLine):
    """A message."""

    role: str
    content: str


class CorrectedLine(_MoatLine):
    """What the grounder is to learn of one task."""

    messages: tuple[Said, ...]
    reward: int | None = None
    """1 if the critic accepted the actions."""
    co_messages: tuple[Said, ...] | None = None
    """What the critic wrote in their place."""


def of_column(column: int, plans: int) -> int:
    """Which plan a column of scores is of, a place in ``ctxs``, or a block of actions: they count backwards."""
    return plans - 1 - column


def read_columns(path: Path) -> list[list[str]]:
    """The rows of a file with the columns ``output_0`` to ``output_{K-1}``; other columns are passed over.

    Raises ``UserError`` for other files, and for a row that is shorter or longer than the header.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            columns = _columns(path, header)
            found = []
            for row in rows:
                if len(row) != len(header):
                    raise UserError(
                        f"{path}, line {rows.line_num}: {len(row)} columns, the header has {len(header)}",
                        "correct the line; nothing was imported",
                    )
                found.append([row[column] for column in columns])
            return found
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}", "check the path") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{path} is no CSV file: {error}", "give the file as it was written"
        ) from error


def _columns(path: Path, header: Sequence[str]) -> list[int]:
    """Where the columns are, by their numbers."""
    at = {int(found[1]): n for n, one in enumerate(header) if (found := _COLUMN.fullmatch(one))}
    named = sum(_COLUMN.fullmatch(one) is not None for one in header)
    if not at or sorted(at) != list(range(named)):
        raise UserError(
            f"{path} has the columns {', '.join(header) or 'none'}",
            "they should be output_0, output_1 and so on, a column for each sampled plan",
        )
    return [at[number] for number in range(len(at))]


def text_of(value: str | float | None) -> str:
    """A plan; empty where there is none: CSV files lose empty texts, which come back as ``nan``."""
    text = value.strip() if isinstance(value, str) else ""
    return "" if text.lower() == "nan" else text


def score_of(value: str) -> float | None:
    """A score; ``None`` where there is none. Raises ``ValueError`` for what is not a number."""
    found = float(value) if value.strip() else math.nan
    return found if math.isfinite(found) else None


def write_columns(path: Path, rows: Iterable[Sequence[str]], plans: int) -> None:
    """Write a new file of that form; it appears when it is whole."""
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow([f"output_{number}" for number in range(plans)])
        out.writerows(rows)


def flat(messages: Iterable[tuple[str, str]]) -> str:
    """Messages as a prompt in one string, up to where the assistant is to speak."""
    ends = {"assistant": "\n\n"}
    turns = (f"<|{role}|>\n{text.strip()}{ends.get(role, chr(10))}" for role, text in messages)
    return "".join(turns) + "<|assistant|>\n"


def turns_of(prompt: str) -> Iterator[tuple[str, str]]:
    """(role, text) of each turn of such a prompt; nothing of a text without marks."""
    _, *parts = _TURN.split(prompt)
    for role, text in zip(parts[::2], parts[1::2], strict=True):
        if text.strip():
            yield role, text.strip()


def plain(line: BaseModel) -> dict[str, Any]:
    """A line as it is written."""
    return line.model_dump(mode="json")
