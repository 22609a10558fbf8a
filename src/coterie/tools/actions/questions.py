"""Executor of actions of questions over many pages, which are searched on this machine by BM25.

    build_index(Path("pages.jsonl"), Path("pages"))      # from `tools.retrieval`; rows with `title` and `text`
    Corpus(Path("pages")).search("capital of Norway", 3)

A search returns lines such as ``[17] Oslo | Oslo is the capital of Norway.``. Later actions refer to a paragraph by its
number.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coterie.engines.chat_model import ChatModel, ChatModelSettings, open_chat
from coterie.engines.endpoint import Utterance
from coterie.tools.actions.executors import MathsExecutor, rank, words_of
from coterie.tools.actions.expressions import Failed
from coterie.tools.actions.grammar import Action, Argument
from coterie.tools.retrieval import PAGES, Passages, best, check_index, load_words, word_scores
from coterie.tools.sandbox.pool import Sandbox


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Paragraph of a page."""

    place: int
    page: int
    title: str
    text: str


class Corpus:
    """Pages of an index. Raises ``UserError`` for a bad index or if ``bm25s`` is missing."""

    def __init__(self, folder: Path) -> None:
        check_index(folder)
        self._passages, self._index = Passages(folder), load_words(folder)
        self._pages: NDArray[np.int64] = np.load(folder / PAGES, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._passages)

    def paragraph(self, place: int) -> Paragraph:
        """Return a paragraph by number. Raises ``IndexError``."""
        passage = self._passages[place]
        return Paragraph(place, int(self._pages[place]), passage.title, passage.text)

    def search(self, query: str, count: int, pages: Sequence[int] = ()) -> list[Paragraph]:
        """Return the paragraphs (of ``pages``) that share a word with the query, best first, ties in order."""
        scores = word_scores(self._index, query)
        places = best(scores, count, self._of_pages(pages) if pages else None)
        return [self.paragraph(int(place)) for place in places]

    def pages(self, query: str, count: int) -> list[Paragraph]:
        """Return the best paragraph of each of the best pages, best first."""
        by_page: dict[int, Paragraph] = {}
        for one in self.search(query, 8 * count):
            by_page.setdefault(one.page, one)
        return list(by_page.values())[:count]

    def first(self, page: int) -> Paragraph:
        return self.paragraph(int(np.searchsorted(self._pages, page)))

    def _of_pages(self, pages: Sequence[int]) -> NDArray[np.int64]:
        """Return the numbers of the paragraphs of these pages, which are contiguous per page."""
        numbers = sorted(set(pages))
        begins = np.searchsorted(self._pages, numbers, side="left")
        ends = np.searchsorted(self._pages, numbers, side="right")
        return np.concatenate([np.arange(a, b) for a, b in zip(begins, ends, strict=True)])


class FewPages:
    """Pages in memory, of one paragraph each, with the methods of ``Corpus``."""

    def __init__(self, pages: Sequence[tuple[str, str]]) -> None:
        self._paragraphs = [Paragraph(n, n, title, text) for n, (title, text) in enumerate(pages)]

    def __len__(self) -> int:
        return len(self._paragraphs)

    def paragraph(self, place: int) -> Paragraph:
        return self._paragraphs[place]

    first = paragraph

    def search(self, query: str, count: int, pages: Sequence[int] = ()) -> list[Paragraph]:
        among = [one for one in self._paragraphs if not pages or one.page in pages]
        places = rank(query, [f"{one.title} {one.text}" for one in among])
        return [among[place] for place in places[:count]]

    pages = search


MAX_SHOWN = 700
MAX_FILLED = 200
"""Characters of a result that is inserted into a question; longer results and paragraphs are not."""
FOUND_PAGES, FOUND_PARAGRAPHS = 5, 3
"""Maximum results of ``KnowledgeQuery`` and of ``ParagraphRetrieve``."""
_RESULT = re.compile(r"\bR\d{1,4}\b")
_LINE = re.compile(r"^\[(\d{1,12})\] ", re.MULTILINE)


class QuestionsExecutor(MathsExecutor):
    """Executor of ``complex_qa``. Without a reader model, rules answer; without a sandbox, ``Code`` fails."""

    def __init__(
        self,
        corpus: Corpus | FewPages,
        reader: "ChatReader | None" = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        super().__init__(sandbox)
        self.corpus, self.reader = corpus, reader

    async def do(self, action: Action, values: Mapping[str, str]) -> str:
        match action.tool:
            case "KnowledgeQuery":
                words = _substitute(action.rest(0), values).strip("\"' ")
                return _format(await asyncio.to_thread(self.corpus.pages, words, FOUND_PAGES))
            case "ParagraphRetrieve":
                return await self._retrieve(action, values)
            case "QA":
                return await self._answer(action, values)
            case "Calculator" | "Code":
                return await super().do(action, values)
        raise Failed("there is no such tool")

    async def _retrieve(self, action: Action, values: Mapping[str, str]) -> str:
        text = "\n".join(_values(action.arguments[0], values))
        places = [place for place in map(int, _LINE.findall(text)) if place < len(self.corpus)]
        pages = [self.corpus.paragraph(place).page for place in places]
        if not pages:
            raise Failed("what it is given has no pages")
        query, most = _substitute(action.rest(1), values), FOUND_PARAGRAPHS
        paragraphs = await asyncio.to_thread(self.corpus.search, query, most, pages)
        return _format(
            paragraphs or [self.corpus.first(page) for page in dict.fromkeys(pages)][:most]
        )

    async def _answer(self, action: Action, values: Mapping[str, str]) -> str:
        if len(action.arguments) < 2:
            raise Failed("it is given no question")
        texts = [_LINE.sub("", text) for text in _values(action.arguments[0], values)]
        question = _substitute(action.rest(1), values)
        reader = self.reader
        answer = await reader.answer(question, texts) if reader else extract_answer(question, texts)
        if not answer:
            raise Failed("no answer is in what it is given")
        return answer


def _substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace names of results by their values if these are short: ``Is R6 greater than R3?``."""

    def value(name: re.Match[str]) -> str:
        result = values.get(name[0], name[0])
        return result if len(result) <= MAX_FILLED and not _LINE.match(result) else name[0]

    return _RESULT.sub(value, text)


def _values(argument: Argument, values: Mapping[str, str]) -> list[str]:
    return [values[name] for name in argument.variables]


def _format(paragraphs: Sequence[Paragraph]) -> str:
    if not paragraphs:
        raise Failed("nothing is found")
    return "\n".join(f"[{one.place}] {one.title} | {one.text[:MAX_SHOWN]}" for one in paragraphs)


# -- readers ------------------------------------------------------------------------------------

MAX_CHARACTERS = 6000
"""Characters of all passages in a prompt."""
ROLE = (
    "Answer the question from the passages. Reply with the answer alone, in a few words: "
    "a name, a date, a number, yes or no."
)


class ChatReader:
    """Chat model that answers only from the passages."""

    def __init__(self, model: ChatModel) -> None:
        self.model = model

    async def answer(self, question: str, passages: Sequence[str]) -> str:
        """Return the first line of the reply, or an empty string. Raises ``EngineError`` without a model."""
        text = "\n".join(passages)[:MAX_CHARACTERS] or "(none)"
        prompt = [
            Utterance("system", ROLE),
            Utterance("user", f"Passages:\n{text}\n\nQuestion: {question}"),
        ]
        reply = await self.model.ask(prompt, 0)
        lines = [line.strip() for line in reply.text.splitlines() if line.strip()]
        return lines[0].removeprefix("Answer:").strip() if lines else ""


@asynccontextmanager
async def open_reader(settings: ChatModelSettings) -> AsyncIterator[ChatReader]:
    """Open a chat model as a reader."""
    async with open_chat(settings) as chat:
        yield ChatReader(chat)


_TITLED = re.compile(r"(?:([^|\n]{1,200}) \| )?(.*\S)")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'])")
_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
)
_DATE = re.compile(
    rf"\b(?:\d{{1,2}} {_MONTH} \d{{4}}|{_MONTH} \d{{1,2}}, \d{{4}}|{_MONTH} \d{{4}}|1\d{{3}}|20\d{{2}})\b"
)
_YEAR = re.compile(r"\b(?:1\d{3}|20\d{2})\b")
_NUMBER = re.compile(r"\b\d+(?:,\d{3})*(?:\.\d+)?\b")
_PROPER = re.compile(
    r"\b[A-Z][\w'’.-]*[\w](?:(?: (?:of|the|de|van|von|and|in|for))? [A-Z][\w'’.-]*[\w])*|\b[A-Z]{2,}\b"
)
_SAYS_YES_OR_NO = frozenset(
    words_of("is are was were do does did can could has have had will would should")
)
_EMPTY = frozenset(
    words_of(
        "a an the of in on at to for from by with and or as that which who whom whose what when where why how many "
        "much is are was were be been do does did can could has have had will would should it its his her their this "
        "there than then also into about"
    )
)
_NOT = frozenset({"not", "no", "never", "neither", "nor", "without", "cannot"})
_MORE = frozenset(words_of("more greater larger higher bigger later older longer taller after"))
_LESS = frozenset(words_of("less fewer smaller lower earlier younger shorter before"))
_ENOUGH = 0.75
"""Fraction of a question's words that a sentence needs for the answer yes."""


def extract_answer(question: str, passages: Sequence[str]) -> str:
    """Answer by rules, for tests, for machines without a model, and as a baseline; empty without an answer.

    Takes the sentence with most of the question's words, and extracts the answer from it: a date for "when", a number
    for "how many", else a name that is not in the question, else the sentence. A line may begin with its page's title
    (``Oslo | The city ...``), whose words count but are never the answer. A question that begins with a verb is
    answered with yes if a sentence has most of its words and no negation, else with no. A question that compares two
    numbers ("Is 5 greater than 3?") is answered by arithmetic.
    """
    if comparison := _compare(question):
        return comparison
    lines = [_TITLED.match(line) for text in passages for line in text.splitlines()]
    pairs = [
        (one[1] or "", sentence) for one in lines if one for sentence in _SENTENCE.split(one[2])
    ]
    sentences = [sentence.strip() for _, sentence in pairs]
    words = _content(question)
    if not sentences or not words:
        return ""
    scores = [len(words & _content(" ".join(one))) / len(words) for one in pairs]
    order = sorted(range(len(sentences)), key=lambda at: (-scores[at], at))
    best = order[0]
    if words_of(question)[0] in _SAYS_YES_OR_NO:
        denies = [bool(_NOT & set(words_of(text))) for text in (sentences[best], question)]
        return "yes" if scores[best] >= _ENOUGH and denies[0] == denies[1] else "no"
    spans = (_span(question, sentences[at]) for at in order[:3] if scores[at])
    return next((span for span in spans if span), sentences[best] if scores[best] else "")


def _compare(question: str) -> str:
    """Answer ``yes`` or ``no`` to a question that compares two numbers; empty for other questions."""
    words = words_of(question)
    numbers = [float(one.replace(",", "")) for one in _NUMBER.findall(question)]
    if len(numbers) != 2 or words[0] not in _SAYS_YES_OR_NO or not (_MORE | _LESS) & set(words):
        return ""
    first, second = numbers if _MORE & set(words) else reversed(numbers)
    return "yes" if first > second else "no"


def _content(text: str) -> set[str]:
    return set(words_of(text)) - _EMPTY


def _span(question: str, sentence: str) -> str:
    """Extract the answer from a sentence by the question's first words, or an empty string."""
    asks = question.lower()
    if "year" in asks:
        spans = _YEAR.findall(sentence)
    elif asks.startswith("when") or "what date" in asks:
        spans = _DATE.findall(sentence)
    elif re.search(r"\bhow (?:many|much|old|long|tall|far|large|high)\b", asks):
        spans = _NUMBER.findall(sentence)
    else:
        # A name without content words is a subset of any question.
        words = _content(question)
        spans = [one for one in _PROPER.findall(sentence) if not _content(one) <= words]
    return spans[0] if spans else ""
