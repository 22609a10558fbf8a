"""From the store of a run to the trees of dialogues that its report page shows, with their pairs."""

from collections.abc import Mapping

from coterie.environments.gold import known_answers, question_of
from coterie.recipes.optima.recipe import Optima
from coterie.reports.data import Ended, Sibling, TaskTree, TreeTurn
from coterie.rollout.search import Value
from coterie.runs.folder import Run, Step
from coterie.trajectories.selection import Selection
from coterie.trajectories.tree import LENGTH, TURNS, Outcome, Tree

TREES = 3


def task_trees(recipe: Optima, run: Run) -> tuple[TaskTree, ...]:
    """Trees of the last iteration whose pairs are selected; those with pairs come first."""
    done = [
        step.iteration
        for step in recipe.steps()
        if recipe.is_dpo(step.iteration) and run.is_finished(Step(step.iteration, "select"))
    ]
    if not done:
        return ()
    pairs: dict[str, list[Selection]] = {}
    for task, selection in run.store.selections(done[-1], "select"):
        pairs.setdefault(task, []).append(selection)
    every = (key[0] for key in sorted(run.store.finished_keys(done[-1], "reward")) if key[0])
    tasks = list(dict.fromkeys([*pairs, *every]))[:TREES]
    return tuple(_task_tree(recipe, run, done[-1], task, pairs.get(task, [])) for task in tasks)


def _task_tree(
    recipe: Optima, run: Run, iteration: int, task_id: str, pairs: list[Selection]
) -> TaskTree:
    tree, task = run.store.tree(iteration, "rollout", task_id), run.store.task(task_id)
    values = recipe.values(run, tree)
    root = values.get(tree.root)
    return TaskTree(
        iteration,
        task_id,
        question_of(task),
        known_answers(task),
        recipe.agents,
        root.mean if root else None,
        root.visits if root else 0,
        len(pairs),
        _turns(tree, tree.root, values, pairs),
    )


def _turns(
    tree: Tree, parent: str, values: Mapping[str, Value], pairs: list[Selection]
) -> tuple[TreeTurn, ...]:
    """The turns right after ``parent``, each with all that follows it."""
    children = tree.children(parent)
    number = {turn.id: place for place, turn in enumerate(children, 1)}
    found = []
    for turn in children:
        value, outcome = values.get(turn.id), tree.outcomes.get(turn.id)
        over = [s.rejected for s in pairs if s.leaf == turn.id and s.rejected in number]
        under = [s.leaf for s in pairs if s.rejected == turn.id]
        found.append(
            TreeTurn(
                number[turn.id],
                turn.speaker.name,
                turn.text.strip(),
                value.mean if value else None,
                value.visits if value else 0,
                _siblings(turn.id, [one for one in over if one is not None], number, values),
                _siblings(turn.id, under, number, values),
                _ended(outcome) if outcome else None,
                _turns(tree, turn.id, values, pairs),
            )
        )
    return tuple(found)


def _ended(outcome: Outcome) -> Ended:
    limits = {TURNS.reason: "no turns left", LENGTH.reason: "cut off"}
    reason = limits.get(outcome.ending.reason, outcome.ending.reason)
    return Ended(reason, outcome.answer, outcome.score)


def _siblings(
    turn: str, others: list[str], number: Mapping[str, int], values: Mapping[str, Value]
) -> tuple[Sibling, ...]:
    """The other sides of a turn's pairs, in the order in which they stand."""
    gaps = ((number[o], abs(values[turn].mean - values[o].mean)) for o in others)
    return tuple(Sibling(place, gap) for place, gap in sorted(gaps))
