"""Base class of objectives on rows."""

from collections.abc import Sequence

from coterie.errors import UserError
from coterie.record.rows import Row


class OnRows:
    """Objective with :class:`Row` items; a row without targets, or of weight 0, counts 0."""

    refuses: tuple[str, str]
    """Name of the objective and fix for a negative weight, for the error message."""

    def rows(self, item: Row) -> Sequence[Row]:
        return (item,)

    def count(self, item: Row) -> float:
        """Return the weighted number of targets, without a target at the first token."""
        if not item.weight >= 0:  # NaN too
            name, todo = self.refuses
            raise UserError(
                f"row {item.origin or '?'} has weight {item.weight}; {name} needs a weight >= 0",
                todo,
            )
        return item.weight * sum(map(len, item.predicted))

    def group(self, item: Row) -> str:
        return ""
