"""Typed rows of sets of questions and answers, read by a table of the names that upstream's keys have.

``Layout`` says for each of our fields under which of upstream's keys it can stand; a row type of a set names its layout
and has what no table can say. The canonical form has our names, so it is read by every layout.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import field_validator, model_validator

from coterie.config.text import read_json
from coterie.datasets.problem_rows import EMPTY, MathRow
from coterie.datasets.rows import QuestionRow, question_key

Keys = tuple[str, ...]
IMAGE = "is a question about an image"


@dataclass(frozen=True, slots=True)
class Layout:
    """Under which of upstream's keys a field stands: the first one that is there; ``info.type`` is inside ``info``."""

    id: Keys = (
        "id",
        "_id",
        "question_id",
        "task_id",
        "unique_id",
        "qid",
        "ID",
        "index",
        "extra_info.index",
    )
    question: Keys = ("question", "Question", "problem", "Problem", "extra_info.question")
    answer: Keys = (
        "answer", "Answer", "golden_answers", "possible_answers", "Final answer", "final_answer", "short_answers",
        "extra_info.answer",
    )  # fmt: skip
    aliases: Keys = ("aliases", "answer_aliases")
    rest: Mapping[str, Keys] = field(default_factory=dict)
    """Of the row's other fields."""


class AnswerRow(QuestionRow):
    """A question with all its right answers, as NQ, PopQA and Bamboogle have them.

    A list of answers (also as JSON in a text) is ``answer``, its first, and ``aliases``. Without an id a hash of the
    question is taken. Numbers become texts.
    """

    layout: ClassVar[Layout] = Layout()
    aliases: tuple[str, ...] = ()
    """Other right answers."""

    @property
    def answers(self) -> tuple[str, ...]:
        """All right ones, ``answer`` first."""
        return (self.answer, *self.aliases)

    @classmethod
    def opened(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """What upstream means by a row; raises ``ValueError``. Most mean what they say."""
        return raw

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        value = cls.opened(value)
        layout = cls.layout
        question = _first(value, layout.question)
        answers = _listed(_first(value, layout.answer))
        aliases = _listed(_first(value, layout.aliases))
        found: dict[str, Any] = {
            name: told for name, keys in layout.rest.items() if (told := _first(value, keys)) is not None
        }  # fmt: skip
        found |= {
            name: value[name] for name in cls.model_fields.keys() - found.keys() if name in value
        }
        found |= {"question": question, "aliases": [*answers[1:], *aliases]}
        found["id"] = as_text(_first(value, layout.id)) or _hash(question)
        if answers:
            found["answer"] = answers[0]
        else:
            found.pop("answer", None)
        return found

    @field_validator("aliases", mode="after")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(alias for alias in value if alias.strip()))


class WebRow(AnswerRow):
    """A question that is answered by searching the web or by knowing much."""

    subject: str = ""
    level: str = ""
    kind: str = ""
    """Upstream's word for what is asked, such as ``multi_source``."""
    pages: tuple[str, ...] = ()
    """Addresses: where the search begins, and where the answer stands."""
    file: str = ""
    """The name of a file that the question comes with."""
    image: bool = False
    """Whether the question can't be understood without an image."""

    @property
    def flaw(self) -> str:
        """What is not public can't be graded, and images can't be shown."""
        return IMAGE if self.image else ""

    @field_validator("level", mode="before")
    @classmethod
    def _level(cls, value: Any) -> Any:
        return as_text(value)

    @field_validator("image", mode="before")
    @classmethod
    def _has_image(cls, value: Any) -> Any:
        return bool(value)


class ExamRow(AnswerRow, MathRow):
    """A problem of mathematics with its answer as LaTeX, and upstream's solution where it has one."""

    answer: str
    subject: str = ""
    level: str = ""
    image: bool = False

    @property
    def flaw(self) -> str:
        """Nobody can give an empty answer, and images can't be shown."""
        return IMAGE if self.image else EMPTY * (not self.answer.strip())

    @field_validator("level", "subject", mode="before")
    @classmethod
    def _level(cls, value: Any) -> Any:
        return as_text(value)


def _first(row: Mapping[str, Any], keys: Keys) -> Any:
    """The value under the first key that has one; ``None`` if none has."""
    for name in keys:
        value: Any = row
        for part in [name] if name in row else name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _listed(value: Any) -> list[Any]:
    """An answer, or a list of answers, also as JSON in a text, as a list of texts."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        try:
            found = read_json(value)
        except ValueError:
            return [value]
        whole = isinstance(found, list) and all(isinstance(one, str) for one in found)
        return found if whole and found else [value]
    if isinstance(value, list | tuple):
        return [as_text(one) for one in value]
    return [] if value is None else [as_text(value)]


def as_text(value: Any) -> Any:
    """A number as a text; texts stay, and what is neither is an error later."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return "" if value is None else value


def _hash(question: Any) -> str:
    return question_key(question) if isinstance(question, str) else "unknown"
