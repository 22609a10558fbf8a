"""Which split the rows of upstream's files are in: by the names of the files, by a draw, or held out, all of them."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.datasets.data_set import SPLITS, DataSet, Split
from coterie.datasets.prepared import MANIFEST
from coterie.datasets.reading import SUFFIXES
from coterie.errors import UserError

WORDS: Mapping[Split, frozenset[str]] = {
    "train": frozenset({"train"}),
    "heldout": frozenset({"heldout", "validation", "valid", "dev", "test"}),
}
"""Words of a file's name that tell its split."""
Files = list[tuple[Split | None, Path]]
"""Files with their splits; ``None``: each row's split is drawn."""


@dataclass(frozen=True, slots=True)
class Division:
    """The files, and how their rows are divided."""

    files: Files
    rule: str
    """In words, for the manifest."""
    share: float = 0.0
    """How much is held out of rows whose split is drawn."""
    seed: int = 0

    def drawn(self, key: str) -> Split:
        """A split drawn by the question alone, so that it does not depend on what else is there."""
        draw = int.from_bytes(hashlib.sha256(f"{self.seed} {key}".encode()).digest()[:8])
        return "heldout" if draw < self.share * 2**64 else "train"


def division(
    data_set: DataSet, files: Sequence[Path], heldout: float | None, seed: int
) -> Division:
    """How these files of a set are divided; ``heldout`` is the share that was asked for.

    Raises ``UserError`` if their names do not tell it, or it can't be done.
    """
    if data_set.train is None:
        if heldout is not None:
            raise UserError(
                f"{data_set.name} is for evaluation alone: all its rows are held out",
                "leave out --heldout",
            )
        every: Files = [("heldout", file) for file in files]
        return Division(every, "all rows are held out: the set is for evaluation alone")
    if heldout is None and data_set.heldout is not None:
        names = f"{data_set.train.name} is train, {data_set.heldout.name} is held out"
        return Division(_by_name(files), f"upstream's: {names}")
    share = data_set.share if heldout is None else heldout
    rule = f"a question is held out if its hash with seed {seed} falls into the lowest {share:g}"
    return Division(_by_share(files, share), rule, share, seed)


def source_files(sources: Sequence[Path]) -> Iterator[Path]:
    """The files that are given, and those in folders that are; ``UserError`` if one isn't there."""
    for source in sources:
        if source.is_dir():
            inside = _data(source.iterdir()) or _data(source.rglob("*"))
            if not inside:
                raise UserError(f"{source} has no {', '.join(SUFFIXES)} file", "check the path")
            yield from inside
        elif source.is_file():
            yield source
        else:
            raise UserError(f"there is no file or folder {source}", "check the path")


def _data(files: Iterable[Path]) -> list[Path]:
    return sorted(file for file in files if file.suffix in SUFFIXES and file.name != MANIFEST)


def split_of(file: Path) -> Split | None:
    """The split that a file's name tells; ``None`` if it tells none, or both."""
    words = set(re.split(r"[^a-z]+", file.stem.lower()))
    told = [split for split in SPLITS if words & WORDS[split]]
    return told[0] if len(told) == 1 else None


def _by_name(files: Iterable[Path]) -> Files:
    """Files with the split that their names tell, held-out ones first."""
    plan = [(split_of(file), file) for file in files]
    share = "; rows of one split are divided by a share, such as --heldout 0.2"
    for split, file in plan:
        if split is None:
            raise UserError(
                f"the name of {file} tells no split",
                "put train, or one of dev, test, validation, heldout, into its name" + share,
            )
    for wanted in SPLITS:
        if wanted not in {split for split, _ in plan}:
            words = ", ".join(sorted(WORDS[wanted]))
            raise UserError(f"no file of the {wanted} split ({words})", "give one" + share)
    return sorted(plan, key=lambda item: item[0] == "train")


def _by_share(files: Sequence[Path], share: float) -> Files:
    """Files of one split, whose rows are divided."""
    if not 0 < share < 1:
        raise UserError(
            f"--heldout {share:g} is not a share", "give a number between 0 and 1, such as 0.2"
        )
    if len({split_of(file) for file in files}) > 1:
        raise UserError(
            "these files are of several splits, and --heldout divides the rows of one",
            "leave --heldout out, or give files of one split",
        )
    return [(None, file) for file in files]
