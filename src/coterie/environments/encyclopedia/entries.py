"""Random entries of an invented encyclopedia: people, towns and firms.

A hash of an entity's name decides its split, and facts relate only entities of the same split. So all facts and entries
that an answer depends on belong to the split of its question. The splits share words of names, and the search covers
one encyclopedia with the entries of all splits.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from types import MappingProxyType

from coterie.datasets.load import write_passages
from coterie.environments.encyclopedia.lexicon import BY_NAME, NAMES, OF_KIND, VALUES, Kind
from coterie.environments.micro_splits import SPLIT_SHARES, MicroSplit, split_of_key

ENTRIES: Mapping[Kind, int] = MappingProxyType({"person": 2600, "town": 400, "firm": 400})
"""Number of entities of each kind in an encyclopedia."""
SPLITS: tuple[MicroSplit, ...] = tuple(SPLIT_SHARES)
ByKind = Mapping[tuple[MicroSplit, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about an entity."""

    subject: str
    relation: str
    """Name of a ``lexicon.Relation``."""
    value: str

    @property
    def text(self) -> str:
        return BY_NAME[self.relation].sentence.format(s=self.subject, v=self.value)

    @property
    def query(self) -> str:
        return BY_NAME[self.relation].query.format(s=self.subject)


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry of an entity."""

    name: str
    kind: Kind
    facts: tuple[Fact, ...]

    @property
    def split(self) -> MicroSplit:
        return split_of_key(self.name)

    @property
    def text(self) -> str:
        return " ".join(fact.text for fact in self.facts)


@dataclass(frozen=True)
class Encyclopedia:
    """All entries, in the order of the search index."""

    entries: tuple[Entry, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Entry]:
        return {one.name: one for one in self.entries}

    def fact(self, subject: str, relation: str) -> Fact:
        return next(fact for fact in self.by_name[subject].facts if fact.relation == relation)

    @cached_property
    def names(self) -> ByKind:
        """Names of entities by split and kind."""
        return _by_split((one.name, one.kind) for one in self.entries)

    def passages(self) -> Iterator[tuple[str, str]]:
        """Yield the title and text of each entry."""
        for one in self.entries:
            yield one.name, one.text

    def write(self, file: Path) -> int:
        """Write a new JSONL file for ``coterie data index``. Return the number of passages."""
        return write_passages(self.passages(), file)


def make_encyclopedia(
    seed: int, counts: Mapping[Kind, int] = ENTRIES, splits: Sequence[MicroSplit] = SPLITS
) -> Encyclopedia:
    rng = random.Random(f"encyclopedia/{seed}/{sorted(counts.items())}/{sorted(splits)}")
    names = [(name, kind) for kind in NAMES for name in _names(kind, counts[kind], splits, rng)]
    groups = _by_split(names)
    entries = [Entry(name, kind, _facts(name, kind, groups, rng)) for name, kind in names]
    rng.shuffle(entries)
    return Encyclopedia(tuple(entries))


def _by_split(names: Iterable[tuple[str, Kind]]) -> ByKind:
    groups: dict[tuple[MicroSplit, str], list[str]] = {key: [] for key in product(SPLITS, NAMES)}
    for name, kind in names:
        groups[split_of_key(name), kind].append(name)
    return {key: tuple(row) for key, row in groups.items()}


def _names(
    kind: Kind, count: int, splits: Sequence[MicroSplit], rng: random.Random
) -> tuple[str, ...]:
    every = [" ".join(pair) for pair in product(*NAMES[kind])]
    return tuple(rng.sample([name for name in every if split_of_key(name) in splits], count))


def _facts(name: str, kind: Kind, names: ByKind, rng: random.Random) -> tuple[Fact, ...]:
    split = split_of_key(name)
    return tuple(
        Fact(name, one.name, rng.choice(VALUES.get(one.to) or names[split, one.to]))
        for one in OF_KIND[kind]
    )
