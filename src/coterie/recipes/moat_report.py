"""Report of a ``moat`` run: J by half-step, plans and their rewards, the critic, and training data of both roles."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from coterie.environments.plan_ground import GROUNDER, PLANNER
from coterie.recipes.moat import HALF, WHOLE, Moat
from coterie.recipes.report import decoder, plain_report, selected_examples
from coterie.record.rows import rows, view
from coterie.reports.charts import Chart, Point, Series
from coterie.reports.examples import Example, Shown, example
from coterie.reports.page import Report, Section
from coterie.runs.folder import Run, Step

EXAMPLES = 4
"""Maximum number of tasks whose plans and actions are shown."""


def moat_report(recipe: Moat, run: Run) -> Report:
    done = [step for step in recipe.steps() if run.is_finished(step)]
    selects = [step.iteration for step in done if step.stage == "select"]
    corrects = [step.iteration for step in done if step.stage == "correct"]
    own = [
        _joint(run, [step for step in done if step.stage in (WHOLE, HALF)]),
        _rewards(run, [step for step in done if step.stage == "reward"]),
        *(_planner(recipe, run, i) for i in selects[-1:]),
        *(_grounder(recipe, run, i) for i in corrects[-1:]),
    ]
    return plain_report(recipe, run, own)


# -- J ------------------------------------------------------------------------------------------


def _joint(run: Run, steps: Sequence[Step]) -> Section:
    measurements = [(step, run.metrics(step)) for step in steps if run.metrics(step).get("n")]
    rows, before = list[tuple[str, ...]](), None
    for number, (step, metrics) in enumerate(measurements):
        j, error = float(metrics["j"]), float(metrics["standard_error"])
        versions = f"{metrics[PLANNER]}", f"{metrics[GROUNDER]}"
        change = _change(run, before, step) if before else ""
        cells = (f"{j:.4f}", f"{error:.4f}", change, f"{metrics['n']}")
        rows.append((f"{number}: {_when(step, measurements[0][0])}", *versions, *cells))
        before = step
    points = tuple(
        Point(
            n,
            j := float(one["j"]),
            f"{_when(step, measurements[0][0])}: J {j:.3f}, "
            f"standard error {(error := float(one['standard_error'])):.3f}",
            j - error,
            j + error,
        )
        for n, (step, one) in enumerate(measurements)
    )
    chart = Chart("joint-chart", "J by measurement", "measurement", "J", (Series("J", points),))
    return Section(
        "joint",
        "How well planner and grounder fit",
        "J is the mean log-probability (nats a token) of the right actions under plans that the planner samples, on "
        "held-out tasks. It is measured before the first iteration and after each half. Changes are over the same "
        "tasks, with their standard error; the bars are one standard error of J.",
        ("measurement", "planner", "grounder", "J", "standard error", "change", "tasks"),
        tuple(rows),
        (chart,) if measurements else (),
    )


def _when(step: Step, first: Step) -> str:
    if step.stage == HALF:
        return f"iteration {step.iteration}, planner aligned"
    if step == first:
        return f"before iteration {step.iteration}"
    return f"after iteration {step.iteration - 1}"


def _change(run: Run, before: Step, step: Step) -> str:
    """Return the mean difference on common tasks, and its standard error."""
    old, new = _by_task(run, before), _by_task(run, step)
    gaps = [new[task] - old[task] for task in new if task in old]
    if not gaps:
        return ""
    spread = statistics.stdev(gaps) if len(gaps) > 1 else 0.0
    return f"{statistics.fmean(gaps):+.4f} ± {spread / math.sqrt(len(gaps)):.4f}"


def _by_task(run: Run, step: Step) -> dict[str, float]:
    items = run.store.metrics(step.iteration, step.stage)
    return {
        key.task: float(one["loglikelihood"])
        for key, one in items.items()
        if "loglikelihood" in one
    }


# -- rewards -----------------------------------------------------------------------------------


def _rewards(run: Run, steps: Sequence[Step]) -> Section:
    rows = []
    for step in steps:
        metrics = run.metrics(step)
        items = run.store.metrics(step.iteration, step.stage).items()
        spreads = [float(one["spread"]) for key, one in items if key.task and "spread" in one]
        quarters = [""] * 3
        if spreads:
            quarters = [f"{cut:.3f}" for cut in np.percentile(spreads, (25, 50, 75))]
        select = run.metrics(Step(step.iteration, "select"))
        pairs = f"{select['selected']}" if select else ""
        rows.append((f"{step.iteration}", f"{float(metrics['reward']):.4f}", *quarters, pairs))
    return Section(
        "spread",
        "How far apart plans are",
        "Rewards are mean log-probabilities of right actions under the grounder (nats a token). The spread of a task "
        "is the difference of its best and its worst plan: a quarter of the tasks has less than the lower quarter, "
        "half of them less than the median.",
        ("iteration", "mean reward", "lower quarter", "median", "upper quarter", "pairs"),
        tuple(rows),
    )


# -- examples -----------------------------------------------------------------------------------


def _planner(recipe: Moat, run: Run, i: int) -> Section:
    return Section(
        "planner",
        f"Plans that the planner was trained on, iteration {i}",
        "All plans of a task by reward: the mean log-probability of the right actions under the grounder. The marked "
        "tokens of the best plan are made more likely than those in the worst one. A plan without a reward is empty, "
        "cut off, an earlier one again, or quotes a right action.",
        examples=selected_examples(
            recipe,
            run,
            i,
            reason=f"A pair: the best and the worst plan of the task, whose rewards differ by more than "
            f"{recipe.settings.pairs.margin:g}.",
            facts=lambda credit: {name: credit[name] for name in ("reward", "perplexity") if name in credit},
            count=EXAMPLES,
        ),
    )  # fmt: skip


def _grounder(recipe: Moat, run: Run, i: int) -> Section:
    examples: list[Example] = []
    for tree in run.store.trees(i, "correct"):
        samples = list[Shown]()
        for leaf in tree.leaves():
            own = tuple(
                (GROUNDER, row) for row in rows(view(tree, leaf.id, GROUNDER)) if row.targets
            )
            writer = (("written by", leaf.writer),)
            samples.append(Shown(f"row {len(samples) + 1}", writer, own, trained=True))
        if samples and len(examples) < EXAMPLES:
            reason = "Accepted by the critic, corrected by it, or right actions of the data."
            examples.append(example(run.store.task(tree.task), samples, decoder(recipe), reason))
    return Section(
        "grounder",
        f"Actions that the grounder was trained on, iteration {i}",
        "Marked tokens are trained.",
        examples=tuple(examples),
    )  # fmt: skip
