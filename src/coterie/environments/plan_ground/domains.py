"""Domains of tasks: execution of actions and comparison of answers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from coterie.config.folders import expanded
from coterie.datasets.plans import PlanRow
from coterie.engines.chat_model import check_chat
from coterie.environments.answers import normalize_answer
from coterie.environments.numbers import same_number
from coterie.environments.plan_ground.benchmarks import Unplanned
from coterie.environments.plan_ground.settings import (
    RULES,
    PlanGroundSettings,
    check_no_pages,
)
from coterie.environments.plan_ground.task_fields import elements_of, pages_of, right_of
from coterie.environments.protocol import Shared
from coterie.environments.traits import Openers
from coterie.errors import UserError
from coterie.tools.actions.executors import (
    Executed,
    Failed,
    MathsExecutor,
    answer_of,
    choose,
    read_operation,
    score,
)
from coterie.tools.actions.grammar import Action
from coterie.tools.actions.questions import (
    ChatReader,
    Corpus,
    FewPages,
    QuestionsExecutor,
    open_reader,
)
from coterie.tools.sandbox.pool import Sandbox
from coterie.trajectories.task import Task

NOTHING = "nothing: {}"
"""Value of an action that selects no element."""


class Web:
    """Tasks on recorded web pages.

    An action selects an element of a page, which is compared with the right element. Nothing is clicked: each action
    has the page that the annotator saw at this step (Deng et al. 2023), so a failed action stops no later action.
    The score is the share of steps with the right element, kind of operation and value.
    """

    name = "web"
    needs: tuple[type, ...] = ()
    metric = "step success"
    by_steps = True

    def __init__(self, settings: PlanGroundSettings, rows: Sequence[PlanRow]) -> None:
        check_no_pages(settings, "tasks on web pages have")
        self.graded = any(step.pages for row in rows for step in row.steps)
        """True if the rows label the right actions."""

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        """Return the operation of each action on the elements of its page, or the action itself without a page."""
        pages = elements_of(task)
        new: dict[str, str] = {}
        for action in actions:
            page = pages.get(len({**values, **new}) + 1)
            try:
                new[action.result] = action.text if page is None else str(choose(action, page))
            except Failed as error:
                new[action.result] = NOTHING.format(error)
        return Executed(new, answer_of(new))

    def same(self, gold: str, answer: str) -> bool:
        return gold == answer

    def score(
        self, task: Task, values: Mapping[str, str], answer: str | None
    ) -> tuple[float | None, Mapping[str, float]]:
        """Return the average step success over the right steps, or ``None`` if the rows have no elements.

        ``on_page`` is the share of steps whose right element is among the candidates.
        """
        labels, pages = right_of(task), elements_of(task)
        if not labels:
            return None, {}
        done = list(values.values())
        steps = [
            score(read_operation(done[n - 1]) if n <= len(done) else None, label)
            for n, label in labels.items()
        ]
        on_page = [
            any(element.id in label.elements for element in pages[n]) for n, label in labels.items()
        ]
        shares = {
            "element": [step.element for step in steps],
            "operation": [step.operation for step in steps],
            "on_page": on_page,
        }
        success = sum(step.success for step in steps) / len(steps)
        return success, {name: sum(steps) / len(steps) for name, steps in shares.items()}


class Domain(Protocol):
    """A kind of task."""

    name: str
    needs: tuple[type, ...]
    """Resources that it needs (see ``Environment.needs``)."""
    metric: str
    """Name of the score in reports."""

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed: ...

    def same(self, gold: str, answer: str) -> bool:
        """Return True if an answer is right. May take seconds and is called from any thread."""
        ...


@runtime_checkable
class Scoring(Protocol):
    """A domain whose score depends on more than the last answer."""

    by_steps: bool
    """True if held-out tasks of the form ``iterative`` are single steps, each after the right earlier steps."""

    def score(
        self, task: Task, values: Mapping[str, str], answer: str | None
    ) -> tuple[float | None, Mapping[str, float]]:
        """Return the score of a trajectory, or ``None`` if it can't be scored, and further metrics.

        ``values`` are the results of all actions. ``answer`` is the last result if the trajectory ended regularly.
        """
        ...


class Maths:
    """Word problems with numbers as answers."""

    name = "maths"
    needs: tuple[type, ...] = (Sandbox,)
    metric = "success"

    def __init__(self, settings: PlanGroundSettings, rows: Sequence[PlanRow]) -> None:
        check_no_pages(settings, "mathematics has")

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        return await MathsExecutor(shared[Sandbox]).run(actions, values)

    def same(self, gold: str, answer: str) -> bool:
        return same_number(gold, answer)


class Questions:
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
        self.corpus = None if settings.corpus is None else Corpus.open(expanded(settings.corpus))
        self.reader = settings.reader
        check_chat("environment.reader", self.reader, RULES)
        self.needs: tuple[type, ...] = (Sandbox,) if self.reader.rules else (Sandbox, ChatReader)

    def openers(self, logs: Path) -> Openers:
        return {ChatReader: partial(open_reader, self.reader, logs / "reader")}

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        """Run searches, and a reader that extracts answers from the passages."""
        reader = None if self.reader.rules else shared[ChatReader]
        pages = FewPages(pages_of(task)) if self.corpus is None else self.corpus
        executor = QuestionsExecutor(pages, reader, shared[Sandbox])
        return await executor.run(actions, values)

    def same(self, gold: str, answer: str) -> bool:
        """Return True if the words are equal, ignoring case, punctuation and articles."""
        return normalize_answer(gold) == normalize_answer(answer)


DOMAINS: Mapping[str, Callable[[PlanGroundSettings, Sequence[PlanRow]], Domain]] = {
    "maths": Maths,
    "complex_qa": Questions,
    "web": Web,
}


def domain_of(name: str, settings: PlanGroundSettings, rows: Sequence[PlanRow]) -> Domain:
    """Return the domain of rows.

    Raises:
        UserError: this environment can't run the actions of the domain, or a setting is missing.
    """
    if name not in DOMAINS:
        raise UserError(
            f"this environment does not support rows of the domain {name!r}",
            f"use rows of: {', '.join(DOMAINS)}"
            + "; environment=shop generates its own tasks" * (name == "shop"),
        )
    return DOMAINS[name](settings, rows)


def ungraded_of(domain: Domain, name: str) -> UserError | None:
    """Return the error if no action of the rows can be graded, else ``None``."""
    if not isinstance(domain, Web) or domain.graded:
        return None
    return UserError(
        f"rows of {name} have no page elements, so their actions can't be graded",
        "evaluate on dataset=mind2web, or use rows whose steps have `pages` (docs/howto/data-and-models.md)",
    )
