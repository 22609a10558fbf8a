"""Questions and answers of a user's file: detection of their columns, and rows."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from coterie.config.resolve import wrong_at
from coterie.config.settings import key
from coterie.datasets.answers import AnswerRow, first_of
from coterie.datasets.catalogue import SPLITS, Split
from coterie.datasets.files import numbered
from coterie.datasets.load import DatasetSettings
from coterie.datasets.rows import from_verl
from coterie.datasets.sources import user_splits
from coterie.errors import UserError, did_you_mean

QUESTIONS = ("question", "problem", "query", "prompt", "instruction", "input", "text")
"""Usual names of the question column, in any case. The first name that a row has counts."""
ANSWERS = (
    "answer", "answers", "final_answer", "golden_answers", "gold", "target", "label", "ground_truth", "solution",
    "output", "response", "completion",
)  # fmt: skip
"""Usual names of the column of reference answers."""


class QASettings(DatasetSettings):
    """Settings of a file of questions and its columns."""

    source: str = key(
        "",
        "A file (JSONL, JSON, Parquet, CSV), or a folder with one for each split, such as train.jsonl and "
        "heldout.jsonl. It must be given; `dataset=FILE` gives it too.",
    )
    heldout: float = key(
        0.2, "Of one file: the share of its questions that is held out.", gt=0, lt=1
    )
    question: str = key(
        "",
        f"The column of questions (`a.b` is inside `a`). The default is the first one of: {', '.join(QUESTIONS)}.",
    )
    answer: str | None = key(
        "",
        "The column of right answers, each a text, a number or a list of them; none where a reward function or tests "
        f"need no answer. The default is the first one of: {', '.join(ANSWERS)}.",
    )


class TableRow(AnswerRow):
    """A row of a user's file."""

    answer: str
    """Empty if there is no column of answers."""
    raw: dict[str, Any] = Field(default_factory=dict)
    """All columns, unchanged."""
    where: str = ""
    """File and line."""
    answer_column: str = ""

    @property
    def identity(self) -> str:
        """Hash of all columns except the answers. Rows with equal hashes are the same question."""
        others = {name: one for name, one in self.raw.items() if name != self.answer_column}
        text = json.dumps([self.question, others], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def model_dump_json(self, **options: Any) -> str:
        """Return the unchanged row of the file, so that it can be parsed again in the same way."""
        return json.dumps(self.raw, ensure_ascii=False, default=str)


class QuestionsAndAnswers:
    """Rows with a question and its right answers.

    Hashes of the questions decide the split of one file, so the same question is never in both splits, and the order of
    the lines does not matter.
    """

    settings_type = QASettings
    row = TableRow

    def __init__(self, settings: QASettings) -> None:
        self.settings = settings

    def rows(self, split: Split) -> list[TableRow]:
        """Return the rows of a split. Raises ``UserError`` for an invalid line, and for too few questions."""
        return self._splits[split]

    def content(self) -> str:
        """Return a hash of all columns, and of the columns used as question and answers."""
        rows = (row for split in SPLITS for row in self._splits[split])
        lines = (f"{row.question} {row.answers} {row.model_dump_json()}" for row in rows)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @cached_property
    def _splits(self) -> dict[Split, list[TableRow]]:
        return user_splits("qa", self.settings.source, self._read, self.settings.heldout)

    def _read(self, file: Path) -> list[TableRow]:
        rows: dict[str, tuple[TableRow, str]] = {}
        columns: tuple[str, str] | None = None
        for place, raw in numbered(file):
            where = f"{file}, {place}"
            try:
                opened = from_verl(raw)
                columns = columns or self._columns(opened, where)
                row = _table_row(raw, opened, *columns, where)
            except ValueError as error:
                known = isinstance(error, ValidationError)
                wrong = "; ".join(map(wrong_at, error.errors())) if known else str(error)  # type: ignore[attr-defined]
                raise UserError(
                    f"{where} is broken: {wrong}",
                    "a question is a text or messages, an answer a text, a number, or a list of them",
                ) from error
            before, first = rows.setdefault(row.identity, (row, place))
            if before.answers != row.answers:
                raise UserError(
                    f"{where} has the question of {first} with another answer",
                    "remove one of them, or give a list of both answers",
                )
        ids = Counter(row.id for row, _ in rows.values())
        return [
            row if ids[row.id] == 1 else row.model_copy(update={"id": f"{row.id}-{identity}"})
            for identity, (row, _) in rows.items()
        ]

    def _columns(self, row: Any, where: str) -> tuple[str, str]:
        """Detect the columns of question and answer in the first row of a file; the latter is empty without answers."""
        own = (self.settings.question, self.settings.answer)
        if not isinstance(row, dict):
            return own[0] or QUESTIONS[0], own[1] or ANSWERS[0]
        names = {str(name).lower(): str(name) for name in reversed(row)}
        usual = [
            next((names[name] for name in known if name in names), known[0])
            for known in (QUESTIONS, ANSWERS)
        ]
        for column in filter(None, own):
            if first_of(row, (column,)) is None and column not in row:
                raise _missing([column], row, where)
        return own[0] or usual[0], "" if own[1] is None else own[1] or usual[1]


def _table_row(raw: Any, opened: Any, question: str, answer: str, where: str) -> TableRow:
    columns = [name for name in (question, answer) if name]
    values = [first_of(opened, (name,)) if isinstance(opened, dict) else None for name in columns]
    missing = [
        name
        for name, value in zip(columns, values, strict=True)
        if value is None and (not isinstance(opened, dict) or name not in opened)
    ]
    if missing:
        raise _missing(missing, opened, where)
    value = values[1] if answer else ""
    answers = value if isinstance(value, list) else [value]
    known = {"raw": raw, "where": where, "answer_column": answer}
    if answer in ANSWERS and isinstance(aliases := opened.get("aliases"), list | tuple):
        answers = [*answers, *aliases]
    row = TableRow.model_validate({"question": values[0], "answer": answers, **known})
    if answer and not row.answer.strip():
        raise ValueError("answer: must hold some text")
    return row


def _missing(columns: Sequence[str], row: Any, where: str) -> UserError:
    has = f"it has {', '.join(map(str, row))}" if isinstance(row, dict) else "it is not an object"
    near = did_you_mean(columns[0], map(str, row)) if isinstance(row, dict) else ""
    return UserError(
        f"{where} has no {' and no '.join(map(repr, columns))}: {has}",
        f"{near}name the columns: dataset.question=COLUMN dataset.answer=COLUMN",
    )
