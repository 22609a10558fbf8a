"""Reading of stored selections."""

from collections.abc import Iterator

from coterie.record.tree import Selection, Tree
from coterie.runs.folder import Run


def load_selections(run: Run, iteration: int) -> Iterator[tuple[Tree, Selection]]:
    """Yield each selection of an iteration with its tree."""
    tree: Tree | None = None
    for task, selection in run.store.selections(iteration, "select"):
        if tree is None or tree.task != task:
            tree = run.store.tree(iteration, "rollout", task)
        yield tree, selection
