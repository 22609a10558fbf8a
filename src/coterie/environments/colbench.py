"""ColBench's Backend Programming (see ``environments.coding``)."""

import ast
import builtins
from collections.abc import Sequence

from coterie.datasets.catalogue import Split
from coterie.datasets.code_rows import CodeRow
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.environments.coding import Coding, coding_task
from coterie.environments.rows import draw
from coterie.environments.settings import CodingSettings
from coterie.trajectories.task import Task


class BackendProgramming(Coding):
    """Backend Programming, with a model as the user. Rows without a reference or tests are left out."""

    row_types: tuple[type[QuestionRow], ...] = (CodeRow,)

    def __init__(self, settings: CodingSettings, rows: Rows) -> None:
        super().__init__(settings)
        self.name = rows.name
        self.rows = rows

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        """Return tasks of a split, or fewer if the data set has fewer."""
        tasks = []
        for row in draw(self.rows, split, count, seed, after):
            assert isinstance(row, CodeRow), "the data set has code rows"
            tasks.append(self.task(row))
        return tasks

    def task(self, row: CodeRow) -> Task:
        """Return the task of a row, which may come from outside the data set."""
        calls = row.tests if self.mode == "legacy" else [compared(call) for call in row.tests]
        return coding_task(f"{self.name}-{row.id}", row.question, row.answer, calls)


def compared(call: str) -> str:
    """Return the calls that a test compares with expected values, such as ``f(2)`` for ``f(2) == 4``.

    The reference program gives the expected values, so an ``__eq__`` of the answer never decides. Other tests, such as
    ``f(2)``, stay unchanged.
    """
    try:
        tree = ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return call
    sides = _compared_calls(tree)
    if not sides:
        return call
    return ast.unparse(sides[0] if len(sides) == 1 else ast.Tuple(sides, ast.Load()))


def _compared_calls(node: ast.expr) -> list[ast.expr]:
    """Return the calls in comparisons by ``==``, possibly joined by ``and``; [] for other expressions."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        parts = [_compared_calls(value) for value in node.values]
        return [side for part in parts for side in part] if all(parts) else []
    if not isinstance(node, ast.Compare) or any(type(op) is not ast.Eq for op in node.ops):
        return []
    return [side for side in (node.left, *node.comparators) if _calls_more_than_builtins(side)]


def _calls_more_than_builtins(side: ast.expr) -> bool:
    calls = [node.func for node in ast.walk(side) if isinstance(node, ast.Call)]
    return any(not isinstance(one, ast.Name) or not hasattr(builtins, one.id) for one in calls)
