"""Where commands write: results to standard output, all else to standard error.

Nothing that is printed is read as markup: ``coterie[wandb]``, names and models' text stay as they are.
"""

from rich.console import Console


def results(width: int = 0) -> Console:
    """Standard output, for tables; at least ``width`` columns, so that a narrow terminal cuts no figure."""
    found = Console(markup=False, emoji=False)
    found.width = max(found.width, width)
    return found


def notes() -> Console:
    """Standard error, for what is going on; lines are not wrapped, so that paths stay whole."""
    return Console(stderr=True, soft_wrap=True, markup=False, emoji=False, highlight=False)
