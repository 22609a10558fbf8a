"""Data sets by name: those of the catalogue, those of anybody's files, and plug-ins."""

import hashlib
from collections.abc import Iterable
from typing import Protocol

from coterie.config.construct import construct, settings_type_of
from coterie.config.plugins import Found, Kind, find, guarded, label
from coterie.datasets.catalogue import CATALOGUE, SPLITS, Split
from coterie.datasets.local import check_disjoint_rows
from coterie.datasets.rows import QuestionRow
from coterie.datasets.settings import DatasetSettings
from coterie.errors import UserError

DATASETS = Kind(
    "dataset",
    {
        **dict.fromkeys(CATALOGUE, "coterie.datasets.catalogued:CatalogueSet"),
        "qa": "coterie.datasets.qa:QuestionsAndAnswers",
        "mind2web": "coterie.datasets.mind2web:Mind2Web",
    },
)


class RowSet(Protocol):
    """What the class of a data set is. It is made with its settings, if it names a ``settings_type``.

    ``environment``, which it may have, names the environment in which its rows are played, by default ``debate``;
    ``splits`` names the splits that it has, by default both: ``("heldout",)`` of a set that is for evaluation alone.
    """

    row: type[QuestionRow]
    """The type of its rows: :class:`QuestionRow`, or a subclass."""

    def rows(self, split: Split) -> Iterable[QuestionRow]:
        """All rows of a split, always in the same order."""
        ...


class Rows:
    """A data set, and its rows once they have been asked for."""

    def __init__(self, settings: DatasetSettings) -> None:
        assert settings.name is not None, "a data set has a name"
        self.name = label(settings.name)
        self._found = find(DATASETS, settings.name)
        self._set: RowSet = construct(self._found, DatasetSettings, settings)
        self.row = row_type(settings.name)
        self.splits: tuple[Split, ...] = getattr(self._set, "splits", SPLITS)
        self._splits: dict[Split, list[QuestionRow]] | None = None

    def split(self, split: Split) -> list[QuestionRow]:
        """The rows of a split. Raises ``UserError`` for missing or broken data, and for rows of both splits."""
        if self._splits is None:
            found = {one: self._rows(one) for one in self.splits}
            if len(found) == len(SPLITS):
                check_disjoint_rows(self.name, found)
            self._splits = found
        if split not in self._splits:
            raise UserError(
                f"{self.name} is for evaluation alone: it has no rows to train on",
                "train on another data set",
            )
        return self._splits[split]

    def has(self, split: Split) -> bool:
        """Whether there are rows of a split."""
        return split in self.splits

    def content(self) -> str:
        """A hash of what its rows are, wherever they lie."""
        if hasattr(self._set, "content"):
            return str(self._set.content())
        lines = (row.model_dump_json() for split in self.splits for row in self.split(split))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def _rows(self, split: Split) -> list[QuestionRow]:
        rows = guarded(f"{self._found} failed", lambda: list(self._set.rows(split)))
        if not rows:
            raise UserError(f"{self._found} has no {split} rows", "give it some")
        for place, row in enumerate(rows, 1):
            if not isinstance(row, self.row):
                raise UserError(
                    f"{self._found} has a {type(row).__name__} as row {place} of {split}, not a "
                    f"{self.row.__name__}",
                    "give rows of the type that the set names as `row`",
                )
        return rows


def lacking(found: Found, name: str, write: str) -> UserError:
    """The error about a plug-in that lacks something."""
    return UserError(f"{found} has no {name}", f"add {write}")


def row_type(name: str) -> type[QuestionRow]:
    """The type of a data set's rows. Raises ``UserError`` for a plug-in that names none."""
    if name in CATALOGUE:
        return CATALOGUE[name].row
    found = find(DATASETS, name)
    row = getattr(found.thing, "row", None)
    if not (isinstance(row, type) and issubclass(row, QuestionRow)):
        raise lacking(found, "type of rows", "row = QuestionRow, or a subclass of it")
    return row


def dataset_type(name: str) -> type[DatasetSettings]:
    """The settings of a data set. Raises ``UserError`` if there is none of that name, or it is not one."""
    found = find(DATASETS, name)
    if not callable(getattr(found.thing, "rows", None)):
        raise lacking(found, "method rows", "def rows(self, split), which gives rows of a split")
    return settings_type_of(found, DatasetSettings)


def environment_of(name: str) -> str:
    """The environment in which a plug-in's rows are played."""
    return str(getattr(find(DATASETS, name).thing, "environment", "debate"))
