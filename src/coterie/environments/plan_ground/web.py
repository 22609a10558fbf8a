"""Web pages as a domain: an action stands for an element of its page, which is compared with the right one.

Nothing is clicked: each action has the page that a person saw at this step (Deng et al. 2023). So an action that fails
stops no other one. The score is the share of steps that are right: element, kind of operation and value.
"""

from collections.abc import Mapping, Sequence

from coterie.datasets.plans import PlanRow
from coterie.environments.plan_ground.given import elements_of, right_of
from coterie.environments.plan_ground.settings import PlanGroundSettings, check_no_pages
from coterie.environments.protocol import Shared
from coterie.tools.actions.executor import Executed, Failed, answer_of
from coterie.tools.actions.grammar import Action
from coterie.tools.actions.web import choose, read_operation, score
from coterie.trajectories.task import Task

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
