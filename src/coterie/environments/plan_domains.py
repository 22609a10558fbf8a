"""Domains of a planner and a grounder: settings, the context of a task, actions, and comparison of answers."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from coterie.config.folders import expanded
from coterie.config.settings import key
from coterie.datasets.plans import Domain as DomainName
from coterie.datasets.plans import PlanRow, PlanStep
from coterie.datasets.problems import SvampRow
from coterie.datasets.rows import Gsm8kRow, HotpotRow, QuestionRow
from coterie.engines.chat_model import ChatModelSettings, check_chat
from coterie.environments.answers import GRADER, gold_answer, normalize_answer
from coterie.environments.numbers import same_number
from coterie.environments.protocol import Openers, Shared
from coterie.environments.settings import EnvironmentSettings
from coterie.errors import UserError
from coterie.record.tree import Secret, Task
from coterie.record.turn import digest
from coterie.tools.actions.executors import (
    CANDIDATES,
    Element,
    Executed,
    Gold,
    MathsExecutor,
    answer_of,
    choose,
    score,
)
from coterie.tools.actions.expressions import Failed
from coterie.tools.actions.grammar import Action
from coterie.tools.actions.questions import (
    ChatReader,
    Corpus,
    FewPages,
    QuestionsExecutor,
    open_reader,
)
from coterie.tools.retrieval import Manifest
from coterie.tools.sandbox.pool import Sandbox

Form = Literal["onetime", "iterative"]

RULES = "rules"


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
        return self.url is None and self.model == RULES


class PlanGroundSettings(EnvironmentSettings):
    """Settings of the planner and grounder environment."""

    form: Form = key(
        "onetime",
        "`onetime`: a whole plan, then all actions; `iterative`: one subgoal and its actions at a time.",
    )
    turns: int = key(16, "Maximum turns of both agents in the form `iterative`.", ge=2)
    corpus: str | None = key(
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


class Domain:
    """A kind of task."""

    name: str
    needs: tuple[type, ...] = ()
    metric = "success"
    graded = True
    """False if the rows do not label the right actions."""
    by_steps = False
    """True if held-out tasks of the form ``iterative`` are single steps, each after the right earlier steps."""

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        raise NotImplementedError

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


def page_fields(
    row: PlanRow, steps: Sequence[PlanStep], place: int
) -> tuple[dict[str, object], dict[str, Secret]]:
    """Return public and secret fields of a task with these steps, which start at index ``place`` of the row.

    Page elements and right operations have the number of their action in the whole row.
    """
    if isinstance(row, Unplanned) and row.pages:
        return {PAGES: [list(page) for page in row.pages]}, {}
    first = 1 + sum(len(step.actions) for step in row.steps[:place])
    pages = [page for step in steps for page in step.pages]
    if not pages or len(pages) != sum(len(step.actions) for step in steps):
        return {}, {}
    elements, right = {}, {}
    for number, page in enumerate(pages, first):
        elements[str(number)] = [[one.id, one.tag, one.text] for one in page.elements[:CANDIDATES]]
        right[str(number)] = [sorted(page.right), page.kind, page.value]
    text = json.dumps(right, ensure_ascii=False)
    secret = Secret(text, name=RIGHT, readers=frozenset({GRADER}))
    return {ELEMENTS: elements}, {RIGHT: secret}


def pages_of(task: Task) -> list[tuple[str, str]]:
    pages: Any = task.public.get(PAGES, [])
    return [(str(title), str(text)) for title, text in pages]


def elements_of(task: Task) -> dict[int, tuple[Element, ...]]:
    """Return the candidate elements of each action, by its number in the whole task."""
    pages: Any = task.public.get(ELEMENTS, {})
    return {int(n): tuple(Element(*one) for one in page) for n, page in pages.items()}


READ: tuple[type[QuestionRow], ...] = (PlanRow, Gsm8kRow, SvampRow, HotpotRow)


class Unplanned(PlanRow):
    """A task without a plan."""

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
    texts = ((one.title, row.glue.join(one.sentences).strip()) for one in row.context)
    return tuple((title, text) for title, text in texts if text)


NOTHING = "nothing: {}"


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
        new: dict[str, str] = {}
        for action in actions:
            page = pages.get(len({**values, **new}) + 1)
            try:
                new[action.result] = action.text if page is None else choose(action, page)
            except Failed as error:
                new[action.result] = NOTHING.format(error)
        return Executed(new, answer_of(new))

    def score(
        self, task: Task, values: Mapping[str, str], answer: str | None
    ) -> tuple[float | None, Mapping[str, float]]:
        """Return the average step success over the right steps, or ``None`` if the rows have no elements.

        ``on_page`` is the share of steps whose right element is among the candidates.
        """
        if RIGHT not in task.secrets:
            return None, {}
        pages, done, steps = elements_of(task), list(values.values()), []
        for n, (ids, kind, value) in json.loads(task.secrets[RIGHT].reveal(GRADER)).items():
            number = int(n)
            operation = done[number - 1] if number <= len(done) else ""
            has_element, has_operation = score(operation, Gold(frozenset(ids), kind, value))
            on_page = any(one.id in ids for one in pages[number])
            steps.append({"element": has_element, "operation": has_operation, "on_page": on_page})
        success = sum(one["element"] and one["operation"] for one in steps) / len(steps)
        return success, {name: sum(one[name] for one in steps) / len(steps) for name in steps[0]}


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


class Questions(Domain):
    """Questions about local pages, answered with a few words, or yes or no."""

    name = "complex_qa"
    metric = "exact match"

    def __init__(self, settings: PlanGroundSettings, rows: Sequence[PlanRow]) -> None:
        own = all(isinstance(row, Unplanned) and row.pages for row in rows)
        if settings.corpus is None and not own:
            raise UserError(
                "these questions need pages, but no pages are given",
                "index some with `coterie data index FILE.jsonl FOLDER`, and add environment.corpus=FOLDER",
            )
        self.corpus = None if settings.corpus is None else Corpus(expanded(settings.corpus))
        self.reader = settings.reader
        check_chat("environment.reader", self.reader, RULES)
        self.needs = (Sandbox,) if self.reader.rules else (Sandbox, ChatReader)

    def openers(self, logs: Path) -> Openers:
        return {ChatReader: partial(open_reader, self.reader)}

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        reader = None if self.reader.rules else shared[ChatReader]
        pages = FewPages(pages_of(task)) if self.corpus is None else self.corpus
        executor = QuestionsExecutor(pages, reader, shared[Sandbox])
        return await executor.run(actions, values)

    def same(self, gold: str, answer: str) -> bool:
        return normalize_answer(gold) == normalize_answer(answer)


def domain_of(name: str, settings: PlanGroundSettings, rows: Sequence[PlanRow]) -> Domain:
    if name == "complex_qa":
        return Questions(settings, rows)
    if name not in ("maths", "web"):
        raise UserError(
            f"this environment does not support rows of the domain {name!r}",
            "use rows of: maths, complex_qa, web"
            + "; environment=shop generates its own tasks" * (name == "shop"),
        )
    if settings.corpus is not None or not settings.reader.rules:
        raise UserError(
            "environment.corpus and environment.reader are for questions with pages to search and read",
            "leave them out",
        )
    return Maths() if name == "maths" else Web(rows)
