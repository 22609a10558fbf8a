"""Domains of a planner and a grounder: settings, the context of a task, actions, and comparison of answers.

* :class:`Maths`, :class:`Web` and :class:`Questions` are the domains. A domain runs the grounder's actions and scores
  their results; the dialogue of planner and grounder is in :mod:`coterie.environments.plans.plan_ground`.
* Questions: :class:`QuestionsExecutor` runs actions on a :class:`Corpus` or :class:`FewPages`, and a reader answers
  from the paragraphs: a model (:class:`ChatReader`) or rules (:func:`extract_answer`).
"""

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.config.folders import expanded
from coterie.config.settings import OptionalPath, key
from coterie.datasets.plans import Domain as DomainName
from coterie.datasets.plans import PageElement, PlanRow, PlanStep
from coterie.datasets.problems import SvampRow
from coterie.datasets.rows import Gsm8kRow, HotpotRow, QuestionRow
from coterie.engines.chat_model import ChatModel, ChatModelSettings, check_chat, open_as
from coterie.engines.endpoint import Utterance
from coterie.environments.grading import same_number
from coterie.environments.protocol import Openers, Shared
from coterie.environments.qa_metrics import GRADER, gold_answer, grader_secret, normalize_answer
from coterie.environments.settings import EnvironmentSettings
from coterie.errors import UserError
from coterie.record.tree import Secret, Task
from coterie.record.turn import digest
from coterie.tools.actions.executors import (
    CANDIDATES,
    Executed,
    Gold,
    MathsExecutor,
    answer_of,
    choose,
    rank,
    score,
    words_of,
)
from coterie.tools.actions.expressions import Failed
from coterie.tools.actions.grammar import Action
from coterie.tools.retrieval import PAGES as PAGES_FILE
from coterie.tools.retrieval import Manifest, Passages, best, check_index, load_words, word_scores
from coterie.tools.sandbox.pool import Sandbox

Form = Literal["onetime", "iterative"]

RULES = "rules"
"""Name of the reader without a model."""


class ReaderSettings(ChatModelSettings):
    """Settings of the reader, which answers questions from passages."""

    model: str = key(
        RULES,
        "`rules` (without a model: for tests, and as a baseline), a model that coterie loads, or, "
        "with a `url`, the name of a model there.",
        source="Lumos: GPT-3.5, GPT-4",
        min_length=1,
    )

    @property
    def rules(self) -> bool:
        """True if rules answer, without a model."""
        return self.url is None and self.model == RULES


class PlanGroundSettings(EnvironmentSettings):
    """Settings of the planner and grounder environment."""

    form: Form = key(
        "onetime",
        "`onetime`: a whole plan, then all actions; `iterative`: one subgoal and its actions at a time.",
    )
    turns: int = key(16, "Maximum turns of both agents in the form `iterative`.", ge=2)
    corpus: OptionalPath = key(
        None,
        "Folder of pages, indexed by `coterie data index`, for questions. The default is the pages of the rows "
        "themselves (hotpot_qa).",
    )
    reader: ReaderSettings = ReaderSettings()

    def identity(self) -> str:
        """Hash the content of the pages, not their path, and the settings that the reader's answers depend on."""
        pages = None if self.corpus is None else Manifest.read(expanded(self.corpus)).content
        reader = () if self.reader.rules else self.reader.identity()
        return digest(self.model_dump_json(exclude={"name", "corpus", "reader"}), pages, *reader)


class Domain(ABC):
    """A kind of task."""

    name: str
    needs: tuple[type, ...] = ()
    metric = "success"
    graded = True
    """False if the rows do not label the right actions."""
    by_steps = False
    """True if held-out tasks of the form ``iterative`` are single steps, each after the right earlier steps."""

    @abstractmethod
    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        """Run actions in order.

        ``values`` are the results of earlier actions of the task by name (``R1``), to which the actions may refer.
        """

    def same(self, gold: str, answer: str) -> bool:
        """Return True if an answer is right. May take seconds and is called from any thread."""
        return gold == answer

    def score(
        self, task: Task, values: Mapping[str, str], answer: str | None
    ) -> tuple[float | None, Mapping[str, float]]:
        """Return the score of a trajectory, or ``None`` if it can't be scored, and further metrics.

        ``values`` are the results of all actions. ``answer`` is the last result if the trajectory ended regularly.
        """
        if answer is None:
            return 0.0, {}
        reference = gold_answer(task)
        return (float(self.same(reference, answer)) if reference else None), {}


PAGES, ELEMENTS, RIGHT = "pages", "elements", "right_operations"
"""Fields of a task: pages to search, page elements by number of action, and the secret with the right operations."""


def page_fields(
    row: PlanRow, steps: Sequence[PlanStep], index: int
) -> tuple[dict[str, object], dict[str, Secret]]:
    """Return public and secret fields of a task with these steps, which start at ``index`` of the row.

    Page elements and right operations have the number of their action in the whole row.
    """
    if isinstance(row, Unplanned) and row.pages:
        return {PAGES: [list(page) for page in row.pages]}, {}
    first_number = 1 + sum(len(step.actions) for step in row.steps[:index])
    pages = [page for step in steps for page in step.pages]
    # Without a page for every action, actions can't be matched with pages.
    if not pages or len(pages) != sum(len(step.actions) for step in steps):
        return {}, {}
    elements, right = {}, {}
    for number, page in enumerate(pages, first_number):
        elements[str(number)] = [
            [element.id, element.tag, element.text] for element in page.elements[:CANDIDATES]
        ]
        right[str(number)] = [sorted(page.right), page.kind, page.value]
    return {ELEMENTS: elements}, grader_secret(RIGHT, json.dumps(right, ensure_ascii=False))


def pages_of(task: Task) -> list[tuple[str, str]]:
    pages: Any = task.public.get(PAGES, [])
    return [(str(title), str(text)) for title, text in pages]


def elements_of(task: Task) -> dict[int, tuple[PageElement, ...]]:
    """Return the candidate elements of each action, by its number in the whole task."""
    pages: Any = task.public.get(ELEMENTS, {})
    return {int(n): tuple(PageElement(*fields) for fields in page) for n, page in pages.items()}


READ: tuple[type[QuestionRow], ...] = (PlanRow, Gsm8kRow, SvampRow, HotpotRow)
"""Types of rows that the environment can read."""


class Unplanned(PlanRow):
    """A task without a plan, made from a row of another data set, with its own pages if the row has any."""

    steps: tuple[PlanStep, ...] = ()
    pages: tuple[tuple[str, str], ...] = ()


def as_plan(row: QuestionRow) -> PlanRow:
    if isinstance(row, PlanRow):
        return row
    pages = _pages(row) if isinstance(row, HotpotRow) else ()
    domain = domain_in(row)
    return Unplanned(
        id=row.id, question=row.question, answer=row.answer, domain=domain, pages=pages
    )


def domain_in(row: QuestionRow) -> DomainName:
    if isinstance(row, PlanRow):
        return row.domain
    assert isinstance(row, READ), "the type of a data set's rows was checked"
    return "complex_qa" if isinstance(row, HotpotRow) else "maths"


def _pages(row: HotpotRow) -> tuple[tuple[str, str], ...]:
    texts = (
        (paragraph.title, row.glue.join(paragraph.sentences).strip()) for paragraph in row.context
    )
    return tuple((title, text) for title, text in texts if text)


NOTHING = "nothing: {}"
"""Result of a failed action on a page."""


class Web(Domain):
    """Tasks on recorded web pages.

    An action selects an element of a page, which is compared with the right element. Nothing is clicked: each action
    has the page that the annotator saw at this step (Deng et al. 2023), so a failed action stops no later action.
    The score is the share of steps with the right element, kind of operation and value.
    """

    name = "web"
    metric = "step success"
    by_steps = True

    def __init__(self, rows: Sequence[PlanRow]) -> None:
        self.graded = any(step.pages for row in rows for step in row.steps)

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        """Return the operation of each action on the elements of its page, or the action itself without a page."""
        pages = elements_of(task)
        results: dict[str, str] = {}
        for action in actions:
            # Earlier results count, because pages are numbered through the whole task.
            page = pages.get(len({**values, **results}) + 1)
            try:
                results[action.result] = action.text if page is None else choose(action, page)
            except Failed as error:
                results[action.result] = NOTHING.format(error)
        return Executed(results, answer_of(results))

    def score(
        self, task: Task, values: Mapping[str, str], answer: str | None
    ) -> tuple[float | None, Mapping[str, float]]:
        """Return the average step success over the right steps, or ``None`` if the rows have no elements.

        ``on_page`` is the share of steps whose right element is among the candidates.
        """
        if RIGHT not in task.secrets:
            return None, {}
        # `values` are in the order of the actions, so the n-th result belongs to the n-th right one.
        pages, operations, steps = elements_of(task), list(values.values()), []
        for n, (ids, operation_name, value) in json.loads(
            task.secrets[RIGHT].reveal(GRADER)
        ).items():
            number = int(n)
            # Steps that the agent did not reach count as failed.
            operation = operations[number - 1] if number <= len(operations) else ""
            has_element, has_operation = score(
                operation, Gold(frozenset(ids), operation_name, value)
            )
            on_page = any(element.id in ids for element in pages[number])
            steps.append({"element": has_element, "operation": has_operation, "on_page": on_page})
        success = sum(step["element"] and step["operation"] for step in steps) / len(steps)
        return success, {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}


class Maths(Domain):
    """Word problems with numbers as answers."""

    name = "maths"
    needs = (Sandbox,)

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        return await MathsExecutor(shared[Sandbox]).run(actions, values)

    def same(self, gold: str, answer: str) -> bool:
        return same_number(gold, answer)


def domain_of(name: str, settings: PlanGroundSettings, rows: Sequence[PlanRow]) -> Domain:
    if name == "complex_qa":
        return Questions(settings, rows)
    if name not in ("maths", "web"):
        raise UserError(
            f"this environment does not support rows of the domain {name!r}",
            "use rows of: maths, complex_qa, web",
        )
    if settings.corpus is not None or not settings.reader.rules:
        raise UserError(
            "environment.corpus and environment.reader are for questions with pages to search and read",
            "leave them out",
        )
    return Maths() if name == "maths" else Web(rows)


# -- questions over many pages ------------------------------------------------------------------


class Questions(Domain):
    """Questions about local pages, answered with a few words, or yes or no."""

    name = "complex_qa"
    metric = "exact match"

    def __init__(self, settings: PlanGroundSettings, rows: Sequence[PlanRow]) -> None:
        has_pages = all(isinstance(row, Unplanned) and row.pages for row in rows)
        if settings.corpus is None and not has_pages:
            raise UserError(
                "these questions need pages, but no pages are given",
                "index some with `coterie data index FILE.jsonl FOLDER`, and add environment.corpus=FOLDER",
            )
        self.corpus = None if settings.corpus is None else Corpus(expanded(settings.corpus))
        self.reader = settings.reader
        check_chat("environment.reader", self.reader, RULES)
        self.needs = (Sandbox,) if self.reader.rules else (Sandbox, ChatReader)

    def openers(self, logs: Path) -> Openers:
        return {ChatReader: partial(open_as, ChatReader, self.reader)}

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        reader = None if self.reader.rules else shared[ChatReader]
        # Without a corpus, only the pages of the task itself are searched.
        pages = FewPages(pages_of(task)) if self.corpus is None else self.corpus
        executor = QuestionsExecutor(pages, reader, shared[Sandbox])
        return await executor.run(actions, values)

    def same(self, gold: str, answer: str) -> bool:
        return normalize_answer(gold) == normalize_answer(answer)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Paragraph of a page."""

    line: int
    """Number of the paragraph in the corpus, which searches show and later actions refer to."""
    page: int
    title: str
    text: str


class Corpus:
    """Pages of an index, searched by BM25. Raises ``UserError`` for a bad index or if ``bm25s`` is missing."""

    def __init__(self, folder: Path) -> None:
        check_index(folder)
        self._passages, self._index = Passages(folder), load_words(folder)
        self._pages: NDArray[np.int64] = np.load(folder / PAGES_FILE, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._passages)

    def paragraph(self, line: int) -> Paragraph:
        """Return a paragraph by number. Raises ``IndexError``."""
        passage = self._passages[line]
        return Paragraph(line, int(self._pages[line]), passage.title, passage.text)

    def search(self, query: str, count: int, pages: Sequence[int] = ()) -> list[Paragraph]:
        """Return the paragraphs (of ``pages``) that share a word with the query, best first, ties in order."""
        scores = word_scores(self._index, query)
        lines = best(scores, count, self._of_pages(pages) if pages else None)
        return [self.paragraph(int(line)) for line in lines]

    def pages(self, query: str, count: int) -> list[Paragraph]:
        """Return the best paragraph of each of the best pages, best first."""
        by_page: dict[int, Paragraph] = {}
        # Several paragraphs of a page may match, so more paragraphs than pages are needed.
        for paragraph in self.search(query, 8 * count):
            by_page.setdefault(paragraph.page, paragraph)
        return list(by_page.values())[:count]

    def first(self, page: int) -> Paragraph:
        # Paragraphs are stored in the order of their pages.
        return self.paragraph(int(np.searchsorted(self._pages, page)))

    def _of_pages(self, pages: Sequence[int]) -> NDArray[np.int64]:
        """Return the numbers of the paragraphs of these pages, which are contiguous per page."""
        numbers = sorted(set(pages))
        begins = np.searchsorted(self._pages, numbers, side="left")
        ends = np.searchsorted(self._pages, numbers, side="right")
        return np.concatenate([np.arange(a, b) for a, b in zip(begins, ends, strict=True)])


class FewPages:
    """Pages in memory, of one paragraph each, with the methods of ``Corpus``.

    A paragraph has the number of its page, so the best pages are the best paragraphs.
    """

    def __init__(self, pages: Sequence[tuple[str, str]]) -> None:
        self._paragraphs = [Paragraph(n, n, title, text) for n, (title, text) in enumerate(pages)]

    def __len__(self) -> int:
        return len(self._paragraphs)

    def paragraph(self, line: int) -> Paragraph:
        return self._paragraphs[line]

    first = paragraph

    def search(self, query: str, count: int, pages: Sequence[int] = ()) -> list[Paragraph]:
        candidates = [
            paragraph for paragraph in self._paragraphs if not pages or paragraph.page in pages
        ]
        order = rank(query, [f"{paragraph.title} {paragraph.text}" for paragraph in candidates])
        return [candidates[index] for index in order[:count]]

    pages = search


MAX_SHOWN = 700
"""Characters of a paragraph that a search shows."""
MAX_FILLED = 200
"""Characters of a result that is inserted into a question; longer results and paragraphs are not."""
FOUND_PAGES, FOUND_PARAGRAPHS = 5, 3
"""Maximum results of ``KnowledgeQuery`` and of ``ParagraphRetrieve``."""
_RESULT = re.compile(r"\bR\d{1,4}\b")
_LINE = re.compile(r"^\[(\d{1,12})\] ", re.MULTILINE)


class QuestionsExecutor(MathsExecutor):
    """Executor of ``complex_qa``. Without a reader model, rules answer; without a sandbox, ``Code`` fails.

    A search returns lines such as ``[17] Oslo | Oslo is the capital of Norway.``. Later actions refer to a paragraph by
    its number.
    """

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
        text = "\n".join(values[name] for name in action.arguments[0].variables)
        # Models may invent numbers, which are ignored.
        lines = [line for line in map(int, _LINE.findall(text)) if line < len(self.corpus)]
        pages = [self.corpus.paragraph(line).page for line in lines]
        if not pages:
            raise Failed("what it is given has no pages")
        query, count = _substitute(action.rest(1), values), FOUND_PARAGRAPHS
        paragraphs = await asyncio.to_thread(self.corpus.search, query, count, pages)
        # If no paragraph matches the query, show the beginnings of the pages.
        return _format(
            paragraphs or [self.corpus.first(page) for page in dict.fromkeys(pages)][:count]
        )

    async def _answer(self, action: Action, values: Mapping[str, str]) -> str:
        if len(action.arguments) < 2:
            raise Failed("it is given no question")
        # The reader gets the texts without their numbers.
        texts = [_LINE.sub("", values[name]) for name in action.arguments[0].variables]
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


def _format(paragraphs: Sequence[Paragraph]) -> str:
    if not paragraphs:
        raise Failed("nothing is found")
    return "\n".join(
        f"[{paragraph.line}] {paragraph.title} | {paragraph.text[:MAX_SHOWN]}"
        for paragraph in paragraphs
    )


# -- readers of passages ------------------------------------------------------------------------

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
        (line[1] or "", sentence) for line in lines if line for sentence in _SENTENCE.split(line[2])
    ]
    sentences = [sentence.strip() for _, sentence in pairs]
    words = _content(question)
    if not sentences or not words:
        return ""
    # For each sentence with its title, the share of the question's words that it has.
    scores = [len(words & _content(" ".join(pair))) / len(words) for pair in pairs]
    order = sorted(range(len(sentences)), key=lambda index: (-scores[index], index))
    best = order[0]
    if words_of(question)[0] in _SAYS_YES_OR_NO:
        # A negation in only one of the two reverses the answer.
        denies = [bool(_NOT & set(words_of(text))) for text in (sentences[best], question)]
        return "yes" if scores[best] >= _ENOUGH and denies[0] == denies[1] else "no"
    # The best sentence may have no answer of the requested type, so two more are tried.
    spans = (_span(question, sentences[index]) for index in order[:3] if scores[index])
    return next(filter(None, spans), sentences[best] if scores[best] else "")


def _compare(question: str) -> str:
    """Answer ``yes`` or ``no`` to a question that compares two numbers; empty for other questions."""
    words = words_of(question)
    numbers = [float(digits.replace(",", "")) for digits in _NUMBER.findall(question)]
    if len(numbers) != 2 or words[0] not in _SAYS_YES_OR_NO or not (_MORE | _LESS) & set(words):
        return ""
    # "Is a less than b?" asks the same as "Is b greater than a?".
    larger, smaller = numbers if _MORE & set(words) else reversed(numbers)
    return "yes" if larger > smaller else "no"


def _content(text: str) -> set[str]:
    """Return the words of a text without function words."""
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
        spans = [name for name in _PROPER.findall(sentence) if not _content(name) <= words]
    return spans[0] if spans else ""
