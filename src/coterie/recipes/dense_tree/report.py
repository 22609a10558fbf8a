"""Report of a ``dense_tree`` run: trees, their density, and their pairs."""

from collections.abc import Sequence

from coterie.recipes.dense_tree.recipe import DenseTree
from coterie.recipes.plain_report import plain_report, selected_examples
from coterie.reports.charts import Chart, Point, Series
from coterie.reports.page import Report, Section
from coterie.runs.folder import Run, Step

CELLS = {
    "trees": "rollout.trees",
    "rollouts": "rollout.n",
    "failed": "rollout.failed",
    "turns": "rollout.turns",
    "successes": "reward.successes",
    "pairs": "select.pairs",
    "without pairs": "select.without_pairs",
    "selected": "select.selected",
}
"""Columns of the table of trees, by stage and metric; an imported run lacks some."""
BINS = 8
"""Bars of a histogram, without the bar of trees that have no pairs."""


def dense_tree_report(recipe: DenseTree, run: Run) -> Report:
    """Return the report of a run, finished or not."""
    done = [step for step in recipe.steps() if run.is_finished(step)]
    selects = [step.iteration for step in done if step.stage == "select"]
    own = [_trees(run, done), *(_histogram(run, i) for i in selects[-1:])]
    own += [_selected(recipe, run, i) for i in selects[-1:]]
    return plain_report(recipe, run, own)


def _selected(recipe: DenseTree, run: Run, i: int) -> Section:
    margin = recipe.settings.pairs.margin
    reason = (
        "Selected: a rollout that succeeded (a control)."
        if recipe.settings.learns == "successes"
        else f"Replies after the same turns. A pair: their values differ by {margin:g} or more, within the budget."
    )
    return Section(
        "selected",
        f"What iteration {i} was trained on",
        "Marked tokens are trained. The value of a reply is the mean success of the rollouts through it.",
        examples=selected_examples(
            recipe,
            run,
            i,
            reason=reason,
            facts=lambda credit: {name: credit[name] for name in ("value", "visits") if name in credit},
        ),
    )  # fmt: skip


def _trees(run: Run, done: Sequence[Step]) -> Section:
    rows = []
    for step in done:
        if step.stage == "rollout":
            values = {
                f"{name}.{what}": value
                for name in ("rollout", "reward", "select")
                for what, value in run.metrics(Step(step.iteration, name)).items()
            }
            rows.append(
                (f"{step.iteration}", *(f"{values.get(one, '')}" for one in CELLS.values()))
            )
    return Section(
        "grown",
        "Trees",
        "Rollouts share their beginnings: turns are counted once. Pairs are all that the trees have; selected is what "
        "the budget took.",
        ("iteration", *CELLS),
        tuple(rows),
    )


def _histogram(run: Run, iteration: int) -> Section:
    counts: dict[str, int] = dict.fromkeys(run.store.tree_tasks(iteration, "rollout"), 0)
    for task, _ in run.store.selections(iteration, "select"):
        counts[task] += 1
    bins = histogram(list(counts.values()))
    points = tuple(Point(n, count, f"{label}: {count}") for n, (label, count) in enumerate(bins))
    series = (Series("tasks", points, kind="bars"),)
    labels = tuple(label for label, _ in bins)
    return Section(
        "density",
        "Selected pairs of a task",
        f"{len(counts)} tasks in iteration {iteration}.",
        ("pairs", "tasks"),
        tuple((label, f"{count}") for label, count in bins),
        (Chart("density-chart", "Tasks by selected pairs", "pairs", "tasks", series, labels),),
    )


def histogram(counts: Sequence[int]) -> list[tuple[str, int]]:
    """Return bins of equal width as labels and counts. Zero has a separate bin."""
    bins = [("0", sum(not count for count in counts))]
    most = max(counts, default=0)
    width = -(-most // BINS)
    for low in range(1, most + 1, max(width, 1)):
        high = min(low + width - 1, most)
        label = f"{low}" if low == high else f"{low}-{high}"
        bins.append((label, sum(low <= count <= high for count in counts)))
    return bins
