"""What objectives whose items are rows have in common: each row by itself counts its targets."""

from collections.abc import Sequence

from coterie.errors import UserError
from coterie.trajectories.row import Row


class OnRows:
    """The item is a :class:`Row`, and one without targets, or of weight 0, counts 0."""

    refuses: tuple[str, str]
    """Who needs a weight of at least 0, and what to do for a row without."""

    def rows(self, item: Row) -> Sequence[Row]:
        return (item,)

    def count(self, item: Row) -> float:
        """Weighted number of target tokens that have something before them."""
        if not item.weight >= 0:  # NaN too
            who, todo = self.refuses
            raise UserError(
                f"row {item.origin or '?'}: {who} needs a weight >= 0, got {item.weight}", todo
            )
        return item.weight * sum(map(len, item.predicted))

    def group(self, item: Row) -> str:
        return ""
