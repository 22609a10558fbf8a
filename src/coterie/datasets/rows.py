"""Typed rows of data sets: the base class, HotpotQA, 2WikiMultiHopQA, GSM8K, TriviaQA and CBT.

A row is read from the published formats as well as from its own ``model_dump_json``. Missing fields and wrong types are
a pydantic ``ValidationError``, which ``datasets.files`` turns into an error that names file and line.
"""

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any, ClassVar

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from coterie.config.text import read_json

Text = Annotated[str, StringConstraints(pattern=r"\S")]

_NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)")


class Frozen(BaseModel):
    """What can't be changed, and passes over what it doesn't know."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class SetRow(Frozen):
    """What can be read of a file of a set."""

    columns: ClassVar[tuple[str, ...] | None] = None
    """What is read of a parquet file, if it has much more than is wanted; all if ``None``."""


class QuestionRow(SetRow):
    """What rows of every set of tasks have."""

    id: Text = Field(validation_alias=AliasChoices("id", "_id"))
    """Unique in its set, and stable."""
    question: Text
    answer: Text

    @property
    def key(self) -> str:
        """A short hash of the question, equal for questions that differ only in case and spacing."""
        return question_key(self.question)

    @property
    def flaw(self) -> str:
        """Why it can't be used, such as ``has no options``; empty if it can be."""
        return ""

    @property
    def lack(self) -> str:
        """What upstream has of it and can't be read, such as ``private tests``; empty if nothing."""
        return ""

    @property
    def passages(self) -> tuple["RowPassage", ...]:
        """What upstream gives to read for it, the gold and the others; empty if nothing."""
        return ()

    @property
    def usable(self) -> bool:
        """Whether it has no flaw. What upstream has without the context of a set is not usable."""
        return not self.flaw


@dataclass(frozen=True, slots=True)
class RowPassage:
    """A text of an encyclopedia or of the web."""

    title: str
    text: str
    gold: bool
    """Whether the answer to its row's question rests on it."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What upstream has in the place of a row, and no row can be made of."""

    reason: str
    """Such as ``has no actions``; those with the same reason are counted together."""
    where: str
    """File, line and id, for people."""


class Paragraph(Frozen):
    """One Wikipedia paragraph, as sentences."""

    title: Text
    sentences: tuple[str, ...] = Field(min_length=1)


class SupportingFact(Frozen):
    """A sentence that the answer rests on."""

    title: Text
    sentence: Annotated[int, Field(strict=True, ge=0)]
    """Its index in the paragraph; a few of upstream's lie beyond the last sentence."""


class HotpotRow(QuestionRow):
    """HotpotQA, distractor setting: a two-hop question and a pool of paragraphs, two of them gold."""

    type: str = ""
    """``bridge`` or ``comparison``."""
    level: str = ""
    """``easy``, ``medium`` or ``hard``."""
    context: tuple[Paragraph, ...] = Field(default=(), min_length=1)
    """Empty in copies that leave the paragraphs of some rows out: those rows are not usable."""
    supporting_facts: tuple[SupportingFact, ...] = Field(min_length=1)
    glue: ClassVar[str] = ""
    """What stands between two sentences of a paragraph."""

    @property
    def flaw(self) -> str:
        """Without paragraphs there is nothing to deal out, and nothing to search."""
        return "" if self.context else "has no paragraphs"

    @property
    def passages(self) -> tuple[RowPassage, ...]:
        gold = {fact.title for fact in self.supporting_facts}
        return tuple(
            RowPassage(one.title, self.glue.join(one.sentences).strip(), one.title in gold)
            for one in self.context
        )

    @field_validator("context", mode="before")
    @classmethod
    def _paragraphs(cls, value: Any) -> Any:
        return _pairs(value, "title", "sentences", "sentences")

    @field_validator("supporting_facts", mode="before")
    @classmethod
    def _facts(cls, value: Any) -> Any:
        return _pairs(value, "title", "sent_id", "sentence")

    @model_validator(mode="after")
    def _supported(self) -> "HotpotRow":
        titles = {paragraph.title for paragraph in self.context}
        if titles and not any(fact.title in titles for fact in self.supporting_facts):
            raise ValueError("none of the supporting facts' titles is among the paragraphs")
        return self


class Evidence(Frozen):
    """A fact that the answer rests on, such as ``(Emma, author, Jane Austen)``."""

    subject: Text
    relation: Text
    object: Text


class TwoWikiRow(HotpotRow):
    """2WikiMultiHopQA: as HotpotQA, with supporting facts and evidences in the order of the reasoning.

    ``type`` is ``comparison``, ``inference``, ``compositional`` or ``bridge_comparison``. The hub's copy keeps
    paragraphs, facts and evidences as JSON in a text. Its sentences have no spaces before them; paragraphs
    without sentences are left out.
    """

    glue: ClassVar[str] = " "
    evidences: tuple[Evidence, ...] = ()

    @field_validator("evidences", mode="before")
    @classmethod
    def _triples(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return [
            dict(zip(("subject", "relation", "object"), one, strict=True))
            if isinstance(one, list | tuple) and len(one) == 3
            else one
            for one in value
        ]

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        value = dict(value)
        for name in ("context", "supporting_facts", "evidences"):
            if isinstance(value.get(name), str):
                try:
                    value[name] = read_json(value[name])
                except ValueError as error:
                    raise ValueError(f"{name} is a text, but not JSON ({error})") from error
        if isinstance(value.get("context"), list):
            value["context"] = [
                pair
                for pair in value["context"]
                if not (isinstance(pair, list) and len(pair) == 2 and pair[1] == [])
            ]
        return value


class Gsm8kRow(QuestionRow):
    """GSM8K: a word problem, its worked solution and the number that it comes to.

    Upstream has no id and keeps solution and number in one ``answer``, divided by ``####``. The id is
    a hash of the question; commas are taken out of the number.
    """

    solution: Text
    """Upstream's reasoning, calculator annotations (``<<48/2=24>>``) included."""

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        value = from_verl(value)
        if not isinstance(value, Mapping) or "solution" in value:
            return value
        question, answer = value.get("question"), value.get("answer")
        if not isinstance(question, str) or not isinstance(answer, str):
            return {**value, "id": "unknown", "solution": "unknown"}
        solution, marker, number = answer.rpartition("####")
        if not marker:
            raise ValueError("its answer has no '####' before the final number")
        return {
            "id": question_key(question),
            "question": question,
            "solution": solution.strip(),
            "answer": number.strip().replace(",", ""),
        }

    @field_validator("answer")
    @classmethod
    def _number(cls, value: str) -> str:
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"{value!r} is not a number")
        return value


def question_key(question: str) -> str:
    """16 hexadecimal digits, equal for questions that differ only in case and spacing."""
    text = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def question_text(value: Any) -> Any:
    """Return a question that is a list of messages as one text, their texts one after the other; others as they are.

    Raises ``ValueError`` for messages that cannot be one question: of an assistant or a tool, or without text.
    """
    if not isinstance(value, list | tuple):
        return value
    texts = []
    for message in value:
        role, content = (
            map(message.get, ("role", "content")) if isinstance(message, Mapping) else (0, 0)
        )
        if isinstance(content, list | tuple) and all(isinstance(part, Mapping) for part in content):
            pieces = [part.get("text") if part.get("type") == "text" else None for part in content]
            content = "".join(pieces) if all(isinstance(one, str) for one in pieces) else None  # type: ignore[arg-type]
        if role not in ("system", "developer", "user") or not isinstance(content, str):
            raise ValueError(
                "its question is a list, but not of a system's and a user's messages with text"
            )
        texts.append(content.strip())
    return "\n\n".join(texts)


def from_verl(row: Any) -> Any:
    """Return a row in verl's form with our names too: its gold is ``reward_model.ground_truth``, as of verl's graders.

    ``extra_info.answer`` is a worked solution, or a list of all right answers. Other rows are returned as they are.
    """
    graded = row.get("reward_model") if isinstance(row, Mapping) else None
    if not isinstance(graded, Mapping) or "ground_truth" not in graded:
        return row
    extra = row.get("extra_info")
    extra = extra if isinstance(extra, Mapping) else {}
    gold, told = graded["ground_truth"], extra.get("answer")
    if isinstance(gold, Mapping) and "target" in gold:  # Search-R1
        gold = gold["target"]
    asked = question_text(row.get("question") or extra.get("question") or row.get("prompt"))
    found = {"question": asked, "answer": gold}
    if isinstance(told, list | tuple):
        found["aliases"] = list(told)
    elif isinstance(told, str):
        found["solution"] = told.partition("####")[0].strip()
    if isinstance(asked, str) and not row.get("id"):  # extra_info.index is unique in its split only
        found["id"] = question_key(asked)
    return {**row, **found}


def _pairs(value: Any, first: str, second: str, name: str) -> Any:
    """Upstream's pairs, or the hub's two parallel lists, as ``{first: ..., name: ...}`` each."""
    if isinstance(value, Mapping):
        if not {first, second} <= value.keys():
            raise ValueError(f"expected lists {first!r} and {second!r}")
        if len(value[first]) != len(value[second]):
            raise ValueError(f"{first!r} and {second!r} are lists of different lengths")
        value = list(zip(value[first], value[second], strict=True))
    if not isinstance(value, list | tuple):
        return value
    return [
        dict(zip((first, name), item, strict=True))
        if isinstance(item, list | tuple) and len(item) == 2
        else item
        for item in value
    ]


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
