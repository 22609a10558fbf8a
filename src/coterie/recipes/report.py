"""Report of a run: common sections, the sections of a recipe, and examples of its training data."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from coterie.errors import UserError
from coterie.progress import duration
from coterie.recipes.base import Recipe
from coterie.recipes.registry import preset_values
from coterie.record.rows import Row, View, rows
from coterie.record.tree import Selection, Task, Tree
from coterie.reports import page
from coterie.reports.examples import (
    Example,
    ExampleSample,
    add_pictures,
    described,
    example,
    rollout,
)
from coterie.reports.page import Report, Section
from coterie.runs.evaluation import evaluation, grade_means
from coterie.runs.loop import EVALUATION
from coterie.runs.run import Run, StageKey

EXAMPLES = 8
HEADLINES = 2
"""Number of results that stand side by side at the beginning."""
MAX_OF_TASK = 2
"""Maximum number of nodes of one task whose pairs are shown."""
MAX_COMMANDS = 5
"""Maximum number of shown commands, for runs that were resumed many times."""
Numbers = Mapping[str, float]
Facts = Callable[[Numbers], Numbers]
Look = Callable[[Tree, Selection, str], View]


def run_report(recipe: Recipe, run: Run) -> Report:
    """Return the report of a run, finished or not."""
    done = recipe.finished(run)
    versions = [key.iteration for key in done if key.stage == EVALUATION]
    evaluations = [
        evaluation(run.store, version, label=f"after iteration {version}" if version else "base")
        for version in versions
    ]
    measured = [run.metrics(key) for key in done]
    trained = sum(int(metrics.get("trained_tokens", 0)) for metrics in measured)
    training = sum("trained_tokens" in metrics for metrics in measured)
    metric, method = recipe.environment.metric, getattr(recipe.settings, "method", "")
    rollouts = [key for key in done if key.stage == "rollout" and run.metrics(key).get("n")]
    measures = []
    for key in rollouts:
        if means := grade_means(run.store, key.iteration, key.stage, None):
            name = f"training, iteration {key.iteration}"
            measures.append((name, int(run.metrics(key)["n"]), means))
    return Report(
        kind="run report",
        title=f"{recipe.title} on {recipe.settings.benchmark}",
        facts=(
            ("model", recipe.settings.model),
            ("seed", f"{recipe.settings.seed}"),
            ("trainings", f"{training} finished"),
            ("tokens trained", f"{trained:,}"),
            *([("method", method)] if method else []),
        ),
        commands=run.commands()[-MAX_COMMANDS:],
        headlines=(
            # The recipe's own results come first, and may leave no place for the usual ones.
            *recipe.headlines(run),
            *page.headlines(evaluations, metric, recipe.settings.iteration_count),
        )[:HEADLINES],
        sections=(
            page.changes(recipe.settings, preset_values(recipe.settings.recipe, recipe.settings.model_dump())),
            *recipe.sections(run),
            replace(page.scores(evaluations, metric), examples=_before_and_after(recipe, run, versions)),
            page.measures(measures),
            page.tools(run.store.calls()),
            _stages(run, done),
            page.failures(run),
            page.settings(recipe.settings),
        ),
    )  # fmt: skip


def only(*names: str) -> Facts:
    """Return a function that keeps the credit with these names, in this order."""
    return lambda credit: {name: credit[name] for name in names if name in credit}


def selected_examples(
    recipe: Recipe,
    run: Run,
    iteration: int,
    *,
    reason: str,
    facts: Facts = dict,
    count: int = EXAMPLES,
) -> tuple[Example, ...]:
    """Return ``count`` tasks of an iteration with selected and other samples side by side.

    ``reason`` is the selection rule. ``facts`` returns the credit of a turn to show, the most important values first.
    """
    by_task: dict[str, list[Selection]] = {}
    for task, selection in run.store.selections(iteration, "select"):
        # All selections of the first tasks, and none of other tasks.
        if task in by_task or len(by_task) < count:
            by_task.setdefault(task, []).append(selection)
    reward = StageKey(iteration, "reward")
    # The store also keeps credit that was computed under other settings.
    settings = recipe.fingerprint(reward) if reward in recipe.stage_keys() else ""
    examples = []
    for task, selections in by_task.items():
        tree = run.store.tree(iteration, "rollout", task)
        numbers: dict[str, dict[str, float]] = {}
        for credit in run.store.credit_of(tree):
            if credit.settings == settings:
                numbers.setdefault(credit.node, {})[credit.name] = credit.value
        node_facts = {node: facts(of_node) for node, of_node in numbers.items()}
        # Pairs of the same turn are shown together.
        groups: dict[str, list[Selection]] = {}
        for selection in selections:
            groups.setdefault(_parent(tree, selection), []).append(selection)
        for chosen in [*groups.values()][:MAX_OF_TASK]:
            draw = _sides if chosen[0].rejected else _demonstrations
            samples = draw(tree, chosen, node_facts, partial(recipe.training_view, run))
            examples.append(example(run.store.task(task), samples, recipe.renderer, reason))
    return tuple(examples[:count])


def _parent(tree: Tree, selection: Selection) -> str:
    # Selections without a common parent form one group.
    nodes = filter(None, (selection.leaf, selection.rejected))
    parents = {tree.turns[node].parent for node in nodes}
    return parents.pop() if selection.rejected and len(parents) == 1 else ""


def _sides(
    tree: Tree, pairs: Sequence[Selection], numbers: Mapping[str, Numbers], look: Look
) -> list[ExampleSample]:
    """Return the turns, or the whole rollouts, that pairs compare, and their siblings."""
    first_pair = pairs[0]
    assert first_pair.rejected is not None, "these selections are pairs"
    chosen, rejected = ({pair.leaf for pair in pairs}, {pair.rejected for pair in pairs})
    parent = tree.turns[first_pair.leaf].parent
    are_siblings = tree.turns[first_pair.rejected].parent == parent
    nodes = dict.fromkeys(node for pair in pairs for node in (pair.leaf, pair.rejected) if node)
    if are_siblings:
        nodes |= dict.fromkeys(turn.id for turn in tree.children(parent))
    replies = []
    for node in nodes:
        side = "chosen" if node in chosen else "rejected" if node in rejected else ""
        trained_rows: list[Row] = [row for row in rows(look(tree, first_pair, node)) if row.targets]
        if are_siblings:  # only the turn itself is compared
            trained_rows = [replace(row, targets=row.targets[-1:]) for row in trained_rows[-1:]]
        side = f"{side} and rejected" if node in chosen & rejected else side
        texts = described(tree.outcomes.get(node), numbers.get(node, {}))
        named = tuple((first_pair.agent, row) for row in trained_rows)
        if named:
            replies.append((node, ExampleSample("", texts, named, trained=bool(side), side=side)))
    # By falling value, and the chosen side first if values are equal.
    replies.sort(key=lambda reply: (-_first(numbers.get(reply[0])), reply[1].side != "chosen"))
    unit = "reply" if are_siblings else "rollout"
    return [replace(sample, name=f"{unit} {n}") for n, (_, sample) in enumerate(replies, 1)]


def _demonstrations(
    tree: Tree, chosen: Sequence[Selection], numbers: Mapping[str, Numbers], look: Look
) -> list[ExampleSample]:
    """Return the rollouts of a task by falling reward, with the selected rollouts as trained."""
    rollouts = []
    for outcome, path in tree.trajectories():
        selected = [selection for selection in chosen if selection.leaf == outcome.leaf]
        name, facts = f"rollout {outcome.sample}", numbers.get(outcome.leaf)
        sample = rollout(tree, outcome, path, name, facts, trained=bool(selected))
        if selected:
            trained = ((s.agent, row) for s in selected for row in rows(look(tree, s, s.leaf)))
            targets = tuple((agent, row) for agent, row in trained if row.targets)
            sample = replace(sample, rows=targets, side="chosen")
        rollouts.append((outcome.leaf, sample))
    rollouts.sort(key=lambda item: (-_first(numbers.get(item[0])), not item[1].side))
    return [sample for _, sample in rollouts]


def _first(numbers: Numbers | None) -> float:
    return next(iter(numbers.values())) if numbers else -math.inf


def _before_and_after(recipe: Recipe, run: Run, versions: Sequence[int]) -> tuple[Example, ...]:
    """Return held-out tasks with the first and the last policy's rollout; those with the largest change come first."""
    if not versions:
        return ()
    tasks = list[tuple[float, int, Task, list[ExampleSample]]]()
    try:
        heldout = recipe.heldout_tasks()
    except UserError:  # its file has moved, or its server has ended
        return ()
    # Only the first held-out tasks are read, which is fast for large sets too.
    for task in heldout[: 4 * EXAMPLES]:
        sides, scores = list[ExampleSample](), list[float]()
        for version in dict.fromkeys((versions[0], versions[-1])):
            try:
                tree = run.store.tree(version, EVALUATION, task.id)
            except KeyError:  # the rollout failed; the table of failures says why
                continue
            name = f"after iteration {version}" if version else "before training"
            for outcome, path in [*tree.trajectories()][:1]:
                sides.append(rollout(tree, outcome, path, name))
                scores.append(outcome.score or 0.0)
        if sides:
            # Negative, so that sorting puts the largest improvements first; the number breaks ties.
            tasks.append((scores[0] - scores[-1], len(tasks), task, sides))
    tasks.sort(key=lambda entry: entry[:2])
    # Mostly improvements, but also the two tasks that became worst.
    picks = tasks[: EXAMPLES - 2] + tasks[EXAMPLES - 2 :][-2:]
    examples = [(example(task, sides, recipe.renderer), task, sides) for *_, task, sides in picks]
    return add_pictures(examples, recipe.environment, run.folder / "pictures")


UNLISTED = ("seconds", "settings", "weights")


def _stages(run: Run, done: Sequence[StageKey]) -> Section:
    """Return the time of each finished stage, its share of the whole, and the counts and means that it reported."""
    measured = [(key, run.metrics(key)) for key in done]
    total = sum(float(metrics["seconds"]) for _, metrics in measured) or 1.0
    rows = []
    for key, metrics in measured:
        texts = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in metrics.items()
            if name not in UNLISTED
        )
        seconds = float(metrics["seconds"])
        time = (duration(seconds), f"{seconds / total:.0%}")
        rows.append((f"{key.iteration}", key.stage, *time, ", ".join(texts)))
    heads = ("iteration", "stage", "time", "share", "metrics")
    intro = f"All stages took {duration(total)}."
    return Section("stages", "Time and metrics of stages", intro, heads, tuple(rows), folded=True)
