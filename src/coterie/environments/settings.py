"""Settings of environments, splits of micro-worlds, and which rows of a data set become tasks."""

import hashlib
import random
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, partial, wraps
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import ClassVar, Generic, Literal, ParamSpec, TypeVar

from coterie.config.settings import Settings, key
from coterie.datasets.catalogue import Split
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.environments.qa_metrics import secret_answers
from coterie.errors import UserError
from coterie.record.tree import Task
from coterie.record.turn import digest

Method = Literal[
    "dialogue", "cot", "cot_sc", "mad", "autoform", "react", "reflexion", "code_as_policy"
]
"""Method of an evaluation: an environment's own, or one of ``environments.baselines``."""


class EnvironmentSettings(Settings):
    """Base class of environment settings. An environment with more keys sets ``settings_type`` to a subclass."""

    main: ClassVar[str] = "name"

    name: str | None = key(
        None,
        "The environment: `exchange`, `persona`, `pages`, `problems`, `sums`, `question`, `program`, `external`, "
        "`debate`, `information_exchange`, `backend_programming`, `frontend_design`, `plan_ground`, `shop`, "
        "`python_maths`, `babyai`, `textworld`, `alfworld`, `agentgym`, `pddl`, `encyclopedia`, `mhqa`, `web`, `code`, "
        "`code_maths`, `reasoning_gym`, `openenv`, `verifiers`, `nemo_gym`, or your own "
        "(package.module:NAME, path/file.py:NAME). The default depends on the data set.",
    )

    def identity(self) -> str:
        """Hash of all values but the name."""
        return digest(self.model_dump_json(exclude={"name"}))


class PersonSettings(EnvironmentSettings):
    """Base class of the settings of environments in which a simulated user knows a secret."""

    on_leak: Literal["keep", "fail", "drop"] = key(
        "keep",
        "Handling of dialogues in which the user quotes a secret: `keep` counts them (`leaks`), `fail` scores them 0, "
        "`drop` gives them no score, so that they are not trained on.",
    )


_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


def fill_template(template: str, value: Callable[[str], str]) -> str:
    """Replace each ``{NAME}`` by ``value(NAME)``. ``{{`` and ``}}`` become braces; ``{}`` stays as it is."""

    def text(match: re.Match[str]) -> str:
        name = match[1] and match[1].strip()
        if not name:  # an escaped brace, or the empty braces of \boxed{}
            return match[0][0] if match[1] is None else match[0]
        return value(name)

    return _FIELD.sub(text, template)


def template_names(template: str) -> list[str]:
    """Return the names that :func:`fill_template` replaces."""
    names = ((match[1] or "").strip() for match in _FIELD.finditer(template))
    return [name for name in names if name]


def package_version(environment: str, package: str) -> str:
    """Return the version of an installed package. Raises ``UserError`` if it is missing; its extra has its name."""
    try:
        return version(package)
    except PackageNotFoundError as error:
        problem = f"environment={environment} needs the package {package}"
        raise UserError(problem, f"pip install -e '.[{package}]'") from error


class RowTasks:
    """Tasks of an environment whose data set has one task in each row."""

    name: str
    rows: Rows

    def task_of(self, row: QuestionRow) -> Task:
        return Task(f"{self.name}-{row.id}", {"question": row.question}, secret_answers(row))

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        return [self.task_of(row) for row in draw(self.rows, split, count, seed, previous_counts)]


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
    # A hash gives an item the same split in every run, whatever the seed.
    residue = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % 100
    return next(name for name, residues in SPLIT_SHARES.items() if residue in residues)


def split_random(split: MicroSplit, seed: str) -> random.Random:
    """Return a generator of random numbers. Raise ``ValueError`` for an unknown split."""
    if split not in SPLIT_SHARES:
        raise ValueError(f"unknown split {split!r}: choose one of {', '.join(SPLIT_SHARES)}")
    return random.Random(seed)


MISSES = 40
"""Draws without a new item, for each item so far, after which a micro-world has no more."""
Row = TypeVar("Row")
Item = TypeVar("Item")
P = ParamSpec("P")


class Series(Generic[Item]):
    """Items of an iterator, kept so that each is generated once, when a slice needs it."""

    def __init__(self, begin: Callable[[], Iterator[Item]]) -> None:
        self._begin = begin
        self._items, self._more = list[Item](), begin()

    def __getitem__(self, indices: slice) -> list[Item]:
        try:
            self._items += islice(self._more, max(0, indices.stop - len(self._items)))
        except BaseException:  # Ctrl-C ends the iterator
            self._items, self._more = [], self._begin()
            raise
        return self._items[indices]

    def draw(
        self, split: str, count: int, previous_counts: Sequence[int]
    ) -> list[tuple[int, Item]]:
        """Return items with their numbers: the first held-out ones, or training items after earlier draws."""
        start = sum(previous_counts) if split == "train" else 0
        return list(enumerate(self[start : start + count], start))


def series(generate: Callable[P, Iterator[Item]]) -> Callable[P, Series[Item]]:
    """Make a function that returns an iterator return a :class:`Series`, the same one for equal arguments."""

    @cache
    @wraps(generate)
    def keep(*args: P.args, **options: P.kwargs) -> Series[Item]:
        return Series(partial(generate, *args, **options))

    return keep  # type: ignore[return-value]  # arguments are hashable


def distinct(
    split: MicroSplit,
    draw: Callable[[int], Item | None],
    identity: Callable[[Item], Hashable],
    key: Callable[[Item], str] | None = None,
) -> Iterator[Item]:
    """Yield items with different identities. Raises ``UserError`` when there are no more.

    ``draw`` gets the number of the item, and may return ``None``. ``key`` decides the split if ``draw`` does not.
    """
    identities, misses = set[Hashable](), 0
    # New items become rarer as more of them are known, so more misses are allowed.
    while misses < 10_000 + MISSES * len(identities):
        item, misses = draw(len(identities)), misses + 1
        if item is None or (key and split_of_key(key(item)) != split):
            continue
        if (name := identity(item)) not in identities:
            misses = 0
            identities.add(name)
            yield item
    n, split_word = (
        f"{len(identities):,}",
        {"train": "training", "heldout": "held-out"}.get(split, split),
    )
    raise UserError(f"this micro-world has only {n} {split_word} tasks", f"use at most {n}")


@series
def game_seeds(game: str, split: MicroSplit, seed: int) -> Iterator[int]:
    """Yield the seeds of a game's tasks. Splits share none, since a hash of the seed decides its split."""
    # Both the identity of a seed and the key that decides its split are its digits.
    rng = split_random(split, f"{game}/{split}/{seed}")
    return distinct(split, lambda _: rng.randrange(2**31), str, str)


def draw(
    rows: Rows, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
) -> list[QuestionRow]:
    """Return the first held-out rows, or a draw of training rows (see :func:`last_draw`)."""
    return draw_rows(rows.split(split), split, count, seed, previous_counts)


def draw_rows(
    rows: Sequence[Row], split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
) -> list[Row]:
    """Return the first of the held-out rows ``rows``, or a draw of training rows (see :func:`last_draw`)."""
    return (
        [*rows[:count]] if split == "heldout" else last_draw(rows, (*previous_counts, count), seed)
    )


def last_draw(rows: Sequence[Row], counts: Sequence[int], seed: int) -> list[Row]:
    """Return the rows of the last of successive draws: one cursor over all rows, shuffled by ``seed``.

    Rows are shuffled again after all have been drawn. A draw across two shuffles contains no row twice, so it has at
    most ``len(rows)`` rows; its rows move to the end of the new order.
    """
    order: list[int] = []
    start = stop = epochs = 0
    for count in counts:
        start, stop = stop, stop + min(count, len(rows))
        # The order is used up: take the remaining rows, then continue with a new shuffle.
        if stop > len(order):
            rest, fresh = order[start:], list(range(len(rows)))
            random.Random(f"order/{seed}/{epochs}").shuffle(fresh)
            # Rows that this draw already has move to the end, so that it has no row twice.
            order = rest + sorted(fresh, key=set(rest).__contains__)
            start, stop, epochs = 0, stop - start, epochs + 1
    return [rows[index] for index in order[start:stop]]
