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
from coterie.environments.plan_ground.given import pages_of
from coterie.environments.plan_ground.settings import (
    RULES,
    PlanGroundSettings,
    check_no_pages,
)
from coterie.environments.plan_ground.web import Web
from coterie.environments.protocol import Shared
from coterie.environments.traits import Openers
from coterie.errors import UserError
from coterie.tools.actions.corpus import Corpus, FewPages
from coterie.tools.actions.executor import Executed
from coterie.tools.actions.grammar import Action
from coterie.tools.actions.maths import MathsExecutor
from coterie.tools.actions.questions import ChatReader, QuestionsExecutor, open_reader
from coterie.tools.sandbox.pool import Sandbox
from coterie.trajectories.task import Task


class Domain(Protocol):
    """A kind of tasks."""

    name: str
    needs: tuple[type, ...]
    """What it needs of a run (see ``Environment.needs``)."""
    metric: str
    """What a score is, in the words of a report."""

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        """What actions give; ``values`` are the results of earlier ones by name."""
        ...

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
        """By a calculator, and by sympy in the sandbox."""
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
