"""ColBench's Backend Programming as an environment (see ``environments.coding``)."""

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
    """Its tasks; the person is a model. Rows without a reference or tests are left out."""

    row_types: tuple[type[QuestionRow], ...] = (CodeRow,)

    def __init__(self, settings: CodingSettings, rows: Rows) -> None:
        super().__init__(settings)
        self.name = rows.name
        self.rows = rows

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """Tasks of one split of the data set, as many as it has at most."""
        found = []
        for row in draw(self.rows, split, count, seed, drawn):
            assert isinstance(row, CodeRow), "this data set has rows of code"
            found.append(self.task(row))
        return found

    def task(self, row: CodeRow) -> Task:
        """The task of a row, whether or not the data set has it."""
        calls = row.tests if self.mode == "legacy" else [compared(call) for call in row.tests]
        return coding_task(f"{self.name}-{row.id}", row.question, row.answer, calls)


def compared(call: str) -> str:
    """Of a test that says what should come out (``f(2) == 4``, ``[1] == f(3)[0] and f(4) == 5``), what it compares with
    that: else an answer's own ``__eq__`` would be asked. Others stay as they are; the reference says what they should
    give."""
    try:
        tree = ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return call
    asked = _asked(tree)
    if not asked:
        return call
    return ast.unparse(asked[0] if len(asked) == 1 else ast.Tuple(asked, ast.Load()))


def _asked(node: ast.expr) -> list[ast.expr]:
    """What is compared by ``==``, also with ``and`` between; nothing if anything else decides."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        parts = [_asked(value) for value in node.values]
        return [side for part in parts for side in part] if all(parts) else []
    if not isinstance(node, ast.Compare) or any(type(op) is not ast.Eq for op in node.ops):
        return []
    return [side for side in (node.left, *node.comparators) if _calls_more_than_builtins(side)]


def _calls_more_than_builtins(side: ast.expr) -> bool:
    called = [node.func for node in ast.walk(side) if isinstance(node, ast.Call)]
    return any(not isinstance(one, ast.Name) or not hasattr(builtins, one.id) for one in called)
