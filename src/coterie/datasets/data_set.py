"""What the catalogue says of a data set: where it is, how it is divided, how its rows are read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coterie.datasets.rows import LeftOut, QuestionRow
from coterie.progress import Progress

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")


@dataclass(frozen=True, slots=True)
class UpstreamSplit:
    """One split as upstream has it."""

    name: str
    """Its name on the hub."""
    rows: int
    """How many rows upstream says that it has."""
    first: int | None = None
    """How many of them are the split, from the first on; all if ``None``."""


@dataclass(frozen=True, slots=True)
class Repository:
    """What is taken of one repository of the Hugging Face hub."""

    name: str
    revision: str
    """The commit that is taken; ``main`` where none is pinned."""
    train: tuple[str, ...]
    """Its files of the training split."""
    heldout: tuple[str, ...] = ()
    """Its files of the held-out split."""

    @property
    def files(self) -> tuple[str, ...]:
        """All that is taken."""
        return self.train + self.heldout


Join = Callable[[Sequence[Path], Progress], Iterator[QuestionRow | LeftOut]]
"""Makes rows of several files that belong together; raises ``UserError`` for files that do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSet:
    """Where a set comes from, and what may be done with it."""

    name: str
    what: str
    """One line for a table."""
    repos: tuple[Repository, ...]
    """Empty where upstream's files are not on the hub, or no file's name was known when this was written."""
    licence: str
    licence_url: str
    citation: str

    @property
    def origin(self) -> str:
        """Where upstream's files are, for people and manifests."""
        return (
            "; ".join(
                f"https://huggingface.co/datasets/{one.name}, revision {one.revision}"
                for one in self.repos
            )
            or self.licence_url
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet(UpstreamSet):
    """One data set of tasks."""

    row: type[QuestionRow]
    train: UpstreamSplit | None
    """``None`` of a set that is for evaluation alone."""
    heldout: UpstreamSplit | None = None
    """``None`` if upstream holds nothing out: then a share of the training split is."""
    packaged: bool = True
    """Whether sample rows of it come with coterie."""
    share: float = 0.1
    """That share, unless another one is asked for."""
    without: str | None = None
    """The data set whose questions are taken out of this one's training rows."""
    join: Join | None = None
    """How rows are made of several files; ``None`` if each file has whole rows."""

    @property
    def splits(self) -> tuple[Split, ...]:
        """Those that its rows are in."""
        return SPLITS if self.train is not None else ("heldout",)

    def upstream(self, split: Split) -> UpstreamSplit | None:
        """The split of upstream that serves as ``split``; ``None`` if there is none."""
        return self.train if split == "train" else self.heldout

    def first(self, split: Split) -> int | None:
        """How many of upstream's rows are the split, from the first on; all if ``None``."""
        found = self.upstream(split)
        return found.first if found else None


def shards(path: str, count: int = 1) -> tuple[str, ...]:
    """The hub's names of a split's files: ``CN/train`` as ``CN/train-00000-of-00001.parquet``."""
    return tuple(f"{path}-{index:05d}-of-{count:05d}.parquet" for index in range(count))
