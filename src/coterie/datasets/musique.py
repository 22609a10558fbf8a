"""Typed rows of MuSiQue: questions of two to four hops with their decomposition and 20 paragraphs."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, Field, field_validator, model_validator

from coterie.datasets.answer_rows import AnswerRow, Layout
from coterie.datasets.rows import Frozen, RowPassage, Text


class MusiqueParagraph(Frozen):
    """One paragraph of Wikipedia."""

    title: Text
    text: Text = Field(validation_alias=AliasChoices("text", "paragraph_text"))
    gold: bool = Field(validation_alias=AliasChoices("gold", "is_supporting"))
    """Whether a hop rests on it."""


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
    """In the order of the reasoning."""
    paragraphs: tuple[MusiqueParagraph, ...] = ()
    answerable: bool = True

    @property
    def flaw(self) -> str:
        """MuSiQue-Full has questions whose paragraphs don't tell the answer."""
        return "" if self.answerable else "can't be answered by its paragraphs"

    @property
    def passages(self) -> tuple[RowPassage, ...]:
        """All its paragraphs."""
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
