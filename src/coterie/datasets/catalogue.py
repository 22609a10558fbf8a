"""Catalogue of data sets: where each lies on the Hugging Face hub, and the type that converts its rows.

To add a set, write the type of its rows in this package, and an entry in ``assets/data/catalogue.yaml``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Literal

import yaml

from coterie.errors import UserError, did_you_mean

Split = Literal["train", "heldout"]
"""Rows to train on, or rows to evaluate on."""
SPLITS: tuple[Split, ...] = ("train", "heldout")
# Branch of the repositories whose entry pins no revision, so that their rows may change.
NEWEST = "main"
FOLDER = Path(str(files("coterie") / "assets" / "data"))
"""Folder of the catalogue and of the packaged rows."""


@dataclass(frozen=True, slots=True)
class Repository:
    """Files of one data repository of the Hugging Face hub."""

    name: str
    revision: str
    train: tuple[str, ...] = ()
    heldout: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DataSet:
    """Entry of the catalogue; ``catalogue.yaml`` describes the fields."""

    name: str
    what: str
    licence: str
    row_name: str
    train: int | None = None
    heldout: int | None = None
    repos: tuple[Repository, ...] = ()
    packaged: bool = True
    first: int | None = None
    each: int | None = None
    without: str | None = None
    join_name: str = ""
    url: str = ""

    @property
    def splits(self) -> tuple[Split, ...]:
        return SPLITS if self.train is not None else ("heldout",)

    @property
    def row(self) -> Any:
        """Class of the rows; for a preference set, a function from a raw row to its pairs."""
        # The class is imported on use, because some modules of rows import this one.
        return resolve_name(f"coterie.{self.row_name}")

    @property
    def join(self) -> Callable[..., Any] | None:
        """Function that joins several files into rows; ``None`` if each file has complete rows."""
        return resolve_name(f"coterie.datasets.{self.join_name}") if self.join_name else None


def _data_set(name: str, entry: dict[str, Any], package: str = "datasets") -> DataSet:
    repos = tuple(map(_repository, entry.pop("repos", ())))
    row, join = f"{package}.{entry.pop('row')}", entry.pop("join", "")
    return DataSet(name, repos=repos, row_name=row, join_name=join, **entry)


def _repository(entry: Mapping[str, Any]) -> Repository:
    name, _, revision = entry["name"].partition("@")
    splits = {split: tuple(_shards(entry.get(split, ()))) for split in SPLITS}
    return Repository(name, revision or NEWEST, **splits)


def _shards(names: Iterable[str]) -> Iterable[str]:
    # The hub's name of a shard has its number and the count: `test:2` is
    # `test-00000-of-00002.parquet` and `test-00001-of-00002.parquet`.
    for name in names:
        path, _, count = name.partition(":")
        for index in range(int(count or 0)):
            yield f"{path}-{index:05d}-of-{int(count):05d}.parquet"
        if not count:
            yield name


# The loader in C is much faster, and the table is read whenever this module is imported.
_TABLE = yaml.load(
    (FOLDER / "catalogue.yaml").read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
# Each entry is copied, because its keys are popped during the conversion.
CATALOGUE: Mapping[str, DataSet] = MappingProxyType(
    {name: _data_set(name, {**entry}) for name, entry in _TABLE["tasks"].items()}
)
PREFERENCE_SETS: Mapping[str, DataSet] = MappingProxyType(
    {name: _data_set(name, {**entry}) for name, entry in _TABLE["preferences"].items()}
)
"""Sets of preferences, whose pairs are all for training."""
TRAJECTORIES: Mapping[str, DataSet] = MappingProxyType(
    {name: _data_set(name, {**entry}, "recipes") for name, entry in _TABLE["trajectories"].items()}
)
"""Trajectories of other agents in one file each, which recipes read."""


def find(name: str) -> DataSet:
    if name not in CATALOGUE:
        fix = f"{did_you_mean(name, CATALOGUE)}known sets: {', '.join(CATALOGUE)} (`coterie data list`)"
        raise UserError(f"there is no data set {name!r}", fix)
    return CATALOGUE[name]
