"""Loading rows: of the packaged sample, of a prepared set, or of any file in a known format."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from coterie.config.folders import expanded
from coterie.config.home import sha256
from coterie.datasets.catalogue import SPLITS, DataSet, Split, find
from coterie.datasets.prepared import (
    MANIFEST,
    folder_of,
    is_prepared,
    is_unchanged,
    read_manifest,
    split_file,
)
from coterie.datasets.reading import SUFFIXES, read_rows
from coterie.datasets.rows import QuestionRow
from coterie.errors import UserError
from coterie.progress import Silent

SAMPLE = "sample"
PREPARED = "prepared"


def load_rows(name: str, split: Split, source: str | Path = PREPARED) -> list[QuestionRow]:
    """The rows of one split of a data set, in file order, each of the set's type of row.

    ``source`` is ``sample`` (at most 100 rows that come with coterie), the name of another packaged
    source (of ``colbench_code``: ``synthetic``, ``easy``), ``prepared`` (what ``coterie
    data download`` or ``prepare`` made), a folder with ``train.jsonl`` and ``heldout.jsonl``, or one
    file, whose rows are given for either split. Rows that can't be asked are passed over. Raises
    ``UserError`` for an unknown set, missing data, a file that has changed since it was prepared,
    and a broken row (by file and line).
    """
    file = rows_file(name, split, source)
    rows = [row for row in read_rows(file, find(name).row, Silent()) if row.usable]
    if not rows:
        raise UserError(f"no row of {file} can be used", f"`coterie data prepare {name}` says why")
    return rows


def rows_file(name: str, split: Split, source: str | Path = PREPARED) -> Path:
    """The file that :func:`load_rows` reads; raises ``UserError`` as it does, but for broken rows."""
    data_set = find(name)
    if split not in data_set.splits:
        raise UserError(
            f"{name} is for evaluation alone: it has no rows to train on",
            "train on another set",
        )
    file = _file(data_set, split, source)
    if not file.is_file():
        raise UserError(f"there is no file {file}", _how(data_set))
    if (file.parent / MANIFEST).is_file() and file == split_file(file.parent, split):
        _check_unchanged(file.parent, split)
    return file


def check_two_files(name: str, source: str | Path) -> None:
    """Refuse (``UserError``) one file where training and held-out rows must differ."""
    if find(name).train is not None and expanded(source).is_file():
        raise UserError(
            f"{source} is one file, and training and held-out rows must differ",
            "give a folder with train.jsonl and heldout.jsonl, or divide the file by `coterie data "
            f"prepare {name} --from {source} --heldout 0.3`",
        )


def check_disjoint_rows(name: str, splits: Mapping[Split, Sequence[QuestionRow]]) -> None:
    """Refuse (``UserError``) a question that is in both splits."""
    train, heldout = splits["train"], splits["heldout"]
    if common := {row.key for row in train} & {row.key for row in heldout}:
        example = next(row.question for row in heldout if row.key in common)
        raise UserError(
            f"{len(common)} questions of {name} are both training and held-out rows, "
            f"such as {example!r}",
            "take them out of one of the files: a score on trained questions says nothing",
        )


def checksum(name: str, source: str | Path = PREPARED) -> str:
    """SHA-256 of a set's two files, one after the other."""
    files = [_file(find(name), split, source) for split in SPLITS]
    return " ".join(sha256(file) if file.is_file() else "missing" for file in files)


def sample_folder(data_set: DataSet) -> Path:
    """The packaged sample of a set."""
    return Path(str(files("coterie") / "assets" / "data" / data_set.name))


def sample_rows(data_set: DataSet, split: Split) -> int:
    """How many rows of a split are in the packaged sample."""
    file = split_file(sample_folder(data_set), split)
    return len(file.read_bytes().splitlines()) if file.is_file() else 0


def _file(data_set: DataSet, split: Split, source: str | Path) -> Path:
    if source == SAMPLE and not data_set.packaged:
        raise UserError(f"no rows of {data_set.name} come with coterie", _how(data_set))
    if source == SAMPLE:
        return split_file(sample_folder(data_set), split)
    if source == PREPARED:
        if not is_prepared(data_set):
            raise UserError(f"{data_set.name} is not prepared on this machine", _how(data_set))
        return split_file(folder_of(data_set), split)
    named = sample_folder(data_set) / source / f"{split}.jsonl.gz"
    if named.is_file():
        return named
    path = expanded(source)
    return split_file(path, split) if path.is_dir() else path


def _how(data_set: DataSet) -> str:
    folder = folder_of(data_set)
    files = " and ".join(split_file(folder, split).name for split in data_set.splits)
    download = f"`coterie data download {data_set.name}`, or " if data_set.repos else ""
    return (
        f"{download}`coterie data prepare {data_set.name} --from FILE...` with upstream's files "
        f"({', '.join(SUFFIXES)}){'; either' if download else ', which'} makes {folder}/{files}"
        + "; or dataset.source=sample, the rows that ship"
        * data_set.packaged
    )


def _check_unchanged(folder: Path, split: Split) -> None:
    if not is_unchanged(folder, read_manifest(folder), [split]):
        raise UserError(
            f"{split_file(folder, split)} has changed since it was prepared (its checksum is not the "
            "manifest's)",
            f"prepare the set again, or remove {folder / MANIFEST} if the change is meant",
        )
