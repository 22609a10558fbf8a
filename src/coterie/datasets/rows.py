"""Typed rows of data sets: the base class, and rows of question-answering sets.

A row reads the published formats and its own ``model_dump_json``. Missing fields and wrong types raise a pydantic
``ValidationError``, which ``datasets.files`` converts into an error with file and line.
"""

import base64
import binascii
import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle, zip_longest
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from coterie.config.folders import read_json

Text = Annotated[str, StringConstraints(pattern=r"\S")]
Keys = tuple[str, ...]
Raw = Mapping[str, Any]
"""Published row."""


class Frozen(BaseModel):
    """Frozen model that ignores unknown fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class SetRow(Frozen):
    """Row of a file."""

    columns: ClassVar[Keys | None] = None
    """Columns to read from a Parquet file; ``None`` for all."""

    @property
    def flaw(self) -> str:
        """Reason why the row is unusable, such as ``has no options``; empty if it is usable."""
        return ""


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


class QuestionRow(SetRow):
    """Question and answer, the base of all rows with tasks."""

    id: Text = Field(validation_alias=AliasChoices("id", "_id"))
    """Stable id, unique in the data set."""
    question: Text
    answer: Text

    @property
    def key(self) -> str:
        """Hash of the question, the key of its task."""
        return question_key(self.question)

    @property
    def split_group(self) -> str:
        """Hash that is equal for rows which stay in one split if possible."""
        return self.key

    @property
    def identity(self) -> str:
        """Text that is equal for equal rows, which are never in both splits."""
        return self.id

    @property
    def shown_question(self) -> str:
        """The question as a model sees it: with the options, the context, ... that it needs."""
        return self.question

    @property
    def lack(self) -> str:
        """Published part of the row that is not read, such as ``private tests``; may be empty."""
        return ""

    @property
    def passages(self) -> tuple[RowPassage, ...]:
        """Passages that come with the question."""
        return ()

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        """Convert a published row into the fields of the class. Raise ``ValueError`` for a broken row."""
        return raw

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        return cls.normalize(from_verl(value)) if isinstance(value, Mapping) else value


def with_options(question: str, options: Iterable[str]) -> str:
    """Return a question followed by a line of its options."""
    return f"{question}\nOptions: {' | '.join(' '.join(option.split()) for option in options)}"


def kind_of(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def question_key(question: Any) -> str:
    """Hash a question into 16 hexadecimal digits, ignoring case and spacing.

    Return a constant for a value that is not text, which validation rejects.
    """
    if not isinstance(question, str):
        return "unknown"
    # NFKC unites variants of a character, such as full-width digits, in which copies of a set
    # differ.
    text = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def question_text(value: Any) -> Any:
    """Join a question that is a list of messages into one text. Return other values unchanged.

    Raises ``ValueError`` for messages of an assistant or tool, or without text.
    """
    if not isinstance(value, list | tuple):
        return value
    try:
        if not {message["role"] for message in value} <= {"system", "developer", "user"}:
            raise TypeError("another role")
        contents = [message["content"] for message in value]
        # Content is a text or a list of text parts.
        texts = [
            content if isinstance(content, str) else "".join(part["text"] for part in content)
            for content in contents
        ]
    except (KeyError, TypeError) as error:
        problem = "its question is no list of system and user messages with text"
        raise ValueError(problem) from error
    return "\n\n".join(text.strip() for text in texts)


def from_verl(row: Raw) -> Raw:
    """Add our names to a row in verl's format. Return other rows unchanged.

    The answer is ``reward_model.ground_truth``, as in verl's graders. ``extra_info.answer`` is a solution or a list of
    all right answers.
    """
    graded = row.get("reward_model")
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
    if isinstance(question, str) and not row.get("id"):
        fields["id"] = question_key(question)  # extra_info.index is unique in its split only
    return {**row, **fields}


def parsed_json(value: Any, name: str) -> Any:
    """Parse a value that is JSON text. Return other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except ValueError as error:
        raise ValueError(f"{name} is a text, but not JSON ({error})") from error


def _records(*names: str, lists: Keys = ()) -> BeforeValidator:
    """Return a validator that converts tuples, or the hub's parallel ``lists``, into objects with ``names``."""

    def convert(value: Any) -> Any:
        # The hub stores a list of objects as an object of parallel lists.
        if isinstance(value, Mapping):
            value = list(zip(*(value.get(name) or () for name in lists), strict=True))
        return [
            dict(zip(names, item, strict=True)) if isinstance(item, list | tuple) else item
            for item in value
        ]

    return BeforeValidator(convert)


# -- questions with paragraphs ----------------------------------------------------------------


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
    """HotpotQA, distractor setting: a two-hop question and paragraphs, two of them gold."""

    type: str = ""
    """``bridge`` or ``comparison``."""
    level: str = ""
    context: Annotated[
        tuple[Paragraph, ...], _records("title", "sentences", lists=("title", "sentences"))
    ] = Field(default=(), min_length=1)
    """Paragraphs; empty in some copies, whose rows are then unusable."""
    supporting_facts: Annotated[
        tuple[SupportingFact, ...], _records("title", "sentence", lists=("title", "sent_id"))
    ] = Field(min_length=1)
    glue: ClassVar[str] = ""
    """Separator of sentences in a paragraph."""

    @property
    def flaw(self) -> str:
        return "" if self.context else "has no paragraphs"

    @property
    def passages(self) -> tuple[RowPassage, ...]:
        gold = {fact.title for fact in self.supporting_facts}
        return tuple(
            RowPassage(
                document.title, self.glue.join(document.sentences).strip(), document.title in gold
            )
            for document in self.context
        )

    @model_validator(mode="after")
    def _supported(self) -> "HotpotRow":
        titles = {paragraph.title for paragraph in self.context}
        # A few facts have no paragraph in upstream, but a row in which none has one is broken.
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
    evidences: Annotated[tuple[Evidence, ...], _records("subject", "relation", "object")] = ()

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        texts = ("context", "supporting_facts", "evidences")
        row = {**raw, **{name: parsed_json(raw[name], name) for name in texts if name in raw}}
        if isinstance(row.get("context"), list):
            # In upstream, an empty paragraph is `[title, []]`.
            row["context"] = [
                entry
                for entry in row["context"]
                if not isinstance(entry, list) or entry[1:] != [[]]
            ]
        return row


class Gsm8kRow(QuestionRow):
    """GSM8K: a word problem, its solution and the resulting number.

    Upstream's ``answer`` contains solution and number, separated by ``####``. The id is a hash of the question.
    Commas are removed from the number.
    """

    answer: Annotated[str, StringConstraints(pattern=r"^-?(\d+(\.\d*)?|\.\d+)$")]
    solution: Text
    """Solution with calculator annotations (``<<48/2=24>>``)."""

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        if "solution" in raw:
            return raw
        question, answer = raw["question"], raw["answer"]
        solution, marker, number = answer.rpartition("####")
        if not marker:
            raise ValueError("its answer has no '####' before the final number")
        answer = number.strip().replace(",", "")
        values = {"question": question, "solution": solution.strip(), "answer": answer}
        return {"id": question_key(question), **values}


BLANK = "XXXXX"
"""Placeholder of the missing word in a CBT question."""


class CbtRow(QuestionRow):
    """Children's Book Test: 20 sentences of a book, and the next sentence with a missing word."""

    sentences: tuple[Text, ...] = Field(min_length=2)
    options: tuple[Text, ...] = Field(min_length=2)

    @property
    def key(self) -> str:
        """Hash of the question and its context, since short sentences recur."""
        return question_key("\n".join((self.question, *self.sentences)))

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        lists = {
            name: [item for item in raw[name] if not _is_blank(item)]
            for name in ("sentences", "options")
            if not isinstance(raw[name], str)
        }
        id_ = question_key("\n".join((raw["question"], *map(str, lists["sentences"]))))
        return {"id": id_, **raw, **lists}

    @model_validator(mode="after")
    def _answerable(self) -> "CbtRow":
        if BLANK not in self.question:
            raise ValueError(f"its question has no {BLANK}")
        if self.answer not in self.options:
            raise ValueError(f"its answer {self.answer!r} is not among the options")
        return self


def _is_blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


# -- questions with several answers -----------------------------------------------------------

ANSWER_KEYS: Mapping[str, Keys] = {
    "id": (
        "id", "_id", "question_id", "task_id", "unique_id", "qid", "ID", "index", "extra_info.index",
    ),
    "question": ("question", "Question", "problem", "Problem", "extra_info.question"),
    "answer": (
        "answer", "Answer", "golden_answers", "possible_answers", "Final answer", "final_answer", "short_answers",
        "extra_info.answer",
    ),
    "aliases": ("aliases", "answer_aliases"),
}  # fmt: skip
"""Possible keys of each field in published files; the first present key counts, and ``a.b`` is inside ``a``."""


def _unique(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in value if text.strip()))


class AnswerRow(QuestionRow):
    """Question with all its right answers, as in NQ, PopQA and Bamboogle.

    The first of a list of answers (or JSON text of a list) is ``answer``, the rest are ``aliases``. The default id is a
    hash of the question. Numbers become text.
    """

    keys: ClassVar[Mapping[str, Keys]] = ANSWER_KEYS
    aliases: Annotated[tuple[str, ...], AfterValidator(_unique)] = ()

    @property
    def answers(self) -> tuple[str, ...]:
        return (self.answer, *self.aliases)

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        # A field without listed keys is read under its own name.
        fields = {name: first_of(raw, cls.keys.get(name, (name,))) for name in cls.model_fields}
        question = question_text(fields["question"])
        answers, aliases = (answer_list(fields[name]) for name in ("answer", "aliases"))
        fields |= {"question": question, "aliases": [*answers[1:], *aliases]}
        fields["id"] = as_text(fields["id"]) or question_key(question)
        # Missing values are omitted, so that the defaults of the fields apply.
        fields = {
            key: field for key, field in fields.items() if field is not None and key != "answer"
        }
        return {**fields, "answer": answers[0]} if answers else fields


def first_of(row: Mapping[str, Any], keys: Keys) -> Any:
    """Return the first value that is not ``None``; ``a.b`` is inside ``a``."""
    for name in keys:
        value: Any = row
        for part in [name] if name in row else name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def answer_list(value: Any) -> list[Any]:
    """Convert an answer, a list of answers or its JSON text into a list of texts."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        try:
            items = read_json(value)
        except ValueError:
            return [value]
        # Only a list of texts counts: a list of numbers may be the answer.
        is_list = isinstance(items, list) and all(isinstance(item, str) for item in items)
        return items if is_list and items else [value]
    if isinstance(value, list | tuple):
        return [None if item is None else as_text(item) for item in value]
    return [] if value is None else [as_text(value)]


def as_text(value: Any) -> Any:
    """Convert a number into text and ``None`` into an empty text. Raise ``ValueError`` for NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not an answer")
    # Tables store integers with missing cells as floats, so 5.0 means 5.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return "" if value is None else value


Label = Annotated[str, BeforeValidator(as_text)]
"""Text that may be a number in files."""
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+")


class TriviaRow(AnswerRow):
    """TriviaQA (reading comprehension): a trivia question, its answers and snippets of a search engine.

    Upstream has ``{value, aliases}`` as the answer and ``search_results.description`` as snippets. Rows may also have a
    plain ``answer`` with ``aliases``, a list of answers, and a ``context`` whose sentences become the snippets.
    """

    columns: ClassVar[tuple[str, ...] | None] = (
        "question", "question_id", "answer", "search_results.description",
        "search_results.title", "id", "aliases", "snippets", "titles", "context",
    )  # fmt: skip
    snippets: tuple[Text, ...] = ()
    titles: tuple[str, ...] = ()
    """Titles of the snippets' pages; empty if unknown."""

    @property
    def passages(self) -> tuple[RowPassage, ...]:
        """Snippets with the titles of their pages; gold if they contain an answer."""
        golds = [answer.casefold() for answer in self.answers]
        # A snippet of an unknown page is no passage, so rows without titles have no passages.
        return tuple(
            RowPassage(title, text, any(gold in text.casefold() for gold in golds))
            for title, text in zip(self.titles, self.snippets, strict=False)
            if title.strip()
        )

    @property
    def flaw(self) -> str:
        """Rows of upstream's Wikipedia half have no snippets."""
        return "" if self.snippets else "has no snippets"

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        if "snippets" not in raw:
            answer, snippets = raw.get("answer"), _snippets(raw)
            if isinstance(answer, Mapping):
                raw = {**raw, "answer": answer.get("value"), "aliases": answer.get("aliases")}
            titles = [title for title, _ in snippets]
            texts = [text for _, text in snippets]
            raw = {**raw, "snippets": texts, "titles": titles if any(titles) else ()}
        return super().normalize(raw)


def _snippets(row: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return (title, text) of each non-blank snippet; unknown titles are empty."""
    results, titles = row.get("search_results"), list[Any]()
    if results is None:
        context = row.get("context") or ""
        texts = _SENTENCE_END.split(context) if isinstance(context, str) else context
    elif isinstance(results, Mapping):
        texts, titles = results.get("description") or (), list(results.get("title") or ())
    else:
        texts, titles = (
            [result.get(name) for result in results] for name in ("description", "title")
        )
    # Titles may be missing at the end, and surplus ones are cut.
    return [
        (title if isinstance(title, str) else "", text)
        for title, text in zip_longest(titles[: len(texts)], texts)
        if text is not None and not _is_blank(text)
    ]


class MusiqueParagraph(Frozen):
    """Paragraph of Wikipedia."""

    title: Text
    text: Text = Field(validation_alias=AliasChoices("text", "paragraph_text"))
    gold: bool = Field(validation_alias=AliasChoices("gold", "is_supporting"))


class Hop(Frozen):
    """Sub-question. ``#1`` is the answer to the first one; many have the form ``subject >> relation``."""

    question: Text
    answer: Text
    paragraph: Annotated[int, Field(ge=0)] | None = Field(
        None, validation_alias=AliasChoices("paragraph", "paragraph_support_idx")
    )
    """Index of its supporting paragraph, if known."""


class MusiqueRow(AnswerRow):
    """MuSiQue-Ans, with or without paragraphs and sub-questions."""

    keys: ClassVar[Mapping[str, Keys]] = {**ANSWER_KEYS, "hops": ("hops", "question_decomposition")}
    hops: tuple[Hop, ...] = ()
    paragraphs: tuple[MusiqueParagraph, ...] = ()
    answerable: bool = True

    @property
    def flaw(self) -> str:
        """MuSiQue-Full has questions that its paragraphs do not answer."""
        return "" if self.answerable else "can't be answered by its paragraphs"

    @property
    def passages(self) -> tuple[RowPassage, ...]:
        return tuple(
            RowPassage(paragraph.title, paragraph.text, paragraph.gold)
            for paragraph in self.paragraphs
        )

    @field_validator("paragraphs", mode="before")
    @classmethod
    def _in_order(cls, value: Any) -> Any:
        """Sort paragraphs by upstream's numbers, to which hops refer."""
        return sorted(value, key=lambda paragraph: paragraph.get("idx", 0))

    @model_validator(mode="after")
    def _refers(self) -> "MusiqueRow":
        for number, hop in enumerate(self.hops, 1):
            # Without paragraphs, the hops of a row refer to numbers that cannot be checked.
            if self.paragraphs and (hop.paragraph or 0) >= len(self.paragraphs):
                missing = f"paragraph {hop.paragraph}, which does not exist"
                raise ValueError(f"hop {number} refers to {missing}")
        return self


IMAGE = "is a question about an image"
HIDDEN = "?"
"""Placeholder for answers in GAIA's test split."""


class WebRow(AnswerRow):
    """Question that needs web search or broad knowledge: WebWalkerQA, GAIA, Humanity's Last Exam."""

    keys: ClassVar[Mapping[str, Keys]] = {**ANSWER_KEYS, "level": ("level", "Level", "info.Level")}
    level: Label = ""
    image: Annotated[bool, BeforeValidator(bool)] = False

    @property
    def flaw(self) -> str:
        if self.answer.strip() == HIDDEN:
            return "has no public answer"
        return IMAGE if self.image else ""


class BrowseCompRow(WebRow):
    """BrowseComp: questions with short answers that are hard to find.

    Question and answer are encrypted to keep them out of training data: base64 of the text XOR the repeated SHA-256 of
    the row's ``canary``.
    """

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        """Decrypt a row. Raise ``ValueError`` if its canary is not the key."""
        if isinstance(canary := raw.get("canary"), str):
            texts = {name: raw[name] for name in ("problem", "question", "answer") if name in raw}
            raw = {**raw, **{name: _decrypt(text, canary) for name, text in texts.items()}}
        return super().normalize(raw)


def _decrypt(text: Any, canary: str) -> str:
    key = hashlib.sha256(canary.encode()).digest()
    try:
        sealed = base64.b64decode(text, validate=True)
        return bytes(
            byte ^ key_byte for byte, key_byte in zip(sealed, cycle(key), strict=False)
        ).decode()
    except (binascii.Error, TypeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError("it can't be decrypted with its canary") from error
