"""GAP's RL Parquet: prompts with their gold answers and tools, read and written.

A row has ``data_source``, ``prompt`` (messages), ``reward_model.ground_truth``, ``ability`` (of code and mathematics),
and ``extra_info`` with ``index``, ``question``, ``answer`` and ``tools_kwargs``. Rows with equal ``index`` are one
group of rollouts; the released trainer takes 0 where it is missing, so that all prompts are one group. Here that is an
error.

``ground_truth`` has three forms: answers (``{"target": [...], "question"}``, an object in the training files, the
same as JSON in a text in those for evaluation), a value of mathematics (a text), and tests of a program (``{"stdin":
[...], "expected_output": [...], "question_id"}`` as JSON in a text).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator

from coterie.config.folders import whole_file
from coterie.config.plain import wrong_at
from coterie.config.text import read_json
from coterie.datasets.answer_rows import AnswerRow
from coterie.datasets.reading import read_rows
from coterie.datasets.rows import Frozen, QuestionRow, SetRow, Text
from coterie.errors import UserError
from coterie.progress import Progress, Silent

Form = Literal["text", "object"]


class Said(Frozen):
    """A message of a prompt."""

    role: Literal["system", "user", "assistant"]
    content: str


class Answers(Frozen):
    """Right answers of a question."""

    target: tuple[Text, ...] = Field(min_length=1)
    question: str = ""


class Value(Frozen):
    """What a problem of mathematics comes to."""

    text: Text


class Programme(Frozen):
    """What a program is given, and what it must print."""

    stdin: tuple[str, ...] = Field(min_length=1)
    expected_output: tuple[str, ...]
    question_id: str = ""

    @model_validator(mode="after")
    def _pairs(self) -> "Programme":
        if len(self.stdin) != len(self.expected_output):
            raise ValueError("it has other numbers of stdin and expected_output")
        return self


Gold = Answers | Value | Programme


class PromptRow(SetRow):
    """A prompt of reinforcement learning."""

    index: Text
    """Its group: the rollouts of one prompt."""
    data_source: Text
    prompt: tuple[Said, ...] = Field(min_length=1)
    gold: Gold
    question: str = ""
    tools: tuple[Text, ...] = ()
    """Names of the tools that an episode has, in the order of the file."""
    ability: str = ""
    """``coding`` or ``fact-reasoning``; empty of questions."""
    platform: str = ""
    """Of a problem of a programming contest, as the next two."""
    difficulty: str = ""
    contest_date: str = ""

    @classmethod
    def of(
        cls, row: QuestionRow, source: str, prompt: Sequence[Said], tools: Sequence[str]
    ) -> "PromptRow":
        """A row of a data set, asked by ``prompt``."""
        answers = row.answers if isinstance(row, AnswerRow) else (row.answer,)
        return cls(
            index=f"{source}-{row.id}",
            data_source=source,
            prompt=tuple(prompt),
            gold=Answers(target=answers, question=row.question),
            question=row.question,
            tools=tuple(tools),
        )

    def question_row(self) -> AnswerRow:
        """The question with its answers. Raises ``ValueError`` for a program, which has tests instead."""
        if isinstance(self.gold, Programme):
            raise ValueError("a program has tests and no answer")
        answers = self.gold.target if isinstance(self.gold, Answers) else (self.gold.text,)
        return AnswerRow(
            id=self.index, question=self.question, answer=answers[0], aliases=answers[1:]
        )

    @model_validator(mode="before")
    @classmethod
    def _from_file(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "gold" in value:
            return value
        extra = value.get("extra_info")
        extra = extra if isinstance(extra, Mapping) else {}
        index = extra.get("index")
        if index is None or isinstance(index, bool) or not str(index).strip():
            raise ValueError(
                "extra_info.index is missing: without it all prompts would be one group"
            )
        reward = value.get("reward_model")
        truth = reward.get("ground_truth") if isinstance(reward, Mapping) else None
        if truth is None:
            raise ValueError("reward_model.ground_truth is missing: there is no right answer")
        gold = _gold(truth)
        asked = extra.get("question") or (gold.question if isinstance(gold, Answers) else "")
        names = ("platform", "difficulty", "contest_date")
        return {
            "index": str(index),
            "data_source": value.get("data_source"),
            "prompt": value.get("prompt"),
            "gold": gold,
            "question": asked,
            "tools": _tools(extra.get("tools_kwargs")),
            "ability": value.get("ability") or "",
            **{name: str(extra[name]) for name in names if extra.get(name) is not None},
        }

    @field_validator("prompt", mode="before")
    @classmethod
    def _messages(cls, value: Any) -> Any:
        """A plain text is the user's message."""
        return [{"role": "user", "content": value}] if isinstance(value, str) else value

    def fields(self, form: Form) -> dict[str, Any]:
        """The row as it is in a file."""
        truth = _truth(self.gold, form)
        answers = _answers(self.gold)
        create = {
            "ground_truth": _truth(self.gold, "text"),
            "question": self.question,
            "data_source": self.data_source,
        }
        extra: dict[str, Any] = {
            "need_tools_kwargs": bool(self.tools),
            "index": self.index,
            "question": self.question,
            "answer": list(answers),
            "tools_kwargs": {name: {"create_kwargs": create} for name in self.tools} or None,
            "platform": self.platform or None,
            "difficulty": self.difficulty or None,
            "contest_date": self.contest_date or None,
        }
        return {
            "data_source": self.data_source,
            "prompt": [one.model_dump() for one in self.prompt],
            "ability": self.ability or None,
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": extra,
        }


def read_prompts(path: Path, progress: Progress | None = None) -> list[PromptRow]:
    """The rows of an RL file (``.parquet``, also ``.json`` and ``.jsonl``), in its order.

    Raises ``UserError`` with the number of a row that is broken, has no ``index`` or no gold, or has the ``index`` of
    another row.
    """
    seen: dict[str, int] = {}
    rows: list[PromptRow] = []
    for number, row in enumerate(read_rows(path, PromptRow, progress or Silent()), 1):
        if row.index in seen:
            raise UserError(
                f"{path}, row {number} has the extra_info.index of row {seen[row.index]}: {row.index!r}",
                "give each prompt an index of its own: rows with the same one are one group",
            )
        seen[row.index] = number
        rows.append(row)
    return rows


def write_prompts(path: Path, rows: Sequence[PromptRow], form: Form = "text") -> None:
    """Write a new RL Parquet.

    ``form`` is that of answers: ``text`` (JSON in a text) as in files for evaluation, ``object`` as in those for
    training. A file of objects holds questions alone. Raises ``UserError`` if it can't be made.
    """
    from pyarrow import Table
    from pyarrow.parquet import write_table

    if not rows:
        raise UserError(f"there is no row for {path}", "give some")
    repeated = [index for index, count in Counter(row.index for row in rows).items() if count > 1]
    if repeated:
        raise UserError(
            f"{len(repeated)} indices are of several rows, such as {repeated[0]!r}",
            "give each prompt an index of its own",
        )
    if form == "object" and not all(isinstance(row.gold, Answers) for row in rows):
        raise UserError(
            "values and programs are texts in these files, answers would be objects",
            "write them as text",
        )
    with whole_file(path) as part:
        write_table(Table.from_pylist([row.fields(form) for row in rows]), part)


def _gold(truth: Any) -> Gold:
    """What is right. Raises ``ValueError``, also where nothing is."""
    if isinstance(truth, str):
        try:
            found = read_json(truth)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            return Value(text=truth)
        truth = found
    if isinstance(truth, list | tuple):
        truth = {"target": truth}
    if not isinstance(truth, Mapping):
        raise ValueError(f"ground_truth is {type(truth).__name__}, not a text or an object")
    target = truth.get("target")
    if truth.get("stdin") is None and target is None:
        raise ValueError("ground_truth has neither target nor stdin")
    known = {name: told for name, told in truth.items() if told is not None}
    kind: type[Answers | Programme] = Programme if target is None else Answers
    if isinstance(target, str):
        known["target"] = (target,)
    try:
        return kind.model_validate(known)
    except ValidationError as error:
        raise ValueError(f"ground_truth.{wrong_at(error.errors()[0])}") from error


def _tools(value: Any) -> list[str]:
    """Names of tools. In a table every row has all names; those of other rows are ``None``."""
    if isinstance(value, str):
        value = read_json(value)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError("extra_info.tools_kwargs is not an object")
    return [name for name, given in (value or {}).items() if given is not None]


def _truth(gold: Gold, form: Form) -> JsonValue:
    if isinstance(gold, Value):
        return gold.text
    fields: dict[str, JsonValue] = gold.model_dump(mode="json")
    return fields if form == "object" else json.dumps(fields, ensure_ascii=False)


def _answers(gold: Gold) -> Iterable[str]:
    if isinstance(gold, Programme):
        return ()
    return gold.target if isinstance(gold, Answers) else (gold.text,)
