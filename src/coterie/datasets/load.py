"""Load data sets by name: rows that ship, rows of the Hugging Face hub, a user's files, and plug-ins.

``load`` never has one question in both splits: repeated rows are dropped, and so are training rows whose question is
held out or belongs to a set that must be left out, and rows that can't be used.
"""

import errno
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from coterie.config.construct import construct, settings_type_of
from coterie.config.folders import expanded, whole_file
from coterie.config.home import sha256
from coterie.config.plugins import Kind, Plugin, guarded, label
from coterie.config.plugins import find as find_plugin
from coterie.config.settings import Settings, key
from coterie.datasets.catalogue import (
    CATALOGUE,
    NEWEST,
    SPLITS,
    DataSet,
    Repository,
    Split,
    find,
)
from coterie.datasets.files import SUFFIXES, read_rows
from coterie.datasets.rows import LeftOut, QuestionRow, question_key
from coterie.errors import UserError

SAMPLE, HUB = "sample", "hub"
WORDS: Mapping[Split, frozenset[str]] = {
    "train": frozenset({"train"}),
    "heldout": frozenset({"heldout", "validation", "valid", "dev", "test"}),
}
"""Words of a file's name that tell its split."""
SHARE = 0.1
DATASETS = Kind(
    "dataset",
    {
        **dict.fromkeys(CATALOGUE, "coterie.datasets.load:CatalogueSet"),
        "qa": "coterie.datasets.questions:QuestionsAndAnswers",
        "mind2web": "coterie.datasets.mind2web:Mind2Web",
        "conversations": "coterie.datasets.conversations:Conversations",
        "preferences": "coterie.datasets.conversations:Preferences",
    },
)
Files = list[tuple[Split | None, Path]]
"""Files with their splits; ``None``: each row's split is drawn."""
R = TypeVar("R", bound=QuestionRow)


class DatasetSettings(Settings):
    """Which data set. A data set that has keys of its own names a subclass of this one as its ``settings_type``."""

    main: ClassVar[str] = "name"

    name: str | None = key(
        None,
        "The data set: a name of `coterie data list`, a file of questions and answers (short for `qa` with it), "
        "or your own "
        "(package.module:NAME, path/file.py:NAME). None where the environment makes its own tasks.",
    )


class SourceSettings(DatasetSettings):
    """A data set of the catalogue: where its rows come from."""

    source: str = key(
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


def load(name: str, source: str | Path = HUB, heldout: float = SHARE) -> Loaded:
    """Return the rows of a data set of the catalogue.

    Args:
        name: Name in the catalogue.
        source: ``hub``, ``sample``, a folder with ``train.jsonl`` and ``heldout.jsonl``, or a file or folder in the
            published format. A file's name tells its split; files of one split are divided. One file of a set for
            evaluation alone is read as it is.
        heldout: Share of the questions held out of files of one split, by a hash of each question.

    Raises:
        UserError: For missing or broken data (by file and line), and for a split without rows.
    """
    data_set = find(name)
    if (own := _own_files(data_set, source)) is not None:
        rows = {
            split: [row for row in read_rows(file, data_set.row) if row.usable]
            for split, file in own.items()
        }
        return Loaded(_whole(data_set, rows, Counter()))
    excluded = frozenset[str]()
    if data_set.without is not None:
        other = load(data_set.without).rows.values()
        excluded = frozenset(question_key(row.question) for rows in other for row in rows)
    rows = {split: [] for split in data_set.splits}
    left_out = Counter[str]()
    seen: dict[str, Split] = {}
    for told, row in _read(data_set, _files(data_set, source)):
        if isinstance(row, LeftOut):
            left_out[row.reason] += 1
            continue
        split = told or _drawn(row.key, heldout)
        reason = row.flaw
        if not reason and split == "train" and question_key(row.question) in excluded:
            reason = f"is a question of {data_set.without}"
        if not reason and row.key in seen:
            reason = "is there before" if seen[row.key] == split else "is held out"
        if reason:
            left_out[reason] += 1
        else:
            seen[row.key] = split
            rows[split].append(row)
    return Loaded(_whole(data_set, rows, left_out), left_out)


def load_rows(name: str, split: Split, source: str | Path = HUB) -> list[QuestionRow]:
    if split not in find(name).splits:
        raise UserError(
            f"{name} is for evaluation alone: it has no rows to train on", "train on another set"
        )
    return load(name, source).rows[split]


def hub_files(data_set: DataSet) -> Files:
    """Download the files of a set into the hub's cache, if they are not there; held-out ones come first.

    Raises ``UserError`` if they are neither there nor can be downloaded.
    """
    if not data_set.repos:
        raise UserError(
            f"coterie knows no file of {data_set.name} on the Hugging Face hub",
            f"get its files ({data_set.url}) and add dataset.source=FILE",
        )
    drawn = data_set.heldout is None
    parts: list[tuple[Split | None, Repository, tuple[str, ...]]] = [
        *(("heldout", repo, repo.heldout) for repo in data_set.repos),
        *((None if drawn else "train", repo, repo.train) for repo in data_set.repos),
    ]
    return [
        (split, download(data_set.name, repo, file)) for split, repo, some in parts for file in some
    ]


def download(name: str, repo: Repository, file: str) -> Path:
    """Return a file of a data repository in the hub's cache, downloaded if it is not there."""
    import huggingface_hub
    from httpx2 import HTTPError

    try:
        return Path(
            huggingface_hub.hf_hub_download(
                repo.name, file, repo_type="dataset", revision=repo.revision
            )
        )
    except (HTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"{file} of {repo.name} (revision {repo.revision[:12]}) is not in the cache of the Hugging Face hub and "
            f"can't be downloaded: {str(error.__cause__ or error).splitlines()[0]}",
            f"check the network, HF_ENDPOINT and (for a gated set) HF_TOKEN, and give the command again; or run "
            f"`coterie data download {name}` on another machine and copy its HF_HOME here; or get the files of "
            f"https://huggingface.co/datasets/{repo.name} and add dataset.source=FOLDER",
        ) from error


def content(name: str, source: str | Path, heldout: float) -> str:
    """Return what identifies the rows of a source: checksums of files, revisions of the hub."""
    data_set = find(name)
    if (own := _own_files(data_set, source)) is not None:
        return " ".join(sha256(own[one]) if one in own else "missing" for one in SPLITS)
    if source != HUB:
        found = " ".join(sha256(file) for _, file in _files(data_set, source))
    elif any(repo.revision == NEWEST for repo in data_set.repos):
        found = " ".join(str(file).partition("snapshots")[2] for _, file in hub_files(data_set))
    else:
        found = " ".join(f"{repo.name}@{repo.revision}" for repo in data_set.repos)
    return f"{found} {heldout:g}" if data_set.heldout is None or source != HUB else found


def sample_folder(name: str) -> Path:
    return Path(str(files("coterie") / "assets" / "data" / name))


class CatalogueSet:
    """A data set of the catalogue."""

    settings_type = SourceSettings

    def __init__(self, settings: SourceSettings) -> None:
        assert settings.name is not None, "a data set has a name"
        self.settings = settings
        self.row = CATALOGUE[settings.name].row
        self.splits = CATALOGUE[settings.name].splits

    def rows(self, split: Split) -> list[QuestionRow]:
        """Return the usable rows of a split, in the order of the files."""
        return self._loaded.rows[split]

    def content(self) -> str:
        return content(str(self.settings.name), self.settings.source, self.settings.heldout)

    @cached_property
    def _loaded(self) -> Loaded:
        return load(str(self.settings.name), self.settings.source, self.settings.heldout)


def _own_files(data_set: DataSet, source: str | Path) -> dict[Split, Path] | None:
    """Files that are divided already, by split; ``None`` for sources in the published format."""
    if source == HUB:
        return None
    if source == SAMPLE and not data_set.packaged:
        raise UserError(
            f"no rows of {data_set.name} come with coterie",
            f"get its files ({data_set.url}) and add dataset.source=FILE"
            if data_set.url
            else "leave out dataset.source=sample",
        )
    folder = sample_folder(data_set.name) if source == SAMPLE else expanded(source)
    if data_set.train is None and folder.is_file():
        return {"heldout": folder}
    packed = sample_folder(data_set.name) / source
    if (packed / "heldout.jsonl.gz").is_file():
        return {split: packed / f"{split}.jsonl.gz" for split in data_set.splits}
    own = {split: folder / f"{split}.jsonl" for split in data_set.splits}
    return own if all(file.is_file() for file in own.values()) else None


def _files(data_set: DataSet, source: str | Path) -> Files:
    """Files in the published format, with their splits, held-out ones first."""
    if source == HUB:
        return hub_files(data_set)
    path = expanded(source)
    if not path.exists():
        raise UserError(f"there is no file or folder {path}", "check dataset.source")
    found = [path] if path.is_file() else _data(path.iterdir()) or _data(path.rglob("*"))
    if not found:
        raise UserError(f"{path} has no {', '.join(SUFFIXES)} file", "check dataset.source")
    if data_set.train is None:
        return [("heldout", file) for file in found]
    told = [_split_of(file) for file in found]
    if len(set(told)) == 1 or data_set.join is not None:
        return [(None, file) for file in found]
    for split, file in zip(told, found, strict=True):
        if split is None:
            raise UserError(
                f"the name of {file} tells no split",
                "put train, or one of dev, test, validation, heldout, into its name",
            )
    return sorted(zip(told, found, strict=True), key=lambda one: one[0] == "train")


def _data(inside: Iterable[Path]) -> list[Path]:
    return sorted(file for file in inside if file.suffix in SUFFIXES)


def _split_of(file: Path) -> Split | None:
    """Return the split that a file's name tells; ``None`` if it tells none, or both."""
    words = set(re.split(r"[^a-z]+", file.stem.lower()))
    told = [split for split in SPLITS if words & WORDS[split]]
    return told[0] if len(told) == 1 else None


def _read(data_set: DataSet, found: Files) -> Iterator[tuple[Split | None, QuestionRow | LeftOut]]:
    if data_set.join is not None:
        yield from ((None, row) for row in data_set.join([file for _, file in found]))
        return
    for split in dict.fromkeys(split for split, _ in found):
        rows = (row for one, file in found if one == split for row in read_rows(file, data_set.row))
        most = data_set.first if split == "heldout" else None
        yield from ((split, row) for row in islice(rows, most))


def _drawn(key: str, share: float) -> Split:
    """Draw a split by the question alone, so that it does not depend on what else is there."""
    draw = int.from_bytes(hashlib.sha256(f"0 {key}".encode()).digest()[:8])
    return "heldout" if draw < share * 2**64 else "train"


def _whole(
    data_set: DataSet, rows: dict[Split, list[QuestionRow]], left_out: Mapping[str, int]
) -> dict[Split, list[QuestionRow]]:
    for split, kept in rows.items():
        if not kept:
            why = "; ".join(f"{count:,} {reason}" for reason, count in left_out.items())
            raise UserError(
                f"no {split} row of {data_set.name} is left" + f" (dropped: {why})" * bool(why),
                "give more rows, or another dataset.heldout",
            )
    return rows


# -- any set ----------------------------------------------------------------------------------


class RowSet(Protocol):
    """What the class of a data set is. It is made with its settings, if it names a ``settings_type``.

    ``environment``, which it may have, names the environment in which its rows are played, by default ``debate``;
    ``splits`` names the splits that it has, by default both: ``("heldout",)`` of a set that is for evaluation alone.
    """

    row: type[QuestionRow]

    def rows(self, split: Split) -> Iterable[QuestionRow]: ...


class Rows:
    """A data set, and its rows once they have been asked for."""

    def __init__(self, settings: DatasetSettings) -> None:
        assert settings.name is not None, "a data set has a name"
        self.name = label(settings.name)
        self._found = find_plugin(DATASETS, settings.name)
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

    @property
    def left_out(self) -> Mapping[str, int]:
        """Numbers of rows that the set leaves out, by reason, where it counts them."""
        return getattr(self._set, "left_out", {})

    def has(self, split: Split) -> bool:
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


def lacking(found: Plugin, name: str, write: str) -> UserError:
    """The error about a plug-in that lacks something."""
    return UserError(f"{found} has no {name}", f"add {write}")


def row_type(name: str) -> type[QuestionRow]:
    """The type of a data set's rows. Raises ``UserError`` for a plug-in that names none."""
    if name in CATALOGUE:
        return CATALOGUE[name].row
    found = find_plugin(DATASETS, name)
    row = getattr(found.thing, "row", None)
    if not (isinstance(row, type) and issubclass(row, QuestionRow)):
        raise lacking(found, "type of rows", "row = QuestionRow, or a subclass of it")
    return row


def dataset_type(name: str) -> type[DatasetSettings]:
    """The settings of a data set. Raises ``UserError`` if there is none of that name, or it is not one."""
    found = find_plugin(DATASETS, name)
    if not callable(getattr(found.thing, "rows", None)):
        raise lacking(found, "method rows", "def rows(self, split), which gives rows of a split")
    return settings_type_of(found, DatasetSettings)


def environment_of(name: str) -> str:
    """The environment in which a plug-in's rows are played."""
    return str(getattr(find_plugin(DATASETS, name).thing, "environment", "debate"))


# -- a user's files --------------------------------------------------------------------------


def user_splits(
    name: str, source: str, read: Callable[[Path], list[R]], heldout: float
) -> dict[Split, list[R]]:
    """Read a user's file and divide it (:func:`divided`), or a folder with a file for each split.

    Raises ``UserError`` where there is no source, and for a folder without one file of each split.
    """
    if not source:
        raise UserError(f"dataset={name} needs a file of rows", "add dataset.source=FILE.jsonl")
    path = expanded(source)
    if not path.is_dir():
        return divided(read(path), heldout, path)
    splits: dict[Split, list[R]] = {}
    for split in SPLITS:
        found = [file for file in _data(path.iterdir()) if file.name.partition(".")[0] == split]
        if len(found) != 1:
            has = f"{len(found)} files of {split}" if found else f"no file {split}.jsonl"
            raise UserError(f"{path} has {has}", f"give one ({', '.join(SUFFIXES)})")
        splits[split] = read(found[0])
    return splits


def divided(rows: Sequence[R], heldout: float, file: Path) -> dict[Split, list[R]]:
    """A share of the questions is held out; the same question is never in both splits.

    Raises ``UserError`` if none is left to train on.
    """
    keys = sorted({row.key for row in rows})
    held_out = set(keys[: max(1, round(len(keys) * heldout))])
    train = [row for row in rows if row.key not in held_out]
    if not train:
        raise UserError(
            f"{file} has too few questions ({len(keys)}) to hold some of them out",
            "give more, or a lower dataset.heldout",
        )
    return {"train": train, "heldout": [row for row in rows if row.key in held_out]}


# -- passages to search -----------------------------------------------------------------------


def distinct_passages(rows: Iterable[QuestionRow]) -> Iterator[tuple[str, str]]:
    """(title, text) of the passages of rows in their order, each once.

    Spaces and line ends count as one space, because a title is one line.
    """
    seen = set[tuple[str, str]]()
    for row in rows:
        for passage in row.passages:
            title, text = (" ".join(part.split()) for part in (passage.title, passage.text))
            if not text or (title, text) in seen:
                continue
            seen.add((title, text))
            yield title, text


def rows_of(name: str, sources: Iterable[str]) -> Iterator[QuestionRow]:
    """Yield the rows of both splits of a set's sources; of a file, its rows."""
    for source in sources:
        if (file := expanded(source)).is_file():
            yield from (row for row in read_rows(file, find(name).row) if row.usable)
        else:
            for rows in load(name, source).rows.values():
                yield from rows


def write_passages(passages: Iterable[tuple[str, str]], file: Path) -> int:
    """Write titles and texts as a new JSONL file, whole or not at all; how many there are.

    Raises ``UserError`` if there are none, and for a file that is there or can't be made.
    """
    count = 0
    with whole_file(file) as part, part.open("w", encoding="utf-8", newline="\n") as opened:
        for count, (title, text) in enumerate(passages, 1):
            line = {"id": str(count - 1), "contents": f'"{title}"\n{text}'}
            opened.write(json.dumps(line, ensure_ascii=False) + "\n")
        if not count:
            raise UserError(
                "these rows have no passages: nothing to search",
                "use hotpot_qa, 2wiki, musique or trivia_qa, from files that have the contexts",
            )
    return count
