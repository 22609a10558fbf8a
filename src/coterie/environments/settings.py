"""Settings of environments, splits of micro-worlds, and which rows of a data set become tasks."""

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, TypeVar

from coterie.config.settings import Settings, key
from coterie.datasets.catalogue import Split
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.environments.answers import secret_answers
from coterie.record.tree import Task
from coterie.record.turn import digest


class EnvironmentSettings(Settings):
    """Base class of environment settings. An environment with more keys sets ``settings_type`` to a subclass."""

    main: ClassVar[str] = "name"

    name: str | None = key(
        None,
        "The environment: `exchange`, `persona`, `problems`, `sums`, `question`, `debate`, `information_exchange`, "
        "`backend_programming`, `plan_ground`, `shop`, `python_maths`, `babyai`, `encyclopedia`, `mhqa`, `web`, "
        "`code`, `code_maths`, or your own (package.module:NAME, path/file.py:NAME). The default depends on the "
        "data set.",
    )

    def identity(self) -> str:
        return digest(self.model_dump_json(exclude={"name"}))


class RowTasks:
    """Tasks of an environment whose data set has one task in each row."""

    name: str
    rows: Rows

    def task_of(self, row: QuestionRow) -> Task:
        return Task(f"{self.name}-{row.id}", {"question": row.question}, secret_answers(row))

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        return [self.task_of(row) for row in draw(self.rows, split, count, seed, after)]


MicroSplit = Literal["train", "heldout", "corpus"]
"""``corpus`` is the pre-training data of the micro-world's model."""
SPLIT_SHARES: dict[MicroSplit, range] = {
    "train": range(30),
    "heldout": range(30, 55),
    "corpus": range(55, 100),
}


def split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def split_of_key(key: str) -> MicroSplit:
    residue = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % 100
    return next(name for name, residues in SPLIT_SHARES.items() if residue in residues)


def split_random(split: MicroSplit, seed: str) -> random.Random:
    """Return a generator of random numbers. Raise ``ValueError`` for an unknown split."""
    if split not in SPLIT_SHARES:
        raise ValueError(f"unknown split {split!r}: choose one of {', '.join(SPLIT_SHARES)}")
    return random.Random(seed)


Row = TypeVar("Row")
Item = TypeVar("Item")


def draw_distinct(
    split: MicroSplit, count: int, draw: Callable[[int], Item], identity: Callable[[Item], str]
) -> list[Item]:
    """Return items of a split with different identities. ``draw`` gets the number of the item."""
    items: dict[str, Item] = {}
    while len(items) < count:
        item = draw(len(items))
        if split_of_key(name := identity(item)) == split:
            items.setdefault(name, item)
    return list(items.values())


def draw(
    rows: Rows, split: Split, count: int, seed: int, after: Sequence[int] = ()
) -> list[QuestionRow]:
    """Return the first held-out rows, or a draw of training rows (see :func:`draws`)."""
    all_rows = rows.split(split)
    return all_rows[:count] if split == "heldout" else draws(all_rows, (*after, count), seed)[-1]


def draws(rows: Sequence[Row], counts: Sequence[int], seed: int) -> list[list[Row]]:
    """Return the rows of successive draws: one cursor over all rows, shuffled by ``seed``.

    Rows are shuffled again after all have been drawn. A draw across two shuffles contains no row twice, so it has at
    most ``len(rows)`` rows; its rows move to the end of the new order.
    """
    remaining: list[int] = []
    epochs, result = 0, []
    for count in counts:
        indices = remaining[:count]
        remaining = remaining[len(indices) :]
        more = min(count, len(rows)) - len(indices)
        if more > 0:
            fresh = list(range(len(rows)))
            random.Random(f"order/{seed}/{epochs}").shuffle(fresh)
            epochs += 1
            present = set(indices)
            remaining = sorted(fresh, key=present.__contains__)
            indices, remaining = indices + remaining[:more], remaining[more:]
        result.append([rows[index] for index in indices])
    return result
