"""Data sets in canonical form: ``train.jsonl``, ``heldout.jsonl`` and ``manifest.json`` in one folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from coterie.config.folders import reason_of
from coterie.config.home import home, sha256
from coterie.config.plain import wrong_at
from coterie.datasets.data_set import SPLITS, Split, UpstreamSet
from coterie.errors import UserError

MANIFEST = "manifest.json"


class PreparedSplit(BaseModel):
    """What is known of one file of a prepared set."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    dropped: int
    """Rows of the source that are not in it: repeated, held out, left out, or not to be asked."""
    sha256: str


class Manifest(BaseModel):
    """What a prepared set is, where it comes from, and the checksums of its files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    licence: str
    licence_url: str
    citation: str
    source: str
    split: str
    """The rule by which rows are held out."""
    prepared: str
    """UTC date."""
    train: PreparedSplit | None = None
    """``None`` of a set that is for evaluation alone."""
    heldout: PreparedSplit | None = None
    """``None`` of preferences: they are only trained on."""
    reasons: Mapping[str, int] = {}
    """Of how many of the dropped rows each reason is told first."""
    lacks: Mapping[str, int] = {}
    """Of how many of the kept rows something can't be read, and what."""

    @property
    def splits(self) -> Mapping[Split, PreparedSplit]:
        """What is known of each split that there is."""
        told: tuple[tuple[Split, PreparedSplit | None], ...] = (
            ("train", self.train),
            ("heldout", self.heldout),
        )
        return {split: known for split, known in told if known is not None}


def folder_of(data_set: UpstreamSet) -> Path:
    """Where the prepared form of a set belongs."""
    return home() / "data" / data_set.name


def split_file(folder: Path, split: Split) -> Path:
    """The file of one split in a prepared folder."""
    return folder / f"{split}.jsonl"


def is_prepared(data_set: UpstreamSet) -> bool:
    """Whether the prepared form of a set is where it belongs."""
    return (folder_of(data_set) / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder; ``UserError`` if it is broken."""
    file = folder / MANIFEST
    try:
        return Manifest.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else wrong_at(error.errors()[0])
        raise UserError(f"{file} can't be read: {reason}", "prepare the set again") from error


def is_unchanged(folder: Path, manifest: Manifest, splits: Sequence[Split] = SPLITS) -> bool:
    """Whether the files of these splits, as far as the set has them, are there and as the manifest says."""
    files = {split: split_file(folder, split) for split in manifest.splits if split in splits}
    return all(
        file.is_file() and sha256(file) == manifest.splits[split].sha256
        for split, file in files.items()
    )
