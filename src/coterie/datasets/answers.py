"""Typed rows of question-answering sets such as MuSiQue, read by a table of published keys.

``Layout`` maps each of our fields to its possible keys in published files. A row type has a layout, and code for
anything else. Every layout also reads rows with our own names.
"""

import base64
import binascii
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, Field, field_validator, model_validator

from coterie.config.folders import read_json
from coterie.datasets.problems import EMPTY, MathRow
from coterie.datasets.rows import (
    Frozen,
    QuestionRow,
    RowPassage,
    Text,
    from_verl,
    question_key,
    question_text,
)

Keys = tuple[str, ...]
IMAGE = "is a question about an image"


@dataclass(frozen=True, slots=True)
class Layout:
    """Possible keys of each field; the first present key counts. ``info.type`` is inside ``info``."""

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


class AnswerRow(QuestionRow):
    """Question with all its right answers, as in NQ, PopQA and Bamboogle.

    The first of a list of answers (or JSON text of a list) is ``answer``, the rest are ``aliases``. The default id is a
    hash of the question. Numbers become text.
    """

    layout: ClassVar[Layout] = Layout()
    aliases: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[str, ...]:
        return (self.answer, *self.aliases)

    @classmethod
    def normalize(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert a published row for the layout. Raise ``ValueError`` for a broken row."""
        return raw

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        value = cls.normalize(from_verl(value))
        layout = cls.layout
        question = question_text(first_of(value, layout.question))
        answers = _answer_list(first_of(value, layout.answer))
        aliases = _answer_list(first_of(value, layout.aliases))
        fields: dict[str, Any] = {
            name: item for name, keys in layout.rest.items() if (item := first_of(value, keys)) is not None
        }  # fmt: skip
        fields |= {
            name: value[name] for name in cls.model_fields.keys() - fields.keys() if name in value
        }
        fields |= {"question": question, "aliases": [*answers[1:], *aliases]}
        fields["id"] = as_text(first_of(value, layout.id)) or _hash(question)
        if answers:
            fields["answer"] = answers[0]
        else:
            fields.pop("answer", None)
        return fields

    @field_validator("aliases", mode="after")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(alias for alias in value if alias.strip()))


class WebRow(AnswerRow):
    """Question that needs web search or broad knowledge."""

    subject: str = ""
    level: str = ""
    kind: str = ""
    """Kind of question in upstream, such as ``multi_source``."""
    pages: tuple[str, ...] = ()
    """URLs of the start page and of pages with the answer."""
    file: str = ""
    """Name of an attached file."""
    image: bool = False
    """True if the question needs an image."""

    @property
    def flaw(self) -> str:
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
    """Mathematics problem with an answer as LaTeX and an optional solution."""

    answer: str
    subject: str = ""
    level: str = ""
    image: bool = False

    @property
    def flaw(self) -> str:
        return IMAGE if self.image else EMPTY * (not self.answer.strip())

    @field_validator("level", "subject", mode="before")
    @classmethod
    def _level(cls, value: Any) -> Any:
        return as_text(value)


def first_of(row: Mapping[str, Any], keys: Keys) -> Any:
    """Return the first value that is not ``None``; ``a.b`` is inside ``a``."""
    for name in keys:
        value: Any = row
        for part in [name] if name in row else name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _answer_list(value: Any) -> list[Any]:
    """Convert an answer, a list of answers or its JSON text into a list of texts."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        try:
            items = read_json(value)
        except ValueError:
            return [value]
        is_list = isinstance(items, list) and all(isinstance(item, str) for item in items)
        return items if is_list and items else [value]
    if isinstance(value, list | tuple):
        return [None if one is None else as_text(one) for one in value]
    return [] if value is None else [as_text(value)]


def as_text(value: Any) -> Any:
    """Convert a number into text and ``None`` into an empty text. Raise ``ValueError`` for NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not an answer")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return "" if value is None else value


def _hash(question: Any) -> str:
    return question_key(question) if isinstance(question, str) else "unknown"


class MusiqueParagraph(Frozen):
    """Paragraph of Wikipedia."""

    title: Text
    text: Text = Field(validation_alias=AliasChoices("text", "paragraph_text"))
    gold: bool = Field(validation_alias=AliasChoices("gold", "is_supporting"))


class Hop(Frozen):
    """Sub-question. ``#1`` is the answer to the first one; many have the form ``subject >> relation``."""

    question: Text
    answer: Text
    paragraph: Annotated[int, Field(ge=0)] | None = None
    """Index of its supporting paragraph, if known."""

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "paragraph_support_idx" in value:
            return {**value, "paragraph": value["paragraph_support_idx"]}
        return value


class MusiqueRow(AnswerRow):
    """MuSiQue-Ans, with or without paragraphs and sub-questions."""

    layout: ClassVar[Layout] = Layout(rest={"hops": ("hops", "question_decomposition")})
    hops: tuple[Hop, ...] = ()
    paragraphs: tuple[MusiqueParagraph, ...] = ()
    answerable: bool = True

    @property
    def flaw(self) -> str:
        """MuSiQue-Full has questions that its paragraphs do not answer."""
        return "" if self.answerable else "can't be answered by its paragraphs"

    @property
    def passages(self) -> tuple[RowPassage, ...]:
        return tuple(RowPassage(one.title, one.text, one.gold) for one in self.paragraphs)

    @field_validator("paragraphs", mode="before")
    @classmethod
    def _in_order(cls, value: Any) -> Any:
        """Sort paragraphs by upstream's numbers, to which hops refer."""
        if isinstance(value, list | tuple) and all(
            isinstance(one, Mapping) and isinstance(one.get("idx"), int) for one in value
        ):
            value = sorted(value, key=lambda one: one["idx"])
            if [one["idx"] for one in value] != list(range(len(value))):
                raise ValueError("the numbers of its paragraphs (idx) have a gap")
        return value

    @model_validator(mode="after")
    def _refers(self) -> "MusiqueRow":
        for number, hop in enumerate(self.hops, 1):
            if (
                hop.paragraph is not None
                and self.paragraphs
                and hop.paragraph >= len(self.paragraphs)
            ):
                raise ValueError(
                    f"hop {number} refers to paragraph {hop.paragraph}, which does not exist"
                )
        return self


HIDDEN = "?"
"""Placeholder for answers in GAIA's test split."""


class GaiaRow(WebRow):
    """GAIA: assistant tasks of three levels; some have an attached file."""

    layout: ClassVar[Layout] = Layout(
        id=("id", "task_id"), rest={"level": ("level", "Level"), "file": ("file", "file_name")}
    )

    @property
    def flaw(self) -> str:
        """Answers of the test split are not public."""
        return "has no public answer" if self.answer.strip() == HIDDEN else super().flaw


class HleRow(WebRow):
    """Humanity's Last Exam: expert questions on many subjects."""

    columns: ClassVar[tuple[str, ...] | None] = (
        "id", "question", "answer", "answer_type", "category", "raw_subject", "image",
    )  # fmt: skip
    layout: ClassVar[Layout] = Layout(
        rest={"subject": ("subject", "category"), "kind": ("kind", "answer_type")}
    )


class WebWalkerRow(WebRow):
    """WebWalkerQA: questions about pages deep inside a web site."""

    layout: ClassVar[Layout] = Layout(
        rest={
            "subject": ("subject", "info.domain"),
            "level": ("level", "info.Level"),
            "kind": ("kind", "info.type"),
        }
    )

    @classmethod
    def normalize(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set ``pages`` to the site, followed by the pages with the answer."""
        if "pages" in raw or not isinstance(raw.get("root_url"), str):
            return raw
        info = raw.get("info")
        sources = info.get("source_website") if isinstance(info, Mapping) else None
        return {**raw, "pages": [raw["root_url"], *(sources or ())]}


class BrowseCompRow(WebRow):
    """BrowseComp: questions with short answers that are hard to find.

    Question and answer are encrypted to keep them out of training data: base64 of the text XOR the repeated SHA-256 of
    the row's ``canary``.
    """

    layout: ClassVar[Layout] = Layout(rest={"subject": ("subject", "problem_topic")})

    @classmethod
    def normalize(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Decrypt a row. Raise ``ValueError`` if its canary is not the key."""
        canary = raw.get("canary")
        if not isinstance(canary, str):
            return raw
        texts = {name: raw[name] for name in ("problem", "question", "answer") if name in raw}
        return {**raw, **{name: decrypt(text, canary) for name, text in texts.items()}}


class OlympiadRow(ExamRow):
    """OlympiadBench: olympiad problems; one answer may contain several values."""

    layout: ClassVar[Layout] = Layout(
        rest={"level": ("level", "difficulty"), "subject": ("subject", "subfield")}
    )

    @classmethod
    def normalize(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Join the final answers into one answer and keep the first solution."""
        raw = dict(raw)
        final, solution = raw.get("final_answer"), raw.get("solution")
        if isinstance(final, list | tuple):
            raw["final_answer"] = ", ".join(str(as_text(one)) for one in final)
        if isinstance(solution, list | tuple):
            raw["solution"] = next(iter(solution), "")
        if raw.get("solution") is None:
            raw.pop("solution", None)
        images = [name for name in raw if name.startswith("image_") and raw[name]]
        return {**raw, "image": bool(raw.get("image") or images)}


def decrypt(text: Any, canary: str) -> str:
    """Decrypt a text of BrowseComp. Raise ``ValueError`` if the canary does not decrypt it."""
    key = hashlib.sha256(canary.encode()).digest()
    try:
        sealed = base64.b64decode(text, validate=True)
        return bytes(one ^ other for one, other in zip(sealed, cycle(key), strict=False)).decode()
    except (binascii.Error, TypeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError("it can't be decrypted with its canary") from error
