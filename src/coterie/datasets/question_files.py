"""Questions of a user's file, with the options, contexts and system prompts that published sets have.

A model is shown the same text in training on replies (``run sft``) and in reinforcement learning (:func:`read_prompt`).
"""

import hashlib
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from coterie.config.resolve import wrong_at
from coterie.config.settings import key
from coterie.datasets.catalogue import SPLITS
from coterie.datasets.columns import Columns, check_media, check_text, is_empty, peek
from coterie.datasets.files import numbered
from coterie.datasets.load import ColumnSettings, UserFileSet
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
    """What a row asks a model."""

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


# -- files ----------------------------------------------------------------------------------------


class QASettings(ColumnSettings):
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

    def content(self) -> str:
        """Return a hash of all columns, and of the texts used as question and answers."""
        rows = (row for split in SPLITS for row in self.rows(split))
        lines = (f"{row.shown_question} {row.answers} {row.model_dump_json()}" for row in rows)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def read_file(self, file: Path) -> list[TableRow]:
        rows: dict[str, tuple[TableRow, str]] = {}
        columns: tuple[str, str] | None = None
        for position, raw in numbered(file):
            where = f"{file}, {position}"
            try:
                if not isinstance(raw, dict):
                    raise ValueError("it is not an object")
                opened = self._opened(raw)
                # The first row determines the columns, so that a later row without them is an
                # error.
                columns = columns or self._columns(opened)
                row = _table_row(raw, opened, *columns, where)
            except ValueError as error:
                is_pydantic = isinstance(error, ValidationError)
                wrong = "; ".join(map(wrong_at, error.errors())) if is_pydantic else str(error)  # type: ignore[attr-defined]
                fix = "a question is a text or messages, an answer a text, a number, or a list of them; columns of "
                fix += "another meaning are left out by dataset.ignore=[COLUMN]"
                raise UserError(f"{where} is broken: {wrong}", fix) from error
            # Columns that only the conversion from verl's format has added are not the user's.
            self.unread |= dict.fromkeys(name for name in opened.unread if name in raw)
            # Rows with the same question must agree, because only the first of them is kept.
            earlier, first_position = rows.setdefault(row.identity, (row, position))
            if earlier.answers != row.answers:
                problem = f"{where} has the question of {first_position} with another answer"
                raise UserError(problem, "remove one of them, or give a list of both answers")
        # An id such as an index may recur in another source, so the hash makes it unique.
        ids = Counter(row.id for row, _ in rows.values())
        return [
            row if ids[row.id] == 1 else row.model_copy(update={"id": f"{row.id}-{identity}"})
            for identity, (row, _) in rows.items()
        ]

    def _opened(self, raw: Raw) -> Columns:
        """Return a row without ignored columns, and with our names for verl's."""
        row = Columns(raw, self.settings.ignore)
        if (opened := from_verl(row)) is not row:
            row.update(opened)
            if isinstance(raw.get("prompt"), list) and "question" not in raw:
                row["question"] = row["prompt"]  # as verl shows it, and not as extra_info has it
        return row

    def _columns(self, row: Raw) -> tuple[str, str]:
        """Detect the columns of question and answer in the first row of a file; the latter is empty without answers."""
        question = self.settings.question or usual_name(row, QUESTIONS)
        if self.settings.answer is None:
            return question, ""
        names = OPTION_KEYS if has_options(row, question) else ANSWERS
        return question, self.settings.answer or usual_name(row, names)


def _table_row(
    raw: dict[str, Any], opened: Columns, question: str, answer: str, where: str
) -> TableRow:
    columns = filter(None, (question, answer))
    missing = [name for name in columns if name not in opened and first_of(opened, (name,)) is None]
    if missing:
        names = " and no ".join(map(repr, missing))
        problem = f"{where} has no {names}: it has {', '.join(opened)}"
        fix = "name the columns: dataset.question=COLUMN dataset.answer=COLUMN"
        if len(opened) == 1 and ";" in next(iter(opened)):
            fix = "separate the columns by commas"
        raise UserError(problem, f"{did_you_mean(missing[0], opened)}{fix}")
    value = first_of(opened, (question,))
    prompt = read_prompt(opened, value, question, answer or None)
    if isinstance(opened.get("history"), list) and opened["history"]:
        raise ValueError("it has a history of earlier messages, which are not shown")
    right = prompt.right or (first_of(opened, (answer,)) if answer else "")
    if isinstance(right, dict) and "text" in right:  # SQuAD
        right = right["text"]
    answers = right if isinstance(right, list) else [right]
    # In a column of one answer, JSON text may itself be the answer.
    if isinstance(right, str) and (answer.lower().endswith("answers") or "reward_model" in raw):
        answers = answer_list(right)
    aliases = first_of(opened, ANSWER_KEYS["aliases"]) if answer in ANSWERS else None
    answers = [*answers, *(aliases if isinstance(aliases, list | tuple) else ())]
    fields = {"raw": raw, "where": where, "answer_column": answer, "prompt": prompt}
    row = TableRow.model_validate({"question": value, "answer": answers, **fields})
    if answer and not row.answer.strip():
        raise ValueError("answer: must hold some text")
    return row
