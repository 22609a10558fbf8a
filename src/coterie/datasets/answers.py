"""Typed rows of questions and answers, read by a table of the names that published keys have; MuSiQue among them.

``Layout`` says for each of our fields under which of upstream's keys it can stand; a row type of a set names its layout
and has what no table can say. A row's own form has our names, so it is read by every layout.
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

from coterie.config.text import read_json
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


class AnswerRow(QuestionRow):
    """A question with all its right answers, as NQ, PopQA and Bamboogle have them.

    A list of answers (also as JSON in a text) is ``answer``, its first, and ``aliases``. Without an id a hash of the
    question is taken. Numbers become texts.
    """

    layout: ClassVar[Layout] = Layout()
    aliases: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[str, ...]:
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
        value = cls.opened(from_verl(value))
        layout = cls.layout
        question = question_text(first_of(value, layout.question))
        answers = _listed(first_of(value, layout.answer))
        aliases = _listed(first_of(value, layout.aliases))
        found: dict[str, Any] = {
            name: told for name, keys in layout.rest.items() if (told := first_of(value, keys)) is not None
        }  # fmt: skip
        found |= {
            name: value[name] for name in cls.model_fields.keys() - found.keys() if name in value
        }
        found |= {"question": question, "aliases": [*answers[1:], *aliases]}
        found["id"] = as_text(first_of(value, layout.id)) or _hash(question)
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


def first_of(row: Mapping[str, Any], keys: Keys) -> Any:
    """Return the value under the first key that has one, ``a.b`` being inside ``a``; ``None`` if none has."""
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
        return [None if one is None else as_text(one) for one in value]
    return [] if value is None else [as_text(value)]


def as_text(value: Any) -> Any:
    """A number as a text; texts stay, and what is neither is an error later. Raises ``ValueError`` for NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no answer")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return "" if value is None else value


def _hash(question: Any) -> str:
    return question_key(question) if isinstance(question, str) else "unknown"


class MusiqueParagraph(Frozen):
    """One paragraph of Wikipedia."""

    title: Text
    text: Text = Field(validation_alias=AliasChoices("text", "paragraph_text"))
    gold: bool = Field(validation_alias=AliasChoices("gold", "is_supporting"))


class Hop(Frozen):
    """A sub-question. ``#1`` stands for the answer of the first one; many are ``subject >> relation``."""

    question: Text
    answer: Text
    paragraph: Annotated[int, Field(ge=0)] | None = None
    """The place of the paragraph that it rests on, if upstream tells it."""

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "paragraph_support_idx" in value:
            return {**value, "paragraph": value["paragraph_support_idx"]}
        return value


class MusiqueRow(AnswerRow):
    """MuSiQue-Ans. Copies that have questions and answers alone are read as well."""

    layout: ClassVar[Layout] = Layout(rest={"hops": ("hops", "question_decomposition")})
    hops: tuple[Hop, ...] = ()
    paragraphs: tuple[MusiqueParagraph, ...] = ()
    answerable: bool = True

    @property
    def flaw(self) -> str:
        """MuSiQue-Full has questions whose paragraphs don't tell the answer."""
        return "" if self.answerable else "can't be answered by its paragraphs"

    @property
    def passages(self) -> tuple[RowPassage, ...]:
        return tuple(RowPassage(one.title, one.text, one.gold) for one in self.paragraphs)

    @field_validator("paragraphs", mode="before")
    @classmethod
    def _in_order(cls, value: Any) -> Any:
        """Upstream numbers the paragraphs; hops name those numbers."""
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
                raise ValueError(f"hop {number} names paragraph {hop.paragraph}, and there is none")
        return self


HIDDEN = "?"
"""GAIA's answer to the questions of its test split."""


class GaiaRow(WebRow):
    """GAIA: tasks for assistants of three levels; some come with a file."""

    layout: ClassVar[Layout] = Layout(
        id=("id", "task_id"), rest={"level": ("level", "Level"), "file": ("file", "file_name")}
    )

    @property
    def flaw(self) -> str:
        """The answers of its test split are not public."""
        return "has no public answer" if self.answer.strip() == HIDDEN else super().flaw


class HleRow(WebRow):
    """Humanity's Last Exam: questions of experts of many subjects."""

    columns: ClassVar[tuple[str, ...] | None] = (
        "id", "question", "answer", "answer_type", "category", "raw_subject", "image",
    )  # fmt: skip
    layout: ClassVar[Layout] = Layout(
        rest={"subject": ("subject", "category"), "kind": ("kind", "answer_type")}
    )


class WebWalkerRow(WebRow):
    """WebWalkerQA: questions about what stands deep in a web site."""

    layout: ClassVar[Layout] = Layout(
        rest={
            "subject": ("subject", "info.domain"),
            "level": ("level", "info.Level"),
            "kind": ("kind", "info.type"),
        }
    )

    @classmethod
    def opened(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """The site is the first of the pages, those with the answer follow."""
        if "pages" in raw or not isinstance(raw.get("root_url"), str):
            return raw
        info = raw.get("info")
        sources = info.get("source_website") if isinstance(info, Mapping) else None
        return {**raw, "pages": [raw["root_url"], *(sources or ())]}


class BrowseCompRow(WebRow):
    """BrowseComp: short answers that are hard to find.

    Question and answer are published encrypted, so that they don't get into training data: base64 of the text XOR the
    SHA-256 of the row's ``canary``, repeated.
    """

    layout: ClassVar[Layout] = Layout(rest={"subject": ("subject", "problem_topic")})

    @classmethod
    def opened(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row decrypted; raises ``ValueError`` if its canary isn't the key."""
        canary = raw.get("canary")
        if not isinstance(canary, str):
            return raw
        texts = {name: raw[name] for name in ("problem", "question", "answer") if name in raw}
        return {**raw, **{name: decrypted(text, canary) for name, text in texts.items()}}


class OlympiadRow(ExamRow):
    """OlympiadBench: problems of olympiads; several values that are asked for stand in one answer."""

    layout: ClassVar[Layout] = Layout(
        rest={"level": ("level", "difficulty"), "subject": ("subject", "subfield")}
    )

    @classmethod
    def opened(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """The list of final answers is one answer, the list of solutions' first is the solution."""
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


def decrypted(text: Any, canary: str) -> str:
    """A text of BrowseComp. Raises ``ValueError`` for what is not a text under that canary."""
    key = hashlib.sha256(canary.encode()).digest()
    try:
        sealed = base64.b64decode(text, validate=True)
        return bytes(one ^ other for one, other in zip(sealed, cycle(key), strict=False)).decode()
    except (binascii.Error, TypeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError("it can't be decrypted by its canary") from error
