"""Typed rows of data sets: the base class, HotpotQA, 2WikiMultiHopQA, GSM8K, TriviaQA and CBT.

A row reads the published formats and its own ``model_dump_json``. Missing fields and wrong types raise a pydantic
``ValidationError``, which ``datasets.files`` converts into an error with file and line.
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

from coterie.config.folders import read_json

Text = Annotated[str, StringConstraints(pattern=r"\S")]

_NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)")


class Frozen(BaseModel):
    """Frozen model that ignores unknown fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class SetRow(Frozen):
    """Row of a file."""

    columns: ClassVar[tuple[str, ...] | None] = None
    """Columns to read from a Parquet file; ``None`` for all."""


class QuestionRow(SetRow):
    """Question and answer, the base of all rows with tasks."""

    id: Text = Field(validation_alias=AliasChoices("id", "_id"))
    """Stable id, unique in the data set."""
    question: Text
    answer: Text

    @property
    def key(self) -> str:
        """Short hash of the question, independent of case and spacing."""
        return question_key(self.question)

    @property
    def flaw(self) -> str:
        """Reason why the row is unusable, such as ``has no options``; empty if it is usable."""
        return ""

    @property
    def lack(self) -> str:
        """Published part of the row that is not read, such as ``private tests``; may be empty."""
        return ""

    @property
    def passages(self) -> tuple["RowPassage", ...]:
        """Passages of the row, gold and others."""
        return ()

    @property
    def usable(self) -> bool:
        """True if the row has no flaw."""
        return not self.flaw


@dataclass(frozen=True, slots=True)
class RowPassage:
    """Passage of an encyclopedia or web page."""

    title: str
    text: str
    gold: bool
    """True if it supports the answer."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Published entry that makes no row."""

    reason: str
    """Reason, such as ``has no actions``. Entries are counted by reason."""
    where: str
    """File, line and id."""


class Paragraph(Frozen):
    """Sentences of a Wikipedia paragraph."""

    title: Text
    sentences: tuple[str, ...] = Field(min_length=1)


class SupportingFact(Frozen):
    """Sentence that supports the answer."""

    title: Text
    sentence: Annotated[int, Field(strict=True, ge=0)]
    """Index in the paragraph; a few are out of range in upstream."""


class HotpotRow(QuestionRow):
    """HotpotQA, distractor setting: a two-hop question and paragraphs, two of which are gold."""

    type: str = ""
    """``bridge`` or ``comparison``."""
    level: str = ""
    """``easy``, ``medium`` or ``hard``."""
    context: tuple[Paragraph, ...] = Field(default=(), min_length=1)
    """Paragraphs; empty in some copies, whose rows are then unusable."""
    supporting_facts: tuple[SupportingFact, ...] = Field(min_length=1)
    glue: ClassVar[str] = ""
    """Separator of sentences in a paragraph."""

    @property
    def flaw(self) -> str:
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
    """Fact that supports the answer, such as ``(Emma, author, Jane Austen)``."""

    subject: Text
    relation: Text
    object: Text


class TwoWikiRow(HotpotRow):
    """2WikiMultiHopQA: like HotpotQA, with supporting facts and evidences in the order of the reasoning.

    ``type`` is ``comparison``, ``inference``, ``compositional`` or ``bridge_comparison``. The hub's copy stores
    paragraphs, facts and evidences as JSON text, without spaces between sentences. Empty paragraphs are dropped.
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
    """GSM8K: a word problem, its solution and the resulting number.

    Upstream's ``answer`` contains solution and number, separated by ``####``. The id is a hash of the question.
    Commas are removed from the number.
    """

    solution: Text
    """Solution with calculator annotations (``<<48/2=24>>``)."""

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
    """Hash a question into 16 hexadecimal digits, ignoring case and spacing."""
    text = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def question_text(value: Any) -> Any:
    """Join a question that is a list of messages into one text. Return other values unchanged.

    Raises ``ValueError`` for messages of an assistant or tool, or without text.
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
            content = "".join(pieces) if all(isinstance(piece, str) for piece in pieces) else None  # type: ignore[arg-type]
        if role not in ("system", "developer", "user") or not isinstance(content, str):
            raise ValueError(
                "its question is a list, but not of system and user messages with text"
            )
        texts.append(content.strip())
    return "\n\n".join(texts)


def from_verl(row: Any) -> Any:
    """Add our names to a row in verl's format. Return other rows unchanged.

    The answer is ``reward_model.ground_truth``, as in verl's graders. ``extra_info.answer`` is a solution or a list of
    all right answers.
    """
    graded = row.get("reward_model") if isinstance(row, Mapping) else None
    if not isinstance(graded, Mapping) or "ground_truth" not in graded:
        return row
    extra = row.get("extra_info")
    extra = extra if isinstance(extra, Mapping) else {}
    gold, answer = graded["ground_truth"], extra.get("answer")
    if isinstance(gold, Mapping) and "target" in gold:  # Search-R1
        gold = gold["target"]
    question = question_text(row.get("question") or extra.get("question") or row.get("prompt"))
    fields = {"question": question, "answer": gold}
    if isinstance(answer, list | tuple):
        fields["aliases"] = list(answer)
    elif isinstance(answer, str):
        fields["solution"] = answer.partition("####")[0].strip()
    if isinstance(question, str) and not row.get(
        "id"
    ):  # extra_info.index is unique in its split only
        fields["id"] = question_key(question)
    return {**row, **fields}


def _pairs(value: Any, first: str, second: str, name: str) -> Any:
    """Convert pairs, or the hub's two parallel lists, into ``{first: ..., name: ...}``."""
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
"""Placeholder of the missing word in a CBT question."""


class TriviaRow(QuestionRow):
    """TriviaQA (reading comprehension): a trivia question, its answers and snippets of a search engine.

    Upstream has ``{value, aliases}`` as the answer and ``search_results.description`` as snippets. Rows may also have a
    plain ``answer`` with ``aliases``, a list of answers, and a ``context`` whose sentences become the snippets.
    """

    columns: ClassVar[tuple[str, ...] | None] = (
        "question", "question_id", "answer", "search_results.description",
        "search_results.title", "id", "aliases", "snippets", "titles", "context",
    )  # fmt: skip

    aliases: tuple[str, ...] = ()
    snippets: tuple[Text, ...] = ()
    titles: tuple[str, ...] = ()
    """Titles of the snippets' pages; empty if unknown."""

    @property
    def passages(self) -> tuple[RowPassage, ...]:
        """Snippets with the titles of their pages; gold if they contain an answer."""
        golds = [one.casefold() for one in (self.answer, *self.aliases)]
        return tuple(
            RowPassage(title, text, any(gold in text.casefold() for gold in golds))
            for title, text in zip(self.titles, self.snippets, strict=False)
            if title.strip()
        )

    @property
    def flaw(self) -> str:
        """Rows of upstream's Wikipedia half have no snippets."""
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
        snippets = _snippets(value)
        titles = [title for title, _ in snippets]
        known |= {
            "snippets": [text for _, text in snippets],
            "titles": titles if any(titles) else (),
        }
        return {**value, **known}

    @model_validator(mode="after")
    def _titled(self) -> "TriviaRow":
        if self.titles and len(self.titles) != len(self.snippets):
            raise ValueError("it has different numbers of titles and snippets")
        return self

    @field_validator("aliases", mode="after")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(alias for alias in value if alias.strip()))


class CbtRow(QuestionRow):
    """Children's Book Test: 20 sentences of a book, and the next sentence with a missing word."""

    sentences: tuple[Text, ...] = Field(min_length=2)
    options: tuple[Text, ...] = Field(min_length=2)

    @property
    def key(self) -> str:
        """Hash of the question and its context, since short sentences recur."""
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
            is_valid = isinstance(question, str) and isinstance(sentences, list)
            texts = [question, *map(str, sentences)] if is_valid else []
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
    """Return (title, text) of each non-blank snippet; unknown titles are empty."""
    results = row.get("search_results")
    titles: Any = ()
    if results is None:
        context = row.get("context") or ""
        texts = _SENTENCE_END.split(context) if isinstance(context, str) else context
    elif isinstance(results, Mapping):
        texts, titles = results.get("description") or (), results.get("title") or ()
    else:
        texts = [one.get("description") if isinstance(one, Mapping) else one for one in results]
        titles = [one.get("title") if isinstance(one, Mapping) else "" for one in results]
    return [
        (title if isinstance(title, str) else "", text)
        for title, text in zip_longest(list(titles)[: len(texts)], texts)
        if text is not None and not _blank(text)
    ]
