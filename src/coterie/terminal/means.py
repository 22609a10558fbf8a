"""What was measured of policies besides their score: as columns of a table, or, where there is much, as a table."""

from collections.abc import Mapping, Sequence

from rich.table import Table

MOST = 6
"""Measures that stand beside the score; more of them have a table of their own."""


def measures(means: Sequence[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for one in means for name in one))


def beside(means: Sequence[Mapping[str, float]]) -> list[str]:
    """The measures that stand beside the score."""
    names = measures(means)
    return names if len(names) <= MOST else []


def in_words(name: str) -> str:
    return name.replace("_", " ")


def share(means: Mapping[str, float], name: str) -> str:
    """A measure, or nothing where it was not measured."""
    return f"{means[name]:.2f}" if name in means else ""


def means_table(labels: Sequence[str], means: Sequence[Mapping[str, float]]) -> Table | None:
    """A line for each measure and a column for each policy; ``None`` where all stand beside the score."""
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
