"""Loading rows: of the packaged sample, of a prepared set, or of any file in a known format."""

from importlib.resources import files
from pathlib import Path

from coterie.datasets.catalogue import DataSet, Split, find
from coterie.datasets.prepared import MANIFEST, folder_of, is_unchanged, read_manifest, split_file
from coterie.datasets.reading import SUFFIXES, read_rows
from coterie.datasets.rows import QuestionRow
from coterie.errors import UserError
from coterie.progress import Silent

SAMPLE = "sample"
PREPARED = "prepared"


def load_rows(name: str, split: Split, source: str | Path = PREPARED) -> list[QuestionRow]:
    """The rows of one split of a data set, in file order, each of the set's type of row.

    ``source`` is ``sample`` (at most 100 rows that come with coterie), ``prepared`` (what ``coterie
    data download`` or ``prepare`` made), a folder with ``train.jsonl`` and ``heldout.jsonl``, or one
    file, whose rows are given for either split. Raises ``UserError`` for an unknown set, missing
    data, a file that has changed since it was prepared, and a broken row (by file and line).
    """
    data_set = find(name)
    file = _file(data_set, split, source)
    if not file.is_file():
        raise UserError(f"there is no file {file}", _how(data_set))
    if (file.parent / MANIFEST).is_file() and file == split_file(file.parent, split):
        _check_unchanged(file.parent, split)
    return list(read_rows(file, data_set.row, Silent()))


def sample_folder(data_set: DataSet) -> Path:
    """The packaged sample of a set."""
    return Path(str(files("coterie") / "assets" / "data" / data_set.name))


def sample_rows(data_set: DataSet, split: Split) -> int:
    """How many rows of a split are in the packaged sample."""
    file = split_file(sample_folder(data_set), split)
    return len(file.read_bytes().splitlines()) if file.is_file() else 0


def _file(data_set: DataSet, split: Split, source: str | Path) -> Path:
    if source == SAMPLE:
        return split_file(sample_folder(data_set), split)
    if source == PREPARED:
        folder = folder_of(data_set)
        if not (folder / MANIFEST).is_file():
            raise UserError(f"{data_set.name} is not prepared on this machine", _how(data_set))
        return split_file(folder, split)
    path = Path(source).expanduser()
    return split_file(path, split) if path.is_dir() else path


def _how(data_set: DataSet) -> str:
    folder = folder_of(data_set)
    return (
        f"`coterie data download {data_set.name}`, or `coterie data prepare {data_set.name} --from "
        f"FILE...` with upstream's files ({', '.join(SUFFIXES)}); either makes {folder}/train.jsonl "
        "and heldout.jsonl"
    )


def _check_unchanged(folder: Path, split: Split) -> None:
    if not is_unchanged(folder, read_manifest(folder), [split]):
        raise UserError(
            f"{split_file(folder, split)} has changed since it was prepared (its checksum is not the "
            "manifest's)",
            f"prepare the set again, or remove {folder / MANIFEST} if the change is meant",
        )
