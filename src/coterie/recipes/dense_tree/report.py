"""From the store of a ``dense_tree`` run to what its report page shows: trees, how dense they are, and their pairs."""

from collections.abc import Sequence
from dataclasses import replace

from coterie.environments.gold import known_answers, question_of
from coterie.recipes.dense_tree.recipe import DenseTree
from coterie.recipes.plain_report import plain_report
from coterie.recipes.tree_pages import shown_turns
from coterie.reports.data import RunReport, TaskTree
from coterie.reports.sections import Level, Section
from coterie.runs.folder import Run, Step
from coterie.trajectories.selection import Selection

TREES = 3
CELLS = (
    "rollout.trees", "rollout.n", "rollout.failed", "rollout.turns", "reward.successes", "select.pairs",
    "select.without_pairs", "select.selected",
)  # fmt: skip
"""What the table of trees has, by stage and name; an imported run lacks some."""
BINS = 8
"""Bars of a histogram, at most, besides that of trees without pairs."""


def dense_tree_report(recipe: DenseTree, run: Run) -> RunReport:
    """All that the page shows of a run, finished or not."""
    done = [step for step in recipe.steps() if run.is_finished(step)]
    selects = [step.iteration for step in done if step.stage == "select"]
    sections = [_trees(run, done), *(_histogram(run, i) for i in selects[-1:])]
    shown = tuple(one for one in sections if one.rows)
    return replace(plain_report(recipe, run), sections=shown, trees=_examples(recipe, run, selects))


def _trees(run: Run, done: Sequence[Step]) -> Section:
    rows = []
    for step in done:
        if step.stage == "rollout":
            i = step.iteration
            found = {
                f"{name}.{what}": value
                for name in ("rollout", "reward", "select")
                for what, value in run.metrics(Step(i, name)).items()
            }
            cells = [found.get(name, "") for name in CELLS]
            rows.append((f"{i}", *map(str, cells)))
    return Section(
        "grown",
        "Trees",
        "Rollouts share what they have in common: turns are counted once. Pairs are all that the trees have; selected "
        "is what the budget took.",
        ("iteration", "trees", "rollouts", "failed", "turns", "successes", "pairs", "without pairs", "selected"),
        tuple(rows),
    )  # fmt: skip


def _histogram(run: Run, iteration: int) -> Section:
    counts: dict[str, int] = dict.fromkeys(run.store.tree_tasks(iteration, "rollout"), 0)
    for task, _ in run.store.selections(iteration, "select"):
        counts[task] += 1
    bins = histogram(list(counts.values()))
    return Section(
        "density",
        "Selected pairs of a task",
        f"Of {len(counts)} tasks in iteration {iteration}.",
        ("pairs", "tasks"),
        tuple((label, f"{count}") for label, count in bins),
        quantity="tasks",
        levels=tuple(Level(label, count, 0.0) for label, count in bins),
        bars=True,
    )


def histogram(counts: Sequence[int]) -> list[tuple[str, int]]:
    """Bins of equal width, as labels with how many counts are in each; zero has its own."""
    found = [("0", sum(not count for count in counts))]
    most = max(counts, default=0)
    width = -(-most // BINS)
    for low in range(1, most + 1, max(width, 1)):
        high = min(low + width - 1, most)
        label = f"{low}" if low == high else f"{low}-{high}"
        found.append((label, sum(low <= count <= high for count in counts)))
    return found


def _examples(recipe: DenseTree, run: Run, selects: Sequence[int]) -> tuple[TaskTree, ...]:
    """The smallest trees that have selected pairs, of the last iteration. Imported ones have no values."""
    if not selects:
        return ()
    i = selects[-1]
    pairs: dict[str, list[Selection]] = {}
    for task, one in run.store.selections(i, "select"):
        if one.rejected is not None:
            pairs.setdefault(task, []).append(one)
    value_tree = {task for task, _ in run.store.finished_keys(i, "reward")}
    known = (task for task in pairs if task in value_tree)
    smallest = sorted(known, key=lambda task: (len(pairs[task]), task))[:TREES]
    return tuple(_tree(recipe, run, i, task, pairs[task]) for task in smallest)


def _tree(
    recipe: DenseTree, run: Run, iteration: int, task_id: str, pairs: list[Selection]
) -> TaskTree:
    tree, task = run.store.tree(iteration, "rollout", task_id), run.store.task(task_id)
    values = recipe.values(run, tree)
    root = values.get(tree.root)
    return TaskTree(
        iteration,
        task_id,
        question_of(task),
        known_answers(task),
        (recipe.agent,),
        root.mean if root else None,
        root.visits if root else 0,
        len(pairs),
        shown_turns(tree, tree.root, values, pairs),
    )
