"""Runs the actions of questions over many pages. Pages are searched on this machine (``corpus``), answers are read
from them by a reader.

The value of a search is lines such as ``[17] Oslo | Oslo is the capital of Norway.``; the number is the paragraph's, by
which later actions find it again.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from coterie.engines.messages import Utterance
from coterie.tools.actions.corpus import Pages, Paragraph
from coterie.tools.actions.executor import Executor, Failed, words_of
from coterie.tools.actions.expressions import NoValue, Unreadable
from coterie.tools.actions.grammar import Action, Argument
from coterie.tools.actions.maths import calculated, run_code
from coterie.tools.sandbox.pool import Sandbox

if TYPE_CHECKING:
    from coterie.engines.chat_model import ChatModel, ChatModelSettings

MAX_SHOWN = 700
"""Characters of a paragraph that a value shows."""
MAX_FILLED = 200
"""Characters of a value that is put into a question; longer ones and paragraphs are not."""
_RESULT = re.compile(r"\bR\d{1,4}\b")
_LINE = re.compile(r"^\[(\d{1,12})\] ", re.MULTILINE)


class QuestionsExecutor(Executor):
    """Runs actions of the domain ``complex_qa``. Without a sandbox, ``Code`` fails.

    Raises ``EngineError`` if a reader's model can't be reached: that is not the fault of the actions.
    """

    def __init__(
        self,
        corpus: Pages,
        reader: "Reader | None" = None,
        sandbox: Sandbox | None = None,
        *,
        pages: int = 5,
        paragraphs: int = 3,
    ) -> None:
        super().__init__()
        self.corpus, self.reader, self.sandbox = corpus, reader or ExtractiveReader(), sandbox
        self.pages = pages
        """Of a ``KnowledgeQuery``."""
        self.paragraphs = paragraphs
        """Of a ``ParagraphRetrieve``."""

    async def do(self, action: Action, values: Mapping[str, str]) -> str:
        """See ``Executor``."""
        if not action.arguments:
            raise Failed("it is given nothing")
        match action.tool:
            case "KnowledgeQuery":
                words = _filled(action.rest(0), values).strip("\"' ")
                return _found(await asyncio.to_thread(self.corpus.pages, words, self.pages))
            case "ParagraphRetrieve":
                return await self._retrieve(action, values)
            case "QA":
                return await self._answer(action, values)
            case "Calculator":
                try:
                    return calculated(action.rest(0), values)
                except (Unreadable, NoValue) as error:
                    raise Failed(str(error)) from error
            case "Code":
                return await run_code(self.sandbox, action.rest(0), values)
        raise Failed("there is no such tool")

    async def _retrieve(self, action: Action, values: Mapping[str, str]) -> str:
        places = [
            int(one) for text in _given(action.arguments[0], values) for one in _LINE.findall(text)
        ]
        pages = [self.corpus.paragraph(one).page for one in places if one < len(self.corpus)]
        if not pages:
            raise Failed("what it is given has no pages")
        query = _filled(action.rest(1), values)
        found = await asyncio.to_thread(self.corpus.search, query, self.paragraphs, pages)
        return _found(
            found or [self.corpus.first(page) for page in dict.fromkeys(pages)][: self.paragraphs]
        )

    async def _answer(self, action: Action, values: Mapping[str, str]) -> str:
        if len(action.arguments) < 2:
            raise Failed("it is given no question")
        texts = [_LINE.sub("", text) for text in _given(action.arguments[0], values)]
        said = await self.reader.answer(_filled(action.rest(1), values), texts)
        if not said:
            raise Failed("no answer is in what it is given")
        return said


def _filled(text: str, values: Mapping[str, str]) -> str:
    """A text with short values in the place of the results that it names: ``Is R6 greater than R3?``."""

    def value(found: re.Match[str]) -> str:
        said = values.get(found[0], found[0])
        return said if len(said) <= MAX_FILLED and not _LINE.match(said) else found[0]

    return _RESULT.sub(value, text)


def _given(argument: Argument, values: Mapping[str, str]) -> list[str]:
    return [values[name] for name in argument.variables]


def _found(paragraphs: Sequence[Paragraph]) -> str:
    if not paragraphs:
        raise Failed("nothing is found")
    return "\n".join(f"[{one.place}] {one.title} | {one.text[:MAX_SHOWN]}" for one in paragraphs)


# -- readers ------------------------------------------------------------------------------------

MAX_CHARACTERS = 6000
"""Of all passages that a model is shown."""


class Reader(Protocol):
    """Answers a question."""

    async def answer(self, question: str, passages: Sequence[str]) -> str:
        """A short answer; empty if there is none. Raises ``EngineError`` if who answers can't be reached."""
        ...


class ChatReader:
    """A chat model that answers from the passages alone."""

    def __init__(self, model: "ChatModel", *, seed: int = 0) -> None:
        self.model = model
        self.seed = seed

    async def answer(self, question: str, passages: Sequence[str]) -> str:
        """The first line that it says."""
        said = await self.model.ask(asked(question, passages), self.seed)
        lines = [line.strip() for line in said.text.splitlines() if line.strip()]
        return lines[0].removeprefix("Answer:").strip() if lines else ""


@asynccontextmanager
async def open_reader(settings: "ChatModelSettings", logs: Path) -> AsyncIterator[ChatReader]:
    """A chat model as a reader; a server that is started leaves its logs in ``logs``."""
    from coterie.engines.chat_model import open_chat

    async with open_chat(settings, logs) as chat:
        yield ChatReader(chat)


def asked(question: str, passages: Sequence[str]) -> list[Utterance]:
    shown = "\n".join(passages)[:MAX_CHARACTERS] or "(none)"
    return [
        Utterance("system", "Answer the question from the passages. Reply with the answer alone, in a few words: "
                  "a name, a date, a number, yes or no."),
        Utterance("user", f"Passages:\n{shown}\n\nQuestion: {question}"),
    ]  # fmt: skip


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
"""Share of a question's words that a sentence needs to say yes to it."""


class ExtractiveReader:
    """Rules, and no model: the sentence that has most of the question's words, and in it what the question asks for.

    A line may begin with its page's title (``Oslo | The city ...``), whose words count and are never the answer. A date
    for "when", a number for "how many", else a name that is not in the question, else the sentence. A question that
    begins with a verb is answered with yes if a sentence has most of its words and no negation, else with no; one that
    compares two numbers of its own ("Is 5 greater than 3?") by these. It understands nothing; it is for tests, for
    machines without a model, and as the bar that a model has to pass.
    """

    async def answer(self, question: str, passages: Sequence[str]) -> str:
        """See the class."""
        if compared := _compared(question):
            return compared
        titled = [_TITLED.match(line) for text in passages for line in text.splitlines()]
        found = [(one[1] or "", said) for one in titled if one for said in _SENTENCE.split(one[2])]
        sentences = [said.strip() for _, said in found]
        wanted = _content(question)
        if not sentences or not wanted:
            return ""
        scores = [len(wanted & _content(" ".join(one))) / len(wanted) for one in found]
        best = max(range(len(sentences)), key=lambda at: (scores[at], -at))
        if words_of(question)[0] in _SAYS_YES_OR_NO:
            denied = _denies(sentences[best]) != _denies(question)
            return "yes" if scores[best] >= _ENOUGH and not denied else "no"
        order = sorted(range(len(sentences)), key=lambda at: (-scores[at], at))
        spans = (_span(question, sentences[at]) for at in order[:3] if scores[at])
        return next((span for span in spans if span), sentences[best] if scores[best] else "")


def _compared(question: str) -> str:
    """``yes`` or ``no`` to a question that compares two numbers; empty for another one."""
    words = words_of(question)
    numbers = [float(one.replace(",", "")) for one in _NUMBER.findall(question)]
    if len(numbers) != 2 or words[0] not in _SAYS_YES_OR_NO or not (_MORE | _LESS) & set(words):
        return ""
    first, second = numbers if _MORE & set(words) else reversed(numbers)
    return "yes" if first > second else "no"


def _content(text: str) -> set[str]:
    return set(words_of(text)) - _EMPTY


def _denies(text: str) -> bool:
    return bool(_NOT & set(words_of(text)))


def _span(question: str, sentence: str) -> str:
    """What of a sentence answers the question, by the question's first words; empty if nothing does."""
    asks = question.lower()
    if "year" in asks:
        found = _YEAR.findall(sentence)
    elif asks.startswith("when") or "what date" in asks:
        found = _DATE.findall(sentence)
    elif re.search(r"\bhow (?:many|much|old|long|tall|far|large|high)\b", asks):
        found = _NUMBER.findall(sentence)
    else:
        said = _content(question)
        found = [one for one in _PROPER.findall(sentence) if not _content(one) <= said]
        found = [one for one in found if _content(one)]
    return found[0] if found else ""
