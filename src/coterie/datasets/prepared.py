"""Data sets in canonical form: ``train.jsonl``, ``heldout.jsonl`` and ``manifest.json`` in one folder.

``prepare`` makes such a folder from upstream's files, whole or not at all. No question is in both
splits: repeated rows are dropped, and so are training rows whose question is held out or belongs to a
set that must be left out, and rows that can't be asked.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from coterie.config.folders import reason_of
from coterie.config.home import home, new_folder, sha256
from coterie.config.plain import wrong_at
from coterie.datasets.catalogue import SPLITS, DataSet, Split, find
from coterie.datasets.data_set import UpstreamSet
from coterie.datasets.reading import SUFFIXES, read_rows
from coterie.datasets.rows import LeftOut, QuestionRow, question_key
from coterie.errors import UserError
from coterie.progress import Progress, Silent

MANIFEST = "manifest.json"
_WORDS: Mapping[Split, frozenset[str]] = {
    "train": frozenset({"train"}),
    "heldout": frozenset({"heldout", "validation", "valid", "dev", "test"}),
}
"""Words of a file's name that tell its split."""


REPEATED = "is there before"
HELD_OUT = "is held out"
UNUSABLE = "can't be a task"

Examine = Callable[[Sequence[Path]], Mapping[Path, Collection[int]]]
"""Of files, the numbers of the rows (the first is 1) that nothing can be done with."""


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


def prepare(
    data_set: DataSet,
    sources: Sequence[Path],
    target: Path,
    progress: Progress,
    *,
    heldout: float | None = None,
    seed: int = 0,
    origin: str = "",
    examine: Examine | None = None,
) -> Manifest:
    """Write upstream's files (or folders of them) to ``target`` in canonical form.

    Which split a file belongs to is read from its name, as in ``train.jsonl`` or
    ``dev_distractor_v1.json``. With ``heldout``, a share in (0, 1), the files are rows of one split and
    that share of their questions is held out; where upstream holds nothing out, the set's own share is.
    Rows that ``examine`` names are left out. Raises ``UserError`` for a broken row (by file and line), for a
    split without rows, and if a set whose questions must be left out is not prepared.
    """
    files = list(source_files(sources))
    left_out = _left_out(data_set)
    if heldout is None and data_set.heldout is None:
        heldout = data_set.share
    plan: list[tuple[Split | None, Path]]
    if data_set.train is None:
        if heldout is not None:
            raise UserError(
                f"{data_set.name} is for evaluation alone: all its rows are held out",
                "leave out --heldout",
            )
        plan = [("heldout", file) for file in files]
        rule = "all rows are held out: the set is for evaluation alone"
    elif heldout is None:
        assert data_set.heldout is not None
        plan = _by_name(files)
        rule = f"upstream's: {data_set.train.name} is train, {data_set.heldout.name} is held out"
    else:
        plan = _by_share(files, heldout)
        rule = (
            f"a question is held out if its hash with seed {seed} falls into the lowest {heldout:g}"
        )
    for split in SPLITS:
        if (upstream := data_set.upstream(split)) is not None and upstream.first is not None:
            rule += f"; {upstream.name} is its first {upstream.first:,} rows"
    if data_set.without is not None:
        rule += f"; training questions that {data_set.without} has are left out"
    with new_folder(target) as folder:
        bad = examine(files) if examine is not None else {}
        rows = _assigned(data_set, plan, progress, heldout or 0.0, seed, bad)
        written, reasons, lacks = _write(rows, folder, left_out, data_set)
        manifest = Manifest(
            name=data_set.name,
            licence=data_set.licence,
            licence_url=data_set.licence_url,
            citation=data_set.citation,
            source=origin or ", ".join(file.name for file in files),
            split=rule,
            prepared=datetime.now(UTC).date().isoformat(),
            train=written.get("train"),
            heldout=written["heldout"],
            reasons=dict(reasons.most_common()),
            lacks=dict(lacks.most_common()),
        )
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")
    return manifest


def _left_out(data_set: DataSet) -> frozenset[str]:
    """Keys of the questions that a set's training rows must not have."""
    if data_set.without is None:
        return frozenset()
    other = find(data_set.without)
    if not is_prepared(other):
        raise UserError(
            f"training questions of {data_set.name} that {other.name} has are left out, and "
            f"{other.name} is not prepared on this machine",
            f"`coterie data download {other.name}`, or `coterie data prepare {other.name} --from "
            "FILE...`, and this again",
        )
    files = (split_file(folder_of(other), split) for split in SPLITS)
    rows = (row for file in files for row in read_rows(file, other.row, Silent()))
    return frozenset(question_key(row.question) for row in rows)


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
    told = [split for split in SPLITS if words & _WORDS[split]]
    return told[0] if len(told) == 1 else None


def _by_name(files: Iterable[Path]) -> list[tuple[Split | None, Path]]:
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
            words = ", ".join(sorted(_WORDS[wanted]))
            raise UserError(f"no file of the {wanted} split ({words})", "give one" + share)
    return sorted(plan, key=lambda item: item[0] == "train")


def _by_share(files: Sequence[Path], share: float) -> list[tuple[Split | None, Path]]:
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


@dataclass(frozen=True, slots=True)
class _Assigned:
    """What a source has, and what becomes of it."""

    split: Split
    row: QuestionRow | None
    flaw: str
    """Why it is left out; empty if it is not, as far as can be told from the row."""


def _assigned(
    data_set: DataSet,
    plan: Sequence[tuple[Split | None, Path]],
    progress: Progress,
    share: float,
    seed: int,
    bad: Mapping[Path, Collection[int]],
) -> Iterator[_Assigned]:
    """Each row with its split."""
    if data_set.join is not None:
        for joined in data_set.join([file for _, file in plan], progress):
            if isinstance(joined, LeftOut):
                yield _Assigned("train", None, joined.reason)
            else:
                yield _Assigned(_drawn(joined.key, share, seed), joined, joined.flaw)
        return
    taken = Counter[Split | None]()
    for split, file in plan:
        told = split or split_of(file)
        first = data_set.first(told) if told else None
        for number, row in enumerate(read_rows(file, data_set.row, progress), 1):
            if taken[told] == first:
                break
            taken[told] += 1
            flaw = row.flaw or (UNUSABLE if number in bad.get(file, ()) else "")
            yield _Assigned(split or _drawn(row.key, share, seed), row, flaw)


def _drawn(key: str, share: float, seed: int) -> Split:
    """A split drawn by the question alone, so that it does not depend on what else is there."""
    draw = int.from_bytes(hashlib.sha256(f"{seed} {key}".encode()).digest()[:8])
    return "heldout" if draw < share * 2**64 else "train"


def _write(
    rows: Iterable[_Assigned], folder: Path, left_out: frozenset[str], data_set: DataSet
) -> tuple[Mapping[Split, PreparedSplit], Counter[str], Counter[str]]:
    """Write the first row of each question; returns what is known of the files, why rows are in none of them, and what
    is lacking of those that are."""
    seen: dict[str, Split] = {}
    kept, dropped = (dict.fromkeys(data_set.splits, 0) for _ in range(2))
    reasons, lacks = Counter[str](), Counter[str]()
    with ExitStack() as stack:
        opened = {
            split: stack.enter_context(split_file(folder, split).open("w", encoding="utf-8"))
            for split in data_set.splits
        }
        for one in rows:
            reason = one.flaw
            if one.row is not None and not reason:
                known = one.split == "train" and question_key(one.row.question) in left_out
                reason = f"is a question of {data_set.without}" if known else ""
                if one.row.key in seen and not reason:
                    reason = REPEATED if seen[one.row.key] == one.split else HELD_OUT
            if one.row is None or reason:
                dropped[one.split] += 1
                reasons[reason] += 1
                continue
            seen[one.row.key] = one.split
            kept[one.split] += 1
            opened[one.split].write(one.row.model_dump_json() + "\n")
            lacks.update([one.row.lack] if one.row.lack else [])
    _check_kept(kept, dropped, reasons)
    return (
        {
            split: PreparedSplit(
                rows=kept[split], dropped=dropped[split], sha256=sha256(split_file(folder, split))
            )
            for split in data_set.splits
        },
        reasons,
        lacks,
    )


def _check_kept(
    kept: Mapping[Split, int], dropped: Mapping[Split, int], reasons: Mapping[str, int]
) -> None:
    for split in kept:
        if not kept[split]:
            why = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items()) or "nothing"
            raise UserError(
                f"no row is left for the {split} split ({dropped[split]} were dropped; of both splits: {why})",
                "give more rows",
            )
