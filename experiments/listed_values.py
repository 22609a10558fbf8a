"""Share of comparisons that the policies of ``coterie reproduce gap`` answer with a list of the values first.

python -m experiments.listed_values runs/reproduce-gap
"""

import sys
from collections import Counter
from pathlib import Path

from coterie.record.store import Store
from coterie.runs.loop import EVALUATION

LIST = "<think>Of "
"""Beginning of the thought with which the expert lists the values."""


def count(store: Store, counts: Counter[tuple[bool, bool]]) -> None:
    """Count the comparisons of the newest evaluation by (listed, right)."""
    version = max(store.iterations(EVALUATION))
    for tree in store.trees(version, EVALUATION):
        if store.task(tree.task).public["type"] != "compare":
            continue
        for outcome in tree.outcomes.values():
            turns = [turn for turn in tree.path(outcome.leaf) if turn.sample]
            listed = any(LIST in part.text for turn in turns for part in turn.parts)
            counts[listed, bool(outcome.score)] += 1


def main(folder: Path) -> None:
    """Print a line for each method, over all seeds."""
    by_method = dict[str, Counter[tuple[bool, bool]]]()
    for file in sorted(folder.glob("seed-*/*/store.sqlite")):
        with Store.open(file, read_only=True) as store:
            count(store, by_method.setdefault(file.parent.name, Counter()))
    for method, counts in by_method.items():
        listed, direct = (
            counts[is_listed, True] + counts[is_listed, False] for is_listed in (True, False)
        )
        print(
            f"{method}: {listed} of {listed + direct} listed; right: "
            f"{counts[True, True]} of {listed} listed, {counts[False, True]} of {direct} others"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
