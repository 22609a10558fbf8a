"""Users' files: the reader of all kinds, and questions with the options, contexts and system prompts of published sets.

A kind of file has a subclass of :class:`UserFileSet`, which finds the columns of the first row and parses each row. A
model is shown the same text in training on replies (``run sft``) and in reinforcement learning (:func:`read_prompt`).
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from coterie.config.folders import sha256
from coterie.config.settings import PathText, key
from coterie.datasets.catalogue import SPLITS, Split
from coterie.datasets.columns import Columns, check_media, check_text, is_empty, peek
from coterie.datasets.files import SLACK, divided, fault_of, numbered, source_files
from coterie.datasets.load import UNUSED, DatasetSettings
from coterie.datasets.problems import OPTION_KEYS, read_options, usual_name
from coterie.datasets.rows import (
    ANSWER_KEYS,
    AnswerRow,
    Raw,
    answer_list,
    first_of,
    from_verl,
    kind_of,
    question_text,
    with_options,
)
from coterie.errors import UserError, did_you_mean

# -- any user's file -------------------------------------------------------------------------------

ColumnNames = tuple[str, ...]
"""Columns of a file that are read, such as the prompt and the reply."""
NAMED = 5


class HeldOutSettings(DatasetSettings):
    """Settings of rows with a held-out share."""

    heldout: float = key(
        0.1,
        "Share of the rows that is held out where there is one split; 0 for none, 1 for all.",
        ge=0,
        le=1,
    )


class FileSettings(HeldOutSettings):
    """Settings of a user's file."""

    source: PathText = key(
        "",
        "A file (JSONL, JSON, Parquet, CSV), a folder with files for each split, such as train.jsonl and "
        "heldout.jsonl, or a data set of the Hugging Face hub: OWNER/NAME, OWNER/NAME:CONFIG, OWNER/NAME:CONFIG:SPLIT. "
        "It must be given. `dataset=FILE` gives a file of questions.",
    )
    ignore: tuple[str, ...] = key((), "Columns, and keys of messages, that are not read.")
    broken: Literal["refuse", "skip"] = key(
        "refuse", "Rows that cannot be used (no JSON, empty messages, roles out of order, ...)."
    )


class UserFileSet(ABC):
    """Rows of a user's source. If they have one split, a share is held out (``dataset.heldout``)."""

    settings_type: type[HeldOutSettings] = FileSettings
    kind: ClassVar[str] = ""
    """Word in the name of the preferred training split, if a source has several."""
    may_share_questions = False
    """True if rows with the same question are in both splits, which a remark tells."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.left_out = Counter[str]()
        self.remarks = list[tuple[str, str]]()
        """Lines of a plan."""
        self.unread = dict[str, None]()
        """Columns that no row's reader has read, in order."""

    @abstractmethod
    def columns_of(self, row: Columns, first_columns: ColumnNames) -> ColumnNames:
        """Return the columns to read of a row; ``first_columns`` are the first row's, and empty for the first row.

        Raises:
            UserError: If the row does not have them; the problem is a clause without a subject.
            ValueError: If the row has the columns of another form than the first row.
        """

    @abstractmethod
    def parse(self, row: Columns, columns: ColumnNames, file: Path, position: str) -> Any:
        """Return a row of the data set. Raise ``ValueError`` if a value is broken."""

    def open_row(self, raw: Any, file: Path) -> Columns:
        """Return a row that records reads, without ignored columns. Raise ``ValueError`` for another value."""
        if not isinstance(raw, Mapping):
            raise ValueError(f"it is {kind_of(raw)}, not an object")
        return Columns(raw, self.settings.ignore)

    def read_file(self, file: Path) -> list[Any]:
        """Return the different rows of a file. Raise ``UserError`` with all faults unless broken rows are skipped."""
        rows, columns = dict[str, tuple[Any, str]](), ColumnNames()
        skips = self.settings.broken == "skip"
        # With `dataset.broken=skip`, lines that are not JSON are counted as one more fault.
        faults, flaws = defaultdict[str, list[str]](list), Counter[str]()
        for position, raw in numbered(file, broken=faults["it is not JSON"] if skips else None):
            try:
                opened = self.open_row(raw, file)
                # The first row determines the columns. Mixed forms are more often a mistake than
                # intended.
                columns = self.columns_of(opened, columns)
                row = self.parse(opened, columns, file, position)
                if row.flaw:
                    flaws[row.flaw] += 1
                    continue
                # Of equal rows the first is kept, so that the order of the file is stable.
                earlier, first_position = rows.setdefault(row.identity, (row, position))
                if getattr(row, "answers", ()) != getattr(earlier, "answers", ()):
                    problem = f"it has the question of {first_position} with another answer"
                    raise ValueError(
                        f"{problem}; remove one of them, or give a list of both answers"
                    )
            except UserError as error:
                if not (columns or skips):
                    raise UserError(f"{file}, {position} {error.what}", error.todo) from error
                faults[f"it {error.what}"].append(position)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                # A user's row may have any shape, so errors of indexing and types are faults of the
                # row as well.
                faults[fault_of(error)].append(position)
            else:
                self.unread |= dict.fromkeys(opened.unread)
                self.left_out["duplicates"] += earlier is not row
        count = sum(map(len, faults.values()))
        self.left_out["broken"] += count
        self.left_out.update(flaws)
        if count and not (skips and rows):
            raise _refusal(file, count, faults)
        if not rows:
            reasons = "; ".join(f"{count:,} {reason}" for reason, count in flaws.items())
            raise UserError(f"{file} has no usable row: {reasons}", "give another file")
        return [row for row, _ in rows.values()]

    def read_splits(self) -> tuple[dict[Split, list[Any]], bool]:
        """Return the rows by split, and whether training rows that are held out have to be left out."""
        files, is_published = self._files()
        rows = {split: list(chain(*map(self.read_file, files[split]))) for split in files}
        # Columns are known to be unread only after all rows were read, but the note comes first.
        self.remarks[:0] = [(UNUSED, ", ".join(self.unread))] * bool(self.unread)
        return rows, is_published

    def content(self) -> str:
        """Return a hash of the files and of the settings."""
        files, _ = self._files()
        # A missing file is reported by its reader with advice, so the hash must not fail first.
        sums = [sha256(file) for split in files.values() for file in split if file.is_file()]
        settings = self.settings.model_dump_json(exclude={"name", "source"})
        return hash_json([sums, settings])

    def _files(self) -> tuple[dict[Split, list[Path]], bool]:
        return source_files(str(self.settings.name), self.settings.source, self.kind)

    @property
    def splits(self) -> tuple[Split, ...]:
        if 0 < self.settings.heldout < 1:
            return SPLITS
        return tuple(split for split in SPLITS if self._splits.get(split))

    def rows(self, split: Split) -> list[Any]:
        return self._splits.get(split, [])

    @property
    def notes(self) -> list[tuple[str, str]]:
        self._splits  # noqa: B018  # reads the rows
        return self.remarks

    @cached_property
    def _splits(self) -> dict[Split, list[Any]]:
        """Different rows by split."""
        rows, is_published = self.read_splits()
        # Of rows with equal identity the last one is kept, at the position of the first.
        for split in rows:
            rows[split] = [*{row.identity: row for row in rows[split]}.values()]
        if "heldout" not in rows:
            name = getattr(self.settings, "source", self.settings.name)
            rows, warning = divided(rows["train"], self.settings.heldout, name)
            self.may_share_questions = bool(warning)
            self.remarks += [("warning", warning)] * bool(warning)
        # Published splits may overlap. The held-out side stays complete, so that its scores remain
        # comparable.
        elif is_published:
            train = rows["train"]
            # Most rows of a set may open with the same greeting, and then only equal questions are left out.
            for name in ("split_group", "key"):
                held_out = {getattr(row, name) for row in rows["heldout"]}
                rows["train"] = [row for row in train if getattr(row, name) not in held_out]
                if len(rows["train"]) >= (1 - SLACK) * len(train):
                    break
            self.left_out["held out too"] += len(train) - len(rows["train"])
        return rows


def hash_json(value: object) -> str:
    """Hash a JSON value into 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _refusal(file: Path, count: int, faults: Mapping[str, Sequence[str]]) -> UserError:
    # The most frequent faults come first, because fixing one cause often fixes many rows.
    most_frequent, listed = sorted(faults, key=lambda reason: -len(faults[reason])), list[str]()
    for reason in most_frequent[:NAMED]:
        # The list for lines that are not JSON exists even if there is no such line.
        if positions := faults[reason]:
            ellipsis = ", ..." * (len(positions) > NAMED)
            listed.append(f"{', '.join(positions[:NAMED])}{ellipsis}: {reason}")
    return UserError(
        f"{count} rows of {file} cannot be used ({'; '.join(listed)})",
        "correct them, or leave out rows with dataset.broken=skip, columns and keys with dataset.ignore=[NAME]",
    )


# -- prompts of rows -------------------------------------------------------------------------------

QUESTIONS = (
    "question", "problem", "query", "prompt", "instruction", "input", "text", "question_stem", "ctx", "goal",
    "sentence", "startphrase",
)  # fmt: skip
"""Usual names of the question column, in any case. The first name that a row has counts."""
ANSWERS = (
    "answer", "answers", "final_answer", "golden_answers", "gold", "target", "label", "ground_truth", "solution",
    "output", "response", "completion",
)  # fmt: skip
"""Usual names of the column of reference answers."""
SYSTEMS = ("system", "system_prompt")
CONTEXTS = (
    "context", "passage", "document", "article", "story", "background", "premise", "body", "dialogue", "narrative",
    "theory", "table",
)  # fmt: skip
"""Columns of texts that a question is about, in any case. They stand before a question and after an instruction."""


def has_options(row: Raw, column: str) -> bool:
    """Return True if a row has options and a question in a text."""
    question = peek(row, column)
    return isinstance(question, str) and read_options(row, question) is not None


@dataclass(frozen=True, slots=True)
class PromptParts:
    """The question of a row."""

    text: str
    """The question with its contexts, input and options; of a prompt in messages, the user's text."""
    system: str = ""
    options: tuple[str, ...] = ()
    right: str = ""
    """Text of the right option."""
    columns: tuple[str, ...] = ()
    """Columns in ``text`` beside the question."""
    is_complete: bool = False
    """True for a prompt in messages, to which nothing is added."""


def read_prompt(row: Raw, question: Any, column: str, answer: str | None = "") -> PromptParts:
    """Return what a row asks with the question in a column.

    Args:
        row: Row with all its columns.
        question: Value of the column: a text, or messages of a system and a user.
        column: Name of the column of the question.
        answer: Column that says which option is right. The default is the first usual one; ``None`` reads none.

    Raises:
        ValueError: If a part of the question is not a text, or no option is right.
    """
    check_media(row, "it")
    system = system_of(row)
    if isinstance(question, list):
        # A system message in the prompt and one in a column are both shown, each once.
        by_role = defaultdict[bool, list[Any]](list)
        for message in question:
            role = message.get("role") if isinstance(message, dict) else None
            by_role[role in ("system", "developer")].append(message)
        text, systems = question_text(by_role[False]), question_text(by_role[True])
        system = "\n\n".join(filter(None, dict.fromkeys((system, systems))))
        check_text(text, "its question")
        return PromptParts(text, system, is_complete=True)
    if not isinstance(question, str):
        raise ValueError(f"its {column} is {kind_of(question)}, not a text or messages")
    # An input follows its instruction, while other contexts come before a question.
    is_instruction = column.lower() == "instruction"
    names = ("input", *CONTEXTS) if is_instruction else CONTEXTS
    columns = {name.lower(): name for name in row if name != column}
    named = (columns[name] for name in names if name in columns)
    contexts = {name: _context(row, name) for name in named if not is_empty(peek(row, name))}
    options, text, right = read_options(row, question), question, ""
    if options is not None:
        text = with_options(question, options.texts)
        if answer is not None:
            answer = answer or usual_name(row, OPTION_KEYS)
            right = options.right(first_of(row, (answer,)), answer)
    text = "\n\n".join((text, *contexts.values()) if is_instruction else (*contexts.values(), text))
    check_text(text, "its question")
    texts, option_columns = (options.texts, options.columns) if options else ((), ())
    return PromptParts(text, system, texts, right, (*contexts, *option_columns))


def system_of(row: Raw) -> str:
    """Return the system prompt in a column of its own, or an empty text. Raise ``ValueError`` if it is not a text."""
    for name in SYSTEMS:
        if not is_empty(row.get(name)):
            return _context(row, name)
    return ""


def _context(row: Raw, name: str) -> str:
    """Return a text, or the texts of a list with empty lines between them."""
    value = row[name]
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        fix = f"if it is not shown: dataset.ignore=[{name}]"
        raise ValueError(f"its {name} is {kind_of(value)}, not a text; {fix}")
    return "\n\n".join(filter(str.strip, texts))


# -- files of questions -----------------------------------------------------------------------------


class TaskFileSettings(FileSettings):
    """Settings of a user's file of tasks."""

    heldout: float = key(
        0.2, "Of one file: the share of tasks held out; 1 for all, 0 for none.", ge=0, le=1
    )


class QASettings(TaskFileSettings):
    """Settings of a file of questions and its columns."""

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
    prompt: PromptParts
    raw: dict[str, Any] = Field(default_factory=dict)
    where: str = ""
    answer_column: str = ""

    @property
    def identity(self) -> str:
        """Hash of all columns except the answers. Rows with equal hashes are the same question."""
        columns = {name: value for name, value in self.raw.items() if name != self.answer_column}
        text = json.dumps([self.question, columns], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def choices(self) -> tuple[str, ...]:
        return self.prompt.options

    @property
    def shown_question(self) -> str:
        return "\n\n".join(filter(None, (self.prompt.system, self.prompt.text)))

    def model_dump_json(self, **options: Any) -> str:
        """Return the unchanged row of the file."""
        return json.dumps(self.raw, ensure_ascii=False, default=str)


class QuestionsAndAnswers(UserFileSet):
    """Rows with a question and its right answers."""

    settings_type = QASettings
    row = TableRow

    def read_file(self, file: Path) -> list[TableRow]:
        rows: list[TableRow] = super().read_file(file)
        # An id such as an index may recur in another source, so the hash makes it unique.
        ids = Counter(row.id for row in rows)
        return [
            row if ids[row.id] == 1 else row.model_copy(update={"id": f"{row.id}-{row.identity}"})
            for row in rows
        ]

    def open_row(self, raw: Any, file: Path) -> Columns:
        """Return a row with our names for verl's."""
        row = super().open_row(raw, file)
        if (opened := from_verl(row)) is not row:
            row.update(opened)
            if isinstance(raw.get("prompt"), list) and "question" not in raw:
                row["question"] = row["prompt"]  # as verl shows it, and not as extra_info has it
        return row

    def columns_of(self, row: Columns, first_columns: ColumnNames) -> ColumnNames:
        """Return the columns of question and answer; the latter is empty without answers."""
        columns = first_columns or self._detect(row)
        named = [name for name in columns if name]
        missing = [name for name in named if name not in row and first_of(row, (name,)) is None]
        if missing:
            names = " and no ".join(map(repr, missing))
            fix = "name the columns: dataset.question=COLUMN dataset.answer=COLUMN"
            if len(row) == 1 and ";" in next(iter(row)):
                fix = "separate the columns by commas"
            advice = f"{did_you_mean(missing[0], row)}{fix}"
            raise UserError(f"has no {names}: it has {', '.join(row)}", advice)
        return columns

    def _detect(self, row: Raw) -> ColumnNames:
        question = self.settings.question or usual_name(row, QUESTIONS)
        if self.settings.answer is None:
            return question, ""
        names = OPTION_KEYS if has_options(row, question) else ANSWERS
        return question, self.settings.answer or usual_name(row, names)

    def parse(self, row: Columns, columns: ColumnNames, file: Path, position: str) -> TableRow:
        question, answer = columns
        value = first_of(row, (question,))
        prompt = read_prompt(row, value, question, answer or None)
        if isinstance(row.get("history"), list) and row["history"]:
            raise ValueError("it has a history of earlier messages, which are not shown")
        right = prompt.right or (first_of(row, (answer,)) if answer else "")
        if isinstance(right, dict) and "text" in right:  # SQuAD
            right = right["text"]
        answers = right if isinstance(right, list) else [right]
        # In a column of one answer, JSON text may itself be the answer.
        is_list = answer.lower().endswith("answers") or "reward_model" in row.raw
        if isinstance(right, str) and is_list:
            answers = answer_list(right)
        aliases = first_of(row, ANSWER_KEYS["aliases"]) if answer in ANSWERS else None
        answers = [*answers, *(aliases if isinstance(aliases, list | tuple) else ())]
        fields = {"raw": row.raw, "where": f"{file}, {position}", "answer_column": answer}
        task = {"question": value, "answer": answers, "prompt": prompt}
        table_row = TableRow.model_validate(task | fields)
        if answer and not table_row.answer.strip():
            raise ValueError("answer: must hold some text")
        return table_row
