"""Typed rows of TriviaQA and CBT: questions on snippets of the web, and on a page of a book."""

import re
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from coterie.datasets.rows import QuestionRow, RowPassage, Text, question_key

_SENTENCE_END = re.compile(r"(?<=[.?!])\s+")
BLANK = "XXXXX"
"""What stands in a CBT question for the word that is asked for."""


class TriviaRow(QuestionRow):
    """TriviaQA (reading comprehension): a trivia question, its answers, and what a search engine said.

    Upstream has the answer as ``{value, aliases}`` and the snippets as ``search_results.description``.
    A plain ``answer`` with ``aliases``, a list of answers, and a ``context`` (whose sentences become
    the snippets) are read as well.
    """

    columns: ClassVar[tuple[str, ...] | None] = (
        "question", "question_id", "answer", "search_results.description",
        "search_results.title", "id", "aliases", "snippets", "titles", "context",
    )  # fmt: skip

    aliases: tuple[str, ...] = ()
    """Other right answers."""
    snippets: tuple[Text, ...] = ()
    titles: tuple[str, ...] = ()
    """Of the snippets' pages, one each; empty if upstream tells none."""

    @property
    def passages(self) -> tuple[RowPassage, ...]:
        """Snippets with the titles of their pages; gold is where an answer stands."""
        golds = [one.casefold() for one in (self.answer, *self.aliases)]
        return tuple(
            RowPassage(title, text, any(gold in text.casefold() for gold in golds))
            for title, text in zip(self.titles, self.snippets, strict=False)
            if title.strip()
        )

    @property
    def flaw(self) -> str:
        """Upstream's rows of the Wikipedia half have no snippets: there is nothing to deal out."""
        return "" if self.snippets else "has no snippets"

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "snippets" in value:
            return value
        answer: Any = value.get("answer", value.get("short_answers"))
        aliases = value.get("aliases") or ()
        if isinstance(answer, Mapping):
            answer, aliases = answer.get("value"), answer.get("aliases") or ()
        elif isinstance(answer, list | tuple):
            answer, aliases = next(iter(answer), None), answer
        known = {"id": _id(value), "answer": answer, "aliases": aliases}
        found = _snippets(value)
        titles = [title for title, _ in found]
        known |= {"snippets": [text for _, text in found], "titles": titles if any(titles) else ()}
        return {**value, **known}

    @model_validator(mode="after")
    def _titled(self) -> "TriviaRow":
        if self.titles and len(self.titles) != len(self.snippets):
            raise ValueError("it has other numbers of titles and snippets")
        return self

    @field_validator("aliases", mode="after")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(alias for alias in value if alias.strip()))


class CbtRow(QuestionRow):
    """Children's Book Test: 20 sentences of a book, and the next one with a word taken out."""

    sentences: tuple[Text, ...] = Field(min_length=2)
    options: tuple[Text, ...] = Field(min_length=2)

    @property
    def key(self) -> str:
        """Of the question and what stands before it: short sentences come again elsewhere."""
        return question_key("\n".join((self.question, *self.sentences)))

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        value = dict(value)
        for name in ("sentences", "options"):
            if isinstance(value.get(name), list | tuple):
                value[name] = [one for one in value[name] if not _blank(one)]
        question, sentences = value.get("question"), value.get("sentences")
        if "id" not in value:
            whole = isinstance(question, str) and isinstance(sentences, list)
            texts = [question, *map(str, sentences)] if whole else []
            value["id"] = question_key("\n".join(texts)) if texts else "unknown"
        return value

    @model_validator(mode="after")
    def _answerable(self) -> "CbtRow":
        if BLANK not in self.question:
            raise ValueError(f"its question has no {BLANK}")
        if self.answer not in self.options:
            raise ValueError(f"its answer {self.answer!r} is not among the options")
        return self


def _blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def _id(row: Mapping[str, Any]) -> Any:
    question = row.get("question")
    return row.get("question_id") or (
        question_key(question) if isinstance(question, str) else "unknown"
    )


def _snippets(row: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(title, text) of each snippet that says something; a title that isn't told is empty."""
    found = row.get("search_results")
    titles: Any = ()
    if found is None:
        context = row.get("context") or ""
        texts = _SENTENCE_END.split(context) if isinstance(context, str) else context
    elif isinstance(found, Mapping):
        texts, titles = found.get("description") or (), found.get("title") or ()
    else:
        texts = [one.get("description") if isinstance(one, Mapping) else one for one in found]
        titles = [one.get("title") if isinstance(one, Mapping) else "" for one in found]
    return [
        (title if isinstance(title, str) else "", text)
        for title, text in zip_longest(list(titles)[: len(texts)], texts)
        if text is not None and not _blank(text)
    ]
