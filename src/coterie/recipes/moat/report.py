"""From the store of a ``moat`` run to what its report page shows: J, plans and their rewards, the critic, examples."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from coterie.environments.gold import known_answers, question_of
from coterie.environments.plan_ground.environment import GROUNDER, PLANNER
from coterie.recipes.moat.data import HALF, WHOLE
from coterie.recipes.moat.recipe import Moat
from coterie.recipes.moat.scoring import LEFT_OUT
from coterie.recipes.plain_report import plain_report
from coterie.reports.data import Ended, RunReport, Sibling, TaskTree, TreeTurn
from coterie.reports.sections import Level, Section
from coterie.runs.folder import Run, Step
from coterie.trajectories.item import Metrics
from coterie.trajectories.selection import Selection
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn

EXAMPLES = 4
"""Tasks of which the best and the worst plan are shown."""
CRITIC = ("accepted", "corrected", "unreadable", "rows")


def moat_report(recipe: Moat, run: Run) -> RunReport:
    """All that the page shows of a run, finished or not."""
    done = [step for step in recipe.steps() if run.is_finished(step)]
    sections = [
        _joint(run, [step for step in done if step.stage in (WHOLE, HALF)]),
        _plans(run, [step for step in done if step.stage == "rollout"]),
        _rewards(run, [step for step in done if step.stage == "reward"]),
        _critic(run, [step for step in done if step.stage == "correct"]),
    ]
    shown = tuple(one for one in sections if one.rows)
    return replace(plain_report(recipe, run), sections=shown, trees=_examples(recipe, run))


# -- J ------------------------------------------------------------------------------------------


def _joint(run: Run, steps: Sequence[Step]) -> Section:
    found = [(step, run.metrics(step)) for step in steps if run.metrics(step).get("n")]
    rows, before = list[tuple[str, ...]](), None
    for number, (step, metrics) in enumerate(found):
        j, error = float(metrics["j"]), float(metrics["standard_error"])
        versions = f"{metrics[PLANNER]}", f"{metrics[GROUNDER]}"
        change = _change(run, before, step) if before else ""
        cells = (f"{j:.4f}", f"{error:.4f}", change, f"{metrics['n']}")
        rows.append((f"{number}: {_when(step, found[0][0])}", *versions, *cells))
        before = step
    levels = [
        Level(_when(step, found[0][0]), float(metrics["j"]), float(metrics["standard_error"]))
        for step, metrics in found
    ]
    return Section(
        "joint",
        "How well planner and grounder fit",
        "J is the mean log-probability (nats a token) of the right actions under plans that the planner samples, on "
        "held-out tasks. It is measured before the first iteration and after each half. Changes are those of the same "
        "tasks, with their standard error; the bars are one standard error of J.",
        ("measurement", "planner", "grounder", "J", "standard error", "change", "tasks"),
        tuple(rows),
        "J",
        tuple(levels),
    )


def _when(step: Step, first: Step) -> str:
    if step.stage == HALF:
        return f"iteration {step.iteration}, planner aligned"
    if step == first:
        return f"before iteration {step.iteration}"
    return f"after iteration {step.iteration - 1}"


def _change(run: Run, before: Step, step: Step) -> str:
    """The mean difference on the tasks that both have, and its standard error."""
    old, new = _by_task(run, before), _by_task(run, step)
    gaps = [new[task] - old[task] for task in new if task in old]
    if not gaps:
        return ""
    spread = statistics.stdev(gaps) if len(gaps) > 1 else 0.0
    return f"{statistics.fmean(gaps):+.4f} ± {spread / math.sqrt(len(gaps)):.4f}"


def _by_task(run: Run, step: Step) -> dict[str, float]:
    found = run.store.metrics(step.iteration, step.stage)
    return {
        key.task: float(one["loglikelihood"])
        for key, one in found.items()
        if "loglikelihood" in one
    }


# -- plans, rewards, critic ---------------------------------------------------------------------


def _plans(run: Run, steps: Sequence[Step]) -> Section:
    rows = []
    for step in steps:
        metrics, reward = run.metrics(step), run.metrics(Step(step.iteration, "reward"))
        plans = sum(len(t.children(t.root)) for t in run.store.trees(step.iteration, "rollout"))
        counts = [f"{reward[name]}" if name in reward else "" for name in ("plans", *LEFT_OUT)]
        rows.append(
            (f"{step.iteration}", f"{len(run.store.tree_tasks(step.iteration, 'rollout'))}",
             f"{plans}", *counts, f"{float(metrics['score']):.3f}")
        )  # fmt: skip
    return Section(
        "plans",
        "What became of the plans",
        "Plans that say nothing, were cut off, are an earlier one of their task again, or quote a right action have no "
        "reward. Success is the share of plans whose actions, as the grounder wrote them, gave the right answer.",
        (
            "iteration",
            "tasks",
            "plans",
            "with a reward",
            "empty",
            "cut off",
            "equal",
            "leaks",
            "success",
        ),
        tuple(rows),
    )


def _rewards(run: Run, steps: Sequence[Step]) -> Section:
    """How far apart the plans of a task are, and how many pairs that makes."""
    rows = []
    for step in steps:
        metrics = run.metrics(step)
        found = run.store.metrics(step.iteration, step.stage).items()
        spreads = sorted(float(one["spread"]) for key, one in found if key.task and "spread" in one)
        quarters = (
            [f"{_quantile(spreads, share):.3f}" for share in (0.25, 0.5, 0.75)]
            if spreads
            else [""] * 3
        )
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


def _quantile(values: Sequence[float], share: float) -> float:
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def _critic(run: Run, steps: Sequence[Step]) -> Section:
    found: list[tuple[Step, Metrics]] = [(step, run.metrics(step)) for step in steps]
    rows = [(f"{s.iteration}", *(f"{m.get(name, 0)}" for name in CRITIC)) for s, m in found]
    return Section(
        "critic",
        "What the critic said",
        "Of the grounder's own actions: accepted as they are, corrected, or nothing that can be read. Right rows are "
        "among those that are learned.",
        ("iteration", "accepted", "corrected", "unreadable", "rows learned"),
        tuple(rows),
    )


# -- examples -----------------------------------------------------------------------------------


def _examples(recipe: Moat, run: Run) -> tuple[TaskTree, ...]:
    """The best and the worst plan of a few tasks of the last iteration that has rewards."""
    steps = [step for step in recipe.steps() if step.stage == "reward" and run.is_finished(step)]
    if not steps:
        return ()
    i = steps[-1].iteration
    rewards = run.store.credit(
        recipe.fingerprint(steps[-1]), "reward", iteration=i, stage="rollout"
    )
    pairs = dict(run.store.selections(i, "select"))
    found = []
    for tree in run.store.trees(i, "rollout"):
        ranked = sorted(
            (turn for turn in tree.children(tree.root) if turn.id in rewards),
            key=lambda turn: -rewards[turn.id],
        )
        if len(ranked) > 1:
            found.append(_example(run, tree, ranked, rewards, pairs.get(tree.task)))
        if len(found) == EXAMPLES:
            break
    return tuple(found)


def _example(
    run: Run,
    tree: Tree,
    ranked: Sequence[Turn],
    rewards: Mapping[str, float],
    pair: Selection | None,
) -> TaskTree:
    task, values = run.store.task(tree.task), [rewards[turn.id] for turn in ranked]
    shown = ((1, ranked[0]), (len(ranked), ranked[-1]))
    between = Sibling(0, values[0] - values[-1])
    turns = []
    for number, turn in shown:
        over = pair is not None and pair.leaf == turn.id
        under = pair is not None and pair.rejected == turn.id
        other = replace(between, number=len(ranked) if number == 1 else 1)
        turns.append(
            replace(
                _turn(tree, turn, number, rewards[turn.id]),
                chosen_over=(other,) * over,
                rejected_for=(other,) * under,
            )
        )
    return TaskTree(
        tree.iteration,
        tree.task,
        question_of(task),
        known_answers(task),
        (PLANNER, GROUNDER),
        statistics.fmean(values),
        len(ranked),
        int(pair is not None),
        tuple(turns),
    )


def _turn(tree: Tree, turn: Turn, number: int, value: float | None) -> TreeTurn:
    outcome = tree.outcomes.get(turn.id)
    ended = None
    if outcome is not None:
        ended = Ended(outcome.ending.reason, outcome.answer, outcome.score)
    children = tuple(_turn(tree, one, 1, None) for one in tree.children(turn.id))
    text = turn.text.strip()
    return TreeTurn(number, turn.speaker.name, text, value, 1, ending=ended, children=children)
