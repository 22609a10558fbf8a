"""Mean metrics of policies, as columns next to the score or, if many, as a separate table."""

from collections.abc import Mapping, Sequence

from rich.table import Table

MOST = 6
"""Maximum number of metrics next to the score."""


def measures(means: Sequence[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for one in means for name in one))


def beside(means: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the metrics next to the score; empty if they need a separate table."""
    names = measures(means)
    return names if len(names) <= MOST else []


def in_words(name: str) -> str:
    return name.replace("_", " ")


def share(means: Mapping[str, float], name: str) -> str:
    """Format a metric; empty if it was not measured."""
    return f"{means[name]:.2f}" if name in means else ""


def means_table(labels: Sequence[str], means: Sequence[Mapping[str, float]]) -> Table | None:
    """Build a table of metrics by policy; ``None`` if all fit next to the score."""
    names = measures(means)
    if len(names) <= MOST:
        return None
    table = Table(title="means", box=None)
    table.add_column("")
    for label in labels:
        table.add_column(label, justify="right")
    for name in names:
        table.add_row(in_words(name), *(share(one, name) for one in means))
    return table
