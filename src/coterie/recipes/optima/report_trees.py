"""From the store of a run to the trees of dialogues that its report page shows, with their pairs."""

from coterie.environments.gold import known_answers, question_of
from coterie.recipes.optima.recipe import Optima
from coterie.recipes.tree_pages import shown_turns
from coterie.reports.data import TaskTree
from coterie.runs.folder import Run, Step
from coterie.trajectories.selection import Selection

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
        shown_turns(tree, tree.root, values, pairs),
    )
