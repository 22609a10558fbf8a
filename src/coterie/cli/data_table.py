"""The table of ``coterie data list``."""

from collections.abc import Iterator

from rich.table import Table

from coterie.datasets.catalogue import CATALOGUE, SPLITS, DataSet
from coterie.datasets.data_set import UpstreamSet
from coterie.datasets.local import sample_rows
from coterie.datasets.preferences import PREFERENCE_SETS
from coterie.datasets.prepared import folder_of, is_prepared, read_manifest

WIDTHS = {"set": 16, "what": 0, "licence": 12, "upstream": 15, "rows": 7, "sample": 6, "ready": 7}
"""Of the columns; 0 takes what is left."""
NUMBERS = ("rows", "sample", "ready")


def data_table() -> Table:
    """Every set: licence, splits, rows, and what of it is on this machine."""
    table = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    for title, width in WIDTHS.items():
        right = title in NUMBERS
        table.add_column(title, justify="right" if right else "left", width=width or None)
    for row in _rows():
        table.add_row(*row)
    return table


def _rows() -> Iterator[tuple[str, ...]]:
    for name, entry in CATALOGUE.items():
        names, rows = zip(*_upstream(entry), strict=True)
        ready = _ready(entry)
        prepared = ["no", ""] if ready is None else [""] * (len(SPLITS) - len(ready)) + ready
        samples = (str(sample_rows(entry, split)) for split in SPLITS)
        of_splits = map("\n".join, (names, rows, samples, prepared))
        yield name, entry.what, entry.licence, *of_splits
    for name, one in PREFERENCE_SETS.items():
        ready = _ready(one)
        pairs = "no" if ready is None else ", ".join(ready)
        yield name, one.what, one.licence, one.train.name, f"{one.train.rows:,}", "0", pairs


def _upstream(entry: DataSet) -> list[tuple[str, str]]:
    """The name and the number of rows of each split at upstream."""
    found = [
        (one.name, f"{one.first or one.rows:,}") if one else (f"{entry.share:g} of it", "")
        for one in map(entry.upstream, entry.splits)
    ]
    return [("none", "")] * (len(SPLITS) - len(found)) + found


def _ready(entry: UpstreamSet) -> list[str] | None:
    """The rows of each split that is prepared here; ``None`` if the set is not."""
    if not is_prepared(entry):
        return None
    return [f"{known.rows:,}" for known in read_manifest(folder_of(entry)).splits.values()]
