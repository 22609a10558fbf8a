"""What kinds of tasks there are: how actions are run, and when two answers are the same."""

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
from coterie.environments.plan_ground.given import elements_of, pages_of, right_of
from coterie.environments.plan_ground.settings import (
    RULES,
    PlanGroundSettings,
    check_no_pages,
)
from coterie.environments.protocol import Shared
from coterie.environments.traits import Openers
from coterie.errors import UserError
from coterie.tools.actions.corpus import Corpus, FewPages
from coterie.tools.actions.executor import Executed, Failed, answer_of
from coterie.tools.actions.grammar import Action
from coterie.tools.actions.maths import MathsExecutor
from coterie.tools.actions.questions import ChatReader, QuestionsExecutor, open_reader
from coterie.tools.actions.web import choose, read_operation, score
from coterie.tools.sandbox.pool import Sandbox
from coterie.trajectories.task import Task

# Web pages as a domain: an action stands for an element of its page, which is compared with the right one.
#
# Nothing is clicked: each action has the page that a person saw at this step (Deng et al. 2023). So an action that
# fails stops no other one. The score is the share of steps that are right: element, kind of operation and value.

NOTHING = "nothing: {}"
"""The value of an action that stands for no element."""


class Web:
    """Errands on web pages."""

    name = "web"
    needs: tuple[type, ...] = ()
    metric = "step success"
    by_steps = True

    def __init__(self, settings: PlanGroundSettings, rows: Sequence[PlanRow]) -> None:
        check_no_pages(settings, "errands on web pages have")
        self.graded = any(step.pages for row in rows for step in row.steps)
        """Whether rows have what tells which actions are right."""

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        """The operation of each action, by the elements of its page; where these are not known, the action itself."""
        pages = elements_of(task)
        new: dict[str, str] = {}
        for action in actions:
            page = pages.get(len({**values, **new}) + 1)
            try:
                new[action.result] = action.text if page is None else str(choose(action, page))
            except Failed as error:
                new[action.result] = NOTHING.format(error)
        return Executed(new, answer_of(new))

    def same(self, gold: str, given: str) -> bool:
        return gold == given

    def score(
        self, task: Task, values: Mapping[str, str], answer: str | None
    ) -> tuple[float | None, Mapping[str, float]]:
        """Step success, averaged over the right steps; ``None`` where the rows have no elements.

        ``on_page`` is the share of steps whose right element is among the candidates at all.
        """
        right, pages = right_of(task), elements_of(task)
        if not right:
            return None, {}
        done = list(values.values())
        steps = [
            score(read_operation(done[n - 1]) if n <= len(done) else None, one)
            for n, one in right.items()
        ]
        on_page = [
            any(element.id in one.elements for element in pages[n]) for n, one in right.items()
        ]
        found = {
            "element": [step.element for step in steps],
            "operation": [step.operation for step in steps],
            "on_page": on_page,
        }
        success = sum(step.success for step in steps) / len(steps)
        return success, {name: sum(some) / len(some) for name, some in found.items()}


class Domain(Protocol):
    """A kind of tasks."""

    name: str
    needs: tuple[type, ...]
    """What it needs of a run (see ``Environment.needs``)."""
    metric: str
    """What a score is, in the words of a report."""

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed: ...

    def same(self, gold: str, given: str) -> bool:
        """Whether an answer is the right one. May take seconds and is called from any thread."""
        ...


@runtime_checkable
class Scoring(Protocol):
    """A domain in which more than the last answer tells what was done well."""

    by_steps: bool
    """Whether held-out tasks of the form ``iterative`` are single steps after the right ones, too."""

    def score(
        self, task: Task, values: Mapping[str, str], answer: str | None
    ) -> tuple[float | None, Mapping[str, float]]:
        """What a path is worth, ``None`` if that can't be told, and what else is found.

        ``values`` are the results of all actions, ``answer`` the last one of a path that ended as it should.
        """
        ...


class Maths:
    """Word problems, whose answers are numbers."""

    name = "maths"
    needs: tuple[type, ...] = (Sandbox,)
    metric = "success"

    def __init__(self, settings: PlanGroundSettings, rows: Sequence[PlanRow]) -> None:
        check_no_pages(settings, "mathematics has")

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        return await MathsExecutor(shared[Sandbox]).run(actions, values)

    def same(self, gold: str, given: str) -> bool:
        return same_number(gold, given)


class Questions:
    """Questions over pages on this machine, whose answers are a few words, or yes and no."""

    name = "complex_qa"
    metric = "exact match"

    def __init__(self, settings: PlanGroundSettings, rows: Sequence[PlanRow]) -> None:
        own = all(isinstance(row, Unplanned) and row.pages for row in rows)
        if settings.corpus is None and not own:
            raise UserError(
                "these questions are answered from pages, and none are named",
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
        """By searches, and a reader that takes answers out of what is found."""
        reader = None if self.reader.rules else shared[ChatReader]
        pages = FewPages(pages_of(task)) if self.corpus is None else self.corpus
        executor = QuestionsExecutor(pages, reader, shared[Sandbox])
        return await executor.run(actions, values)

    def same(self, gold: str, given: str) -> bool:
        """Whether both are the same words, but for case, punctuation and articles."""
        return normalize_answer(gold) == normalize_answer(given)


DOMAINS: Mapping[str, Callable[[PlanGroundSettings, Sequence[PlanRow]], Domain]] = {
    "maths": Maths,
    "complex_qa": Questions,
    "web": Web,
}


def domain_of(name: str, settings: PlanGroundSettings, rows: Sequence[PlanRow]) -> Domain:
    """The domain of rows. Raises ``UserError`` for one whose actions can't be run, or that lacks a setting."""
    if name not in DOMAINS:
        raise UserError(
            f"rows of the domain {name!r} can't be played by this environment",
            f"use rows of: {', '.join(DOMAINS)}"
            + "; environment=shop makes its own tasks" * (name == "shop"),
        )
    return DOMAINS[name](settings, rows)


def ungraded_of(domain: Domain, name: str) -> UserError | None:
    """Why no action of the rows of a data set can be graded; ``None`` where they can be."""
    if not isinstance(domain, Web) or domain.graded:
        return None
    return UserError(
        f"rows of {name} have no elements of their pages, so nothing tells whether an action is right",
        "evaluate on dataset=mind2web, or give rows whose steps have `pages` (docs/howto/data-and-models.md)",
    )
