"""From what a stage selected to what is trained on: each selection with its tree."""

from collections.abc import Iterator

from coterie.runs.folder import Run
from coterie.trajectories.selection import Selection
from coterie.trajectories.tree import Tree


def selected(run: Run, iteration: int) -> Iterator[tuple[Tree, Selection]]:
    tree: Tree | None = None
    for task, selection in run.store.selections(iteration, "select"):
        if tree is None or tree.task != task:
            tree = run.store.tree(iteration, "rollout", task)
        yield tree, selection
