"""The control of claims about ``moat``: supervised training, with as many rows and steps as joint alignment had.

It sees more right rows than joint alignment did: tasks are drawn until there are as many rows.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from coterie.environments.plan_ground.environment import PLANNER
from coterie.progress import Progress
from coterie.recipes.moat.recipe import Moat
from coterie.recipes.moat.settings import MoatSettings
from coterie.recipes.trainings import train_role
from coterie.runs.folder import Run, Step
from coterie.runs.stage import Stage
from coterie.trajectories.item import Metrics


@dataclass(frozen=True, slots=True)
class Trained:
    """What joint alignment trained on."""

    planner: tuple[int, ...]
    """Rows of each iteration: two for a pair."""
    grounder: tuple[int, ...]


def trained(run: Run, recipe: Moat) -> Trained:
    """What a finished run of joint alignment trained on."""
    iterations = range(1, recipe.settings.rounds)
    pairs = [int(run.metrics(Step(i, "align"))["rows"]) for i in iterations]
    rows = [int(run.metrics(Step(i, "improve"))["rows"]) for i in iterations]
    return Trained(tuple(2 * count for count in pairs), tuple(rows))


class ContinuedSFT(Moat):
    """Both roles go on with supervised training."""

    def __init__(self, settings: MoatSettings, joint: Trained) -> None:
        super().__init__(settings)
        self.joint = joint

    def taught(self, i: int, before: Sequence[Stage], learnt: Sequence[object]) -> list[Stage]:
        """After the start it depends on what joint alignment trained on, too."""
        s = self.settings.align.train
        own = (astuple(self.joint), s.batch_rows, s.epochs) if i else ()
        return super().taught(i, before, (*learnt, *own))

    def teach(self, run: Run, iteration: int, role: str, progress: Progress) -> Metrics:
        """SFT of a role on as many right rows as it had in joint alignment, in as many steps."""
        if iteration == 0:
            return super().teach(run, iteration, role, progress)
        s, place = self.settings, iteration - 1
        counts = self.joint.planner if role == PLANNER else self.joint.grounder
        before = [max(self.joint.planner[n], self.joint.grounder[n]) for n in range(place)]
        tasks = self.environment.tasks("train", counts[place], s.seed, [s.start.tasks, *before])
        train = s.improve.train
        if role == PLANNER:  # a pair is two rows, and as many pairs are a step
            whole = {"batch_rows": 2 * s.align.train.batch_rows, "epochs": s.align.train.epochs}
            train = train.model_copy(update=whole)
        found = [row for task in tasks for row in self.right_rows(task, role)]
        own = self.seeded(train, iteration)
        model = self.to_train(run, role, iteration)
        return train_role(run, iteration, model, found, own, progress, role=role)
