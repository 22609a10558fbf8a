"""Load data sets by name: packaged rows, the Hugging Face hub, files of a user, and plug-ins.

:func:`load` drops unusable and duplicate rows. It also drops training rows whose question is held out or belongs to
an excluded data set, so no question is in both splits.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar, Protocol

from coterie.config.folders import atomic_file, expanded, sha256
from coterie.config.plugins import Kind, construct, guarded, label, settings_type_of
from coterie.config.plugins import find as find_plugin
from coterie.config.settings import PathText, Settings, key
from coterie.datasets.catalogue import (
    CATALOGUE,
    FOLDER,
    NEWEST,
    PREFERENCE_SETS,
    SPLITS,
    DataSet,
    Split,
    find,
)
from coterie.datasets.files import SUFFIXES, WORDS, download, name_words, read_rows
from coterie.datasets.rows import LeftOut, QuestionRow, question_key
from coterie.errors import UserError

SAMPLE, HUB = "sample", "hub"
SHARE = 0.1
UNUSED = "columns that are not used"
# Classes are named by path, so that listing the data sets imports none of them.
DATASETS = Kind(
    "dataset",
    {
        **dict.fromkeys(CATALOGUE, "coterie.datasets.load:CatalogueSet"),
        "qa": "coterie.datasets.question_files:QuestionsAndAnswers",
        "mind2web": "coterie.datasets.plan_files:Mind2Web",
        "conversations": "coterie.datasets.conversations:Conversations",
        "preferences": "coterie.datasets.conversations:Preferences",
        "recorded": "coterie.datasets.run_record:RecordedEpisodes",
        "recorded_pairs": "coterie.datasets.run_record:RecordedPairs",
        **dict.fromkeys(
            PREFERENCE_SETS, "coterie.datasets.published_preferences:PublishedPreferences"
        ),
    },
)
Files = list[tuple[Split | None, Path]]
"""Files with their splits; ``None``: each row's split is drawn."""


class DatasetSettings(Settings):
    """Name of a data set. A data set with more keys has a subclass as its ``settings_type``."""

    main: ClassVar[str] = "name"

    name: str | None = key(
        None,
        "The data set: a name of `coterie data list`, a file of questions and answers (short for `qa` with it), "
        "or your own "
        "(package.module:NAME, path/file.py:NAME). None where the environment makes its own tasks.",
    )


class SourceSettings(DatasetSettings):
    """Source of the rows of a catalogue data set."""

    source: PathText = key(
        HUB,
        "`hub` (the Hugging Face hub, through its cache), `sample` (the rows that ship with coterie; of "
        "colbench_code also `synthetic` and `easy`), or a file or "
        "folder, in the published format or with train.jsonl and heldout.jsonl.",
    )
    heldout: float = key(
        SHARE, "Of files of one split: the share of questions that is held out.", gt=0, lt=1
    )


# -- sets of the catalogue --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """Rows of a data set, and the number of rows dropped by reason."""

    rows: dict[Split, list[QuestionRow]]
    left_out: Counter[str] = field(default_factory=Counter)


def load_rows(name: str, source: str | Path = HUB, heldout: float = SHARE) -> Loaded:
    """Return the rows of a data set of the catalogue.

    ``source`` is as in :class:`SourceSettings`. File names determine the split; hashes of the questions divide files of
    a single split. A single file of an evaluation-only set is read unchanged.
    """
    data_set = find(name)
    rows: dict[Split, list[QuestionRow]] = {split: [] for split in data_set.splits}
    left_out = Counter[str]()
    files, is_divided = _files(data_set, source)
    if is_divided:
        # Divided files are trusted: neither duplicates nor common questions are searched for.
        for split, file in files:
            assert split is not None, "a divided file has a split"
            rows[split] = [row for row in read_rows(file, data_set.row) if not row.flaw]
        return Loaded(_check_not_empty(data_set, rows, left_out))
    excluded = set[str]()
    # For example, MMLU's auxiliary training rows contain questions of ARC.
    if data_set.without is not None:
        other_rows = chain(*load_rows(data_set.without).rows.values())
        excluded = {question_key(row.question) for row in other_rows}
    # Held-out files are read first, so that a question in both splits stays held out.
    seen: dict[str, Split] = {}
    for file_split, row in _read(data_set, files):
        if isinstance(row, LeftOut):
            left_out[row.reason] += 1
            continue
        split = file_split or _draw_split(row.key, heldout)
        reason = row.flaw
        if not reason and split == "train" and question_key(row.question) in excluded:
            reason = f"is a question of {data_set.without}"
        if not reason and row.key in seen:
            reason = "is a duplicate" if seen[row.key] == split else "is held out"
        if reason:
            left_out[reason] += 1
        else:
            seen[row.key] = split
            rows[split].append(row)
    return Loaded(_check_not_empty(data_set, rows, left_out), left_out)


def hub_files(data_set: DataSet) -> Files:
    """Return the files of a data set in the hub's cache, held-out files first. Download missing files."""
    if not data_set.repos:
        problem = f"{data_set.name} has no files on the Hugging Face hub"
        raise UserError(problem, f"download its files ({data_set.url}) and add dataset.source=FILE")
    # The training files have no split where a share of them is held out by hash.
    parts: tuple[tuple[Split | None, Split], ...]
    parts = ("heldout", "heldout"), (None if data_set.heldout is None else "train", "train")
    return [
        (split, download(data_set.name, repo, file))
        for split, files in parts
        for repo in data_set.repos
        for file in getattr(repo, files)
    ]


class CatalogueSet:
    """Data set of the catalogue."""

    settings_type = SourceSettings

    def __init__(self, settings: SourceSettings) -> None:
        self.settings, self.entry = settings, CATALOGUE[str(settings.name)]
        self.row, self.splits = self.entry.row, self.entry.splits

    def rows(self, split: Split) -> list[QuestionRow]:
        return self._loaded.rows[split]

    def content(self) -> str:
        """Return an identity of the source: checksums of files or revisions on the hub."""
        entry, source, is_divided = self.entry, self.settings.source, False
        if source != HUB:
            files, is_divided = _files(entry, source)
            identity = " ".join(sha256(file) for _, file in files)
        # A moving branch is identified by the commit of its snapshot, which is part of the cached
        # path.
        elif any(repo.revision == NEWEST for repo in entry.repos):
            identity = " ".join(str(file).partition("snapshots")[2] for _, file in hub_files(entry))
        else:
            identity = " ".join(f"{repo.name}@{repo.revision}" for repo in entry.repos)
        # The share changes the rows only where coterie divides them.
        is_divided = is_divided or (entry.heldout is not None and source == HUB)
        return identity if is_divided else f"{identity} {self.settings.heldout:g}"

    @cached_property
    def _loaded(self) -> Loaded:
        return load_rows(self.entry.name, self.settings.source, self.settings.heldout)


def _files(data_set: DataSet, source: str | Path) -> tuple[Files, bool]:
    """Return the files of a source, and whether they are divided into the splits of the set."""
    if source == HUB:
        return hub_files(data_set), False
    if source == SAMPLE and not data_set.packaged:
        problem = f"coterie has no packaged rows of {data_set.name}"
        raise UserError(problem, f"add dataset.source=FILE with its files {data_set.url}".rstrip())
    packaged = FOLDER / data_set.name
    # A set may have several packaged variants in folders, such as `synthetic` and `easy`.
    if (packaged / source / "heldout.jsonl.gz").is_file():
        names = ((split, packaged / source / f"{split}.jsonl.gz") for split in data_set.splits)
        return list(names), True
    path = packaged if source == SAMPLE else expanded(source)
    if data_set.train is None and path.is_file():
        return [("heldout", path)], True
    divided: Files = [(split, path / f"{split}.jsonl") for split in data_set.splits]
    if all(file.is_file() for _, file in divided):
        return divided, True
    if not path.exists():
        raise UserError(f"there is no file or folder {path}", "check dataset.source")
    # Data files at the top of a folder are preferred to those in its subfolders.
    paths = [path] if path.is_file() else _data(path.iterdir()) or _data(path.rglob("*"))
    if not paths:
        raise UserError(f"{path} has no {', '.join(SUFFIXES)} file", "check dataset.source")
    if data_set.train is None:
        return [("heldout", file) for file in paths], False
    # The name of a file determines its split only if it has words of exactly one split.
    words = [[name for name in SPLITS if name_words(file.stem) & WORDS[name]] for file in paths]
    splits = [named[0] if len(named) == 1 else None for named in words]
    # Files of one split, and files that only make rows together, are divided by hashes of the
    # questions.
    if len(set(splits)) == 1 or data_set.join is not None:
        return [(None, file) for file in paths], False
    for split, file in zip(splits, paths, strict=True):
        if split is None:
            problem = f"the split of {file} is not clear from its name"
            raise UserError(problem, "put train, dev, test, validation or heldout into its name")
    # Held-out files come first, as `load` expects.
    return sorted(zip(splits, paths, strict=True), key=lambda pair: pair[0] == "train"), False


def _data(inside: Iterable[Path]) -> list[Path]:
    return sorted(file for file in inside if file.suffix in SUFFIXES)


def _read(data_set: DataSet, paths: Files) -> Iterator[tuple[Split | None, QuestionRow | LeftOut]]:
    if data_set.join is not None:
        yield from ((None, row) for row in data_set.join([file for _, file in paths]))
        return
    # Of some large sets only the beginning is read, in the published order: the first rows train,
    # and the next ones are held out.
    files = all(split is None and file.suffix == ".parquet" for split, file in paths)
    each = data_set.each if files else None
    for split in dict.fromkeys(split for split, _ in paths):
        of_split = [file for name, file in paths if name == split]
        rows = (row for file in of_split for row in read_rows(file, data_set.row))
        if each is not None:
            # Both slices consume the same generator, so the second begins where the first one ends.
            yield from (("train", row) for row in islice(rows, each))
            yield from (("heldout", row) for row in islice(rows, each))
        else:
            limit = data_set.first if split == "heldout" else None
            yield from ((split, row) for row in islice(rows, limit))


def _draw_split(key: str, share: float) -> Split:
    """Draw a split by a hash of the question, so that it does not depend on other rows."""
    draw = int.from_bytes(hashlib.sha256(f"0 {key}".encode()).digest()[:8])
    return "heldout" if draw < share * 2**64 else "train"


def _check_not_empty(
    data_set: DataSet, rows: dict[Split, list[QuestionRow]], left_out: Mapping[str, int]
) -> dict[Split, list[QuestionRow]]:
    for split, split_rows in rows.items():
        if not split_rows:
            reasons = "; ".join(f"{count:,} {reason}" for reason, count in left_out.items())
            dropped = f" (dropped: {reasons})" * bool(reasons)
            problem = f"no {split} row of {data_set.name} is left{dropped}"
            raise UserError(problem, "give more rows or change dataset.heldout")
    return rows


# -- any set ----------------------------------------------------------------------------------


class RowSet(Protocol):
    """Class of a data set. It is constructed with its settings if it has a ``settings_type``.

    Optional attributes: ``environment``, the environment of its rows (default ``debate``), and ``splits`` (default
    both; ``("heldout",)`` for evaluation only).
    """

    row: type[QuestionRow]

    def rows(self, split: Split) -> Iterable[QuestionRow]: ...


class Rows:
    """Data set with rows that are loaded on first use."""

    def __init__(self, settings: DatasetSettings) -> None:
        assert settings.name is not None, "a data set has a name"
        self.name = label(settings.name)
        self._plugin = find_plugin(DATASETS, settings.name)
        self._set: RowSet = construct(self._plugin, DatasetSettings, settings)
        self.row = row_type(settings.name)

    @cached_property
    def splits(self) -> tuple[Split, ...]:
        """Splits of the data set."""
        return getattr(self._set, "splits", SPLITS)

    def split(self, split: Split) -> list[QuestionRow]:
        """Return the rows of a split. Raise ``UserError`` if the data set does not have it."""
        if split in self.splits:
            return self._by_split[split]
        if split == "train":
            problem = f"{self.name} is for evaluation only: it has no training rows"
            raise UserError(problem, "train on another data set")
        problem = f"{self.name} holds out no rows, and this command needs some"
        raise UserError(problem, "hold out a share of them: dataset.heldout=0.1")

    @property
    def left_out(self) -> Mapping[str, int]:
        """Numbers of rows that were left out, by reason."""
        return getattr(self._set, "left_out", {})

    @property
    def notes(self) -> Sequence[tuple[str, str]]:
        """Lines of a plan about the rows, such as columns that are not used."""
        return getattr(self._set, "notes", ())

    def content(self) -> str:
        """Return an identity of the rows, independent of their location."""
        if hasattr(self._set, "content"):
            return str(self._set.content())
        lines = (row.model_dump_json() for split in self.splits for row in self.split(split))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @cached_property
    def _by_split(self) -> dict[Split, list[QuestionRow]]:
        splits = {split: self._rows(split) for split in self.splits}
        train, heldout = (splits.get(split, []) for split in SPLITS)
        # A plug-in's splits may overlap, which would inflate every held-out score.
        common = {row.key for row in train} & {row.key for row in heldout}
        if common and not getattr(self._set, "may_share_questions", False):
            example = next(row.question for row in heldout if row.key in common)
            problem = f"{len(common)} questions of {self.name} are both training and held-out rows"
            fix = "remove them from one split: scores on training questions are meaningless"
            raise UserError(f"{problem}, such as {example!r}", fix)
        return splits

    def _rows(self, split: Split) -> list[QuestionRow]:
        rows = guarded(f"{self._plugin} failed", lambda: list(self._set.rows(split)))
        if not rows:
            raise UserError(f"{self._plugin} has no {split} rows", "add rows")
        for number, row in enumerate(rows, 1):
            if not isinstance(row, self.row):
                problem = f"{self._plugin} has a {type(row).__name__} as row {number} of {split}"
                fix = "return rows of the type of its attribute `row`"
                raise UserError(f"{problem}, not a {self.row.__name__}", fix)
        return rows


def row_type(name: str) -> type[QuestionRow]:
    if name in CATALOGUE:
        return CATALOGUE[name].row
    plugin = find_plugin(DATASETS, name)
    row = getattr(plugin.thing, "row", None)
    if not (isinstance(row, type) and issubclass(row, QuestionRow)):
        problem = f"{plugin} has no row type that is QuestionRow or a subclass: {row!r}"
        raise UserError(problem, "add row = QuestionRow, with further fields in a subclass")
    return row


def dataset_type(name: str) -> type[DatasetSettings]:
    """Return the settings type of a data set. Raise ``UserError`` if it is unknown or has no rows."""
    plugin = find_plugin(DATASETS, name)
    if not callable(getattr(plugin.thing, "rows", None)):
        fix = "add def rows(self, split), which returns the rows of a split"
        raise UserError(f"{plugin} has no method rows", fix)
    return settings_type_of(plugin, DatasetSettings)


def environment_of(name: str) -> str:
    return str(getattr(find_plugin(DATASETS, name).thing, "environment", "debate"))


# -- passages to search -----------------------------------------------------------------------


def distinct_passages(rows: Iterable[QuestionRow]) -> Iterator[tuple[str, str]]:
    """Yield (title, text) of the distinct passages of rows, in order. Normalize white space to single spaces."""
    seen = set[tuple[str, str]]()
    for row in rows:
        for passage in row.passages:
            title, text = (" ".join(part.split()) for part in (passage.title, passage.text))
            if text and (title, text) not in seen:
                seen.add((title, text))
                yield title, text


def rows_of(name: str, sources: Iterable[str]) -> Iterator[QuestionRow]:
    for source in sources:
        if (file := expanded(source)).is_file():
            yield from (row for row in read_rows(file, find(name).row) if not row.flaw)
        else:
            for rows in load_rows(name, source).rows.values():
                yield from rows


def write_passages(passages: Iterable[tuple[str, str]], file: Path) -> int:
    """Write titles and texts atomically to a new JSONL file. Return their number."""
    count = 0
    with atomic_file(file) as part, part.open("w", encoding="utf-8", newline="\n") as opened:
        for count, (title, text) in enumerate(passages, 1):
            # The format of the corpora of Search-R1: the title in quotes, then the text.
            line = {"id": str(count - 1), "contents": f'"{title}"\n{text}'}
            opened.write(json.dumps(line, ensure_ascii=False) + "\n")
        if not count:
            fix = "use hotpot_qa, 2wiki, musique or trivia_qa, from files with the contexts"
            raise UserError("these rows have no passages to search", fix)
    return count
