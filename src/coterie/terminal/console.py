"""Consoles of commands: results go to standard output, all else to standard error.

Markup is off, so ``coterie[wandb]``, names and text of models are printed unchanged.
"""

from rich.console import Console


def results(width: int = 0) -> Console:
    """Return standard output for tables, at least ``width`` columns wide so that no number is cut."""
    console = Console(markup=False, emoji=False)
    console.width = max(console.width, width)
    return console


def notes() -> Console:
    """Return standard error for messages, without line wrapping so that paths stay intact."""
    return Console(stderr=True, soft_wrap=True, markup=False, emoji=False, highlight=False)
