"""Report of a ``moat`` run: J by half-step, plans and their rewards, the critic, and training data of both roles."""

import math
import statistics
from collections.abc import Sequence
from itertools import islice

import numpy as np

from coterie.environments.plans.plan_ground import GROUNDER, PLANNER
from coterie.recipes.moat import HALF, WHOLE, Moat
from coterie.recipes.report import only, selected_examples
from coterie.record.rows import rows, view
from coterie.reports.charts import Chart, Point, Series
from coterie.reports.examples import Example, ExampleSample, example
from coterie.reports.page import Section
from coterie.runs.run import Run, StageKey

EXAMPLES = 4
"""Maximum number of tasks whose plans and actions are shown."""


def sections(recipe: Moat, run: Run) -> list[Section]:
    return [
        _joint(run, recipe.finished(run, WHOLE, HALF)),
        _rewards(run, recipe.finished(run, "reward")),
        *(_planner(recipe, run, key.iteration) for key in recipe.finished(run, "select")[-1:]),
        *(_grounder(recipe, run, key.iteration) for key in recipe.finished(run, "correct")[-1:]),
    ]


# -- J ------------------------------------------------------------------------------------------


def _joint(run: Run, keys: Sequence[StageKey]) -> Section:
    # A measurement in which every task failed has no J.
    keys = [key for key in keys if run.metrics(key).get("n")]
    rows, points, previous = list[tuple[str, ...]](), list[Point](), None
    for number, key in enumerate(keys):
        metrics, when = run.metrics(key), _when(key, keys[0])
        j, error = float(metrics["j"]), float(metrics["standard_error"])
        versions = f"{metrics[PLANNER]}", f"{metrics[GROUNDER]}"
        change = _change(run, previous, key) if previous else ""
        cells = (f"{j:.4f}", f"{error:.4f}", change, f"{metrics['n']}")
        rows.append((f"{number}: {when}", *versions, *cells))
        title = f"{when}: J {j:.3f}, standard error {error:.3f}"
        points.append(Point(number, j, title, j - error, j + error))
        previous = key
    series = (Series("J", tuple(points)),)
    chart = Chart("joint-chart", "J by measurement", "measurement", "J", series)
    return Section(
        "joint",
        "How well planner and grounder fit",
        "J is the mean log-probability (nats a token) of the right actions under plans that the planner samples, on "
        "held-out tasks. It is measured before the first iteration and after each half. Changes are over the same "
        "tasks, with their standard error; the bars are one standard error of J.",
        ("measurement", "planner", "grounder", "J", "standard error", "change", "tasks"),
        tuple(rows),
        (chart,) if keys else (),
    )


def _when(key: StageKey, first_key: StageKey) -> str:
    if key.stage == HALF:
        return f"iteration {key.iteration}, planner aligned"
    if key == first_key:
        return f"before iteration {key.iteration}"
    return f"after iteration {key.iteration - 1}"


def _change(run: Run, previous: StageKey, key: StageKey) -> str:
    """Return the mean difference on common tasks, and its standard error."""
    old, new = _by_task(run, previous), _by_task(run, key)
    # Differences on the same tasks, so that the spread between tasks cancels out.
    gaps = [new[task] - old[task] for task in new if task in old]
    if not gaps:
        return ""
    spread = statistics.stdev(gaps) if len(gaps) > 1 else 0.0
    # Mean and standard error of the differences.
    return f"{statistics.fmean(gaps):+.4f} ± {spread / math.sqrt(len(gaps)):.4f}"


def _by_task(run: Run, key: StageKey) -> dict[str, float]:
    items = run.store.metrics(key.iteration, key.stage)
    name = "loglikelihood"
    return {key.task: float(values[name]) for key, values in items.items() if name in values}


# -- rewards -----------------------------------------------------------------------------------


def _rewards(run: Run, keys: Sequence[StageKey]) -> Section:
    rows = []
    for key in keys:
        metrics = run.metrics(key)
        items = run.store.metrics(key.iteration, key.stage).items()
        spreads = [
            float(values["spread"]) for key, values in items if key.task and "spread" in values
        ]
        quarters = [""] * 3
        if spreads:
            quarters = [f"{cut:.3f}" for cut in np.percentile(spreads, (25, 50, 75))]
        select = run.metrics(StageKey(key.iteration, "select"))
        pairs = f"{select['selected']}" if select else ""
        rows.append((f"{key.iteration}", f"{float(metrics['reward']):.4f}", *quarters, pairs))
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
    margin = f"{recipe.settings.pairs.margin:g}"
    reason = f"A pair: the best and the worst plan of the task, whose rewards differ by more than {margin}."
    facts = only("reward", "perplexity")
    return Section(
        "planner",
        f"Plans that the planner was trained on, iteration {i}",
        "All plans of a task by reward: the mean log-probability of the right actions under the grounder. The marked "
        "tokens of the best plan are made more likely than those in the worst one. A plan without a reward is empty, "
        "cut off, an earlier one again, or quotes a right action.",
        examples=selected_examples(recipe, run, i, reason=reason, facts=facts, count=EXAMPLES),
    )


def _grounder(recipe: Moat, run: Run, i: int) -> Section:
    examples: list[Example] = []
    reason = "Accepted by the critic, corrected by it, or right actions of the data."
    for tree in islice(run.store.trees(i, "correct"), EXAMPLES):
        samples = list[ExampleSample]()
        for n, leaf in enumerate(tree.leaves(), 1):
            grounder_rows = tuple((GROUNDER, row) for row in rows(view(tree, leaf.id, GROUNDER)))
            facts = (("written by", leaf.writer),)
            samples.append(ExampleSample(f"row {n}", facts, grounder_rows, trained=True))
        examples.append(example(run.store.task(tree.task), samples, recipe.renderer, reason))
    return Section(
        "grounder",
        f"Actions that the grounder was trained on, iteration {i}",
        "Marked tokens are trained.",
        examples=tuple(examples),
    )
