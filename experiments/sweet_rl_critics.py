"""SWEET-RL with other critics and other numbers of tasks in ``persona``.

Fixed before any run. One claim, which is reported: with 75 tasks, SWEET scores above SWEET whose critic does not see
the reference. In the table without a claim: with 150 tasks a critic that takes sums in place of means, a regression
head and a value function (``sweet_rl`` has SWEET with the same seeds and tasks); with 300 and 600 tasks SWEET with and
without the reference, where nothing is expected, because a critic without it sees enough dialogues of each theme.

Each critic has a row with the pairs of first turns that it orders rightly. The gate is that of ``sweet_rl``.
"""

from experiments.claims import Claim, Hypothesis
from experiments.experiment import Experiment, Quick
from experiments.results import Measurements
from experiments.sweet_rl import METHODS, gate, run_method

__all__ = ["gate"]
CRITICS: dict[str, tuple[str, ...]] = {
    "regression": ("critic.kind=regression",),
    "classifier": ("critic.kind=classifier",),
    "sums": ("critic.objective.reduction=none",),
}
"""Differences from the preset. The first run begins; the others share its equal steps."""
CURVE = (75, 300, 600)
"""Numbers of tasks besides the preset's, with and without the reference."""
QUICK = Quick(("sweet, 75 tasks", "no_reference, 75 tasks"), ("evaluate.tasks=200",))
REFERENCE_75 = Hypothesis(
    "reference_75",
    "75 tasks: SWEET scores above SWEET without the reference",
    *("sweet, 75 tasks", "no_reference, 75 tasks"),
    must=False,
)


def run(x: Experiment) -> None:
    """Run the critics, and the curve over numbers of tasks."""
    for seed in x.seeds:
        common = [*x.overrides, f"seed={seed}"]
        for method in x.chosen(CRITICS):
            run_method(x, method, [*common, *CRITICS[method]], leader="regression")
        for tasks in CURVE:
            leader = f"sweet, {tasks} tasks"
            for name in x.chosen((leader, f"no_reference, {tasks} tasks")):
                overrides = [*common, *METHODS[name.split(",")[0]], f"rollout.tasks={tasks}"]
                run_method(x, name, overrides, leader=leader)


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claim."""
    return measurements.test(REFERENCE_75)
