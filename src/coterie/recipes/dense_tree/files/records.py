"""The two files of DensePolicy's released code that have pairs, read and written.

``*tree_pairs_result.csv`` (and ``merged_all_pairs_*.csv``): a row for each two siblings, selected or not.
``*_history`` is a Python literal: a list of ``{"role", "content"}``. Up to place ``2 * contrast_step`` it is what both
begin with; the message after it is the one that is compared. Literals are read as such and never run.

The training JSON is LLaMA-Factory's preference format (alpaca with history): a list of ``{"history": [[user,
assistant], ...], "instruction", "input", "chosen", "rejected"}``. Ours may have ``system`` besides.
"""

import ast
import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from coterie.config.plain import wrong_at
from coterie.config.text import read_json
from coterie.datasets.preferences import ChatRole, PreferenceRow
from coterie.errors import UserError

MOST_CELL = 4 * 2**20
"""Characters that a cell of a CSV may have; their longest dialogues have about 32,000."""
PAIRS_CSV, PAIRS_JSON = ".csv", ".json"


def _literal(value: Any) -> Any:
    """What a Python literal says."""
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        why = str(error).partition("\n")[0] or "it nests too deep"
        raise ValueError(f"must be a Python literal ({why})") from None


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Said(_Line):
    """A message of a history."""

    role: Literal["system", "user", "assistant"]
    content: str


History = Annotated[tuple[Said, ...], BeforeValidator(_literal)]


class CsvPair(_Line):
    """A row of the CSV: two siblings."""

    data_id: str
    task: str = ""
    """The task family, in a merged file."""
    input: str
    """What the task asks."""
    contrast_step: int = Field(ge=0)
    """Messages of the agent before the one that is compared."""
    positive_history: History
    negative_history: History
    selected: Literal["True", "False"]

    def row(self) -> PreferenceRow:
        """The pair. Raises ``ValueError`` (a ``ValidationError`` among them) that says what is wrong."""
        sides = [
            [(one.role, one.content.strip() if one.role == "assistant" else one.content) for one in history]
            for history in (self.positive_history, self.negative_history)
        ]  # fmt: skip
        at = 1 + 2 * self.contrast_step
        (before, chosen), (same, rejected) = ((one[:at], one[at : at + 1]) for one in sides)
        if before != same:
            raise ValueError("the histories differ before contrast_step")
        if not all(side and side[0][0] == "assistant" for side in (chosen, rejected)):
            raise ValueError("a history has no message of the assistant at contrast_step")
        return PreferenceRow(
            id=self.data_id or "?",
            messages=tuple(before),
            chosen=chosen[0][1],
            rejected=rejected[0][1],
        )


class TrainingPair(_Line):
    """An object of the training JSON."""

    history: tuple[tuple[str, str], ...] = ()
    instruction: str
    input: str = ""
    chosen: str
    rejected: str
    system: str = ""

    @classmethod
    def of(cls, row: PreferenceRow) -> "TrainingPair":
        """A pair in this form."""
        turns = [text for role, text in row.messages if role != "system"]
        system = "".join(text for role, text in row.messages if role == "system")
        return cls(
            history=tuple(zip(turns[:-1:2], turns[1::2], strict=True)),
            instruction=turns[-1],
            chosen=row.chosen,
            rejected=row.rejected,
            system=system,
        )

    def row(self, number: int) -> PreferenceRow:
        """The pair. Raises ``ValidationError``."""
        asked = "\n".join(text for text in (self.instruction, self.input) if text)
        said: list[tuple[ChatRole, str]] = [("system", self.system)] if self.system else []
        for user, assistant in self.history:
            said += [("user", user), ("assistant", assistant)]
        return PreferenceRow(
            id=str(number),
            messages=(*said, ("user", asked)),
            chosen=self.chosen.strip(),
            rejected=self.rejected.strip(),
        )


@dataclass(frozen=True, slots=True)
class FoundPair:
    """A pair of a file."""

    where: str
    """Such as ``line 12``."""
    task: str
    """Equal for pairs of one task."""
    asked: str
    """What the task asks, if the file says so."""
    row: PreferenceRow
    selected: bool = True


def read_pairs(path: Path) -> Iterator[FoundPair]:
    """The pairs of a CSV or of a training JSON. Raises ``UserError`` with the place of the first broken one."""
    if path.suffix == PAIRS_CSV:
        return _of_csv(path)
    if path.suffix == PAIRS_JSON:
        return _of_json(path)
    raise UserError(
        f"{path} is neither {PAIRS_CSV} nor {PAIRS_JSON}",
        "give a *tree_pairs_result.csv, a merged_all_pairs_*.csv or a training JSON",
    )


def _of_csv(path: Path) -> Iterator[FoundPair]:
    with _opened(path) as file, _wide_cells():
        lines = csv.DictReader(file, strict=True)
        before = 1
        try:
            for fields in lines:
                with _naming(path, where := f"line {before + 1}"):
                    line = CsvPair.model_validate(_cells(fields))
                    row, task = line.row(), f"{line.task}/{line.data_id}"
                yield FoundPair(where, task, line.input, row, line.selected == "True")
                before = lines.line_num
        except (csv.Error, UnicodeDecodeError) as error:
            raise _broken(path, f"line {before + 1}", str(error)) from error


def _cells(fields: Mapping[str | None, Any]) -> dict[str, Any]:
    """The cells of a row that has as many as there are columns."""
    if None in fields or None in fields.values():
        raise ValueError("it has more or fewer cells than there are columns")
    return {str(name): value for name, value in fields.items()}


def _of_json(path: Path) -> Iterator[FoundPair]:
    with _opened(path) as file:
        try:
            found = read_json(file.read())
        except ValueError as error:
            raise UserError(f"{path} is no JSON: {error}", "get it again") from error
    if not isinstance(found, list):
        raise UserError(f"{path} holds no list of pairs", "give a training JSON")
    for number, fields in enumerate(found, 1):
        with _naming(path, where := f"pair {number}"):
            row = TrainingPair.model_validate(fields).row(number)
        yield FoundPair(where, next(text for role, text in row.messages if role == "user"), "", row)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}", "check the path") from error


@contextmanager
def _wide_cells() -> Iterator[None]:
    """Cells of up to ``MOST_CELL`` characters; the limit is one for all of Python."""
    usual = csv.field_size_limit(MOST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(usual)


@contextmanager
def _naming(path: Path, where: str) -> Iterator[None]:
    """Errors about a pair name its place."""
    try:
        yield
    except ValidationError as error:
        raise _broken(path, where, wrong_at(error.errors()[0])) from error
    except ValueError as error:
        raise _broken(path, where, str(error)) from error


def _broken(path: Path, where: str, reason: str) -> UserError:
    return UserError(f"{path}, {where}: {reason}", "correct it; nothing was imported")


def write_training_pairs(path: Path, rows: Iterable[PreferenceRow]) -> None:
    """Write a new training JSON, a pair a line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for place, row in enumerate(rows):
            pair = TrainingPair.of(row).model_dump(mode="json", exclude={"system"})
            pair |= {"system": found} if (found := TrainingPair.of(row).system) else {}
            file.write(("[\n" if not place else ",\n") + json.dumps(pair, ensure_ascii=False))
        file.write("\n]\n")
