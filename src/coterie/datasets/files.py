"""Files of data sets: rows of each format, splits by file names, and downloads.

Formats: ``.jsonl`` (an object per line), ``.json`` (a list of objects), ``.parquet``, and text tables with a header
(``.csv``, ``.tsv``). All but Parquet may be compressed (``.gz``).
"""

import csv
import errno
import gzip
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TextIO, TypeVar

from pydantic import ValidationError

from coterie.config.folders import expanded, read_json
from coterie.config.resolve import wrong_at
from coterie.datasets.catalogue import SPLITS, TRAJECTORIES, Repository, Split
from coterie.datasets.rows import QuestionRow, SetRow
from coterie.errors import UserError
from coterie.progress import Progress

R = TypeVar("R", bound=SetRow)
Q = TypeVar("Q", bound=QuestionRow)
TABLES = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (".jsonl", ".gz", ".json", ".parquet", *TABLES)
# Rows are decoded a few at a time, because some sets have whole web pages in them.
PARQUET_BATCH = 256
# UTF-8 with or without the byte order mark that spreadsheets write.
ENCODING = "utf-8-sig"
SHOWN = 3


# -- rows -----------------------------------------------------------------------------------------


def read_rows(file: Path, row: type[R], progress: Progress | None = None) -> Iterator[R]:
    """Yield the rows of a file in order. Raise ``UserError`` with file and line for a broken row or an empty file."""
    for position, raw in numbered(file, progress, row.columns):
        try:
            yield row.model_validate(raw)
        # pydantic does not wrap the last three, which the conversion of a row of another form
        # raises.
        except (ValidationError, AttributeError, KeyError, TypeError) as error:
            fix = f"correct or remove it; a row of this set has {', '.join(row.model_fields)}"
            raise UserError(f"{file}, {position} is broken: {fault_of(error)}", fix) from error


def fault_of(error: Exception) -> str:
    """Describe the fault of a row whose conversion raised an error."""
    if isinstance(error, ValidationError):
        return "; ".join(map(wrong_at, error.errors()[:SHOWN]))
    if isinstance(error, ValueError):
        return str(error)
    return f"it has another form ({type(error).__name__} {error})"


def numbered(
    file: Path,
    progress: Progress | None = None,
    columns: tuple[str, ...] | None = None,
    broken: list[str] | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield the values of a file of any format, each with its position, such as ``line 3`` or ``row 3``.

    Args:
        file: File of one of ``SUFFIXES``. JSONL may also hold lists of rows: one for the file, or one on each line.
        progress: Display of the lines of a JSONL file.
        columns: Columns to read from a Parquet file; ``None`` for all.
        broken: Gets the positions of lines that are not JSON, which are left out; without it they are errors.
    """
    if not file.is_file():
        where = f"{file} is a folder, not a file" if file.is_dir() else f"there is no file {file}"
        raise UserError(where, "check the path")
    if file.suffix not in SUFFIXES:
        raise UserError(f"{file} has an unknown format", f"give one of {', '.join(SUFFIXES)}")
    kind, number = _kind(file), 0
    position: int | str
    unit, bar = ("line", progress) if kind == ".jsonl" else ("row", None)
    try:
        # A first pass counts the lines, so that the display can show the share that is done.
        if bar is not None:
            with _open(file) as lines:
                bar.start(sum(1 for line in lines if line.strip()), file.name)
        rows = _READERS[kind](file, broken) if kind in _READERS else _parquet(file, columns)
        # The number is needed after the loop: for the row of an error, and to detect an empty file.
        for number, (position, raw) in enumerate(rows, 1):  # noqa: B007
            yield f"{unit} {position}", raw
            if bar is not None:
                bar.advance(1)
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {error}", "save it as UTF-8") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{file} is broken: {error}", "compress it again") from error
    except csv.Error as error:
        raise UserError(f"{file}, row {number + 1} is broken: {error}", "correct it") from error
    # A file with only broken lines is reported by the caller, which has their positions.
    if not number and not broken:
        raise UserError(f"{file} is empty", "give a file with rows or download it again")


def _kind(file: Path) -> str:
    """Return the suffix of a file's format; a compressed file without one is JSONL."""
    kind = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    return kind if kind in (".json", ".parquet", *TABLES) else ".jsonl"


def _open(file: Path, newline: str | None = None) -> TextIO:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding=ENCODING, newline=newline)
    return file.open(encoding=ENCODING, newline=newline)


def _lines(file: Path, broken: list[str] | None) -> Iterator[tuple[int | str, Any]]:
    with _open(file) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = read_json(line)
            except ValueError as error:
                if number == 1 and line.startswith(
                    "["
                ):  # one list for the file, over several lines
                    yield from _list(file, broken)
                    return
                if broken is None:
                    raise _not_json(f"{file}, line {number}", error) from error
                broken.append(f"line {number}")
                continue
            # A list on a line holds several rows, except a list of messages, which is one
            # conversation.
            if isinstance(value, list) and not is_chat(value):
                yield from ((f"{number}, item {n}", item) for n, item in enumerate(value, 1))
            else:
                yield number, value


def is_chat(value: Any) -> bool:
    """Return True for a list of messages with roles."""
    return isinstance(value, list) and all(
        isinstance(message, Mapping) and ("role" in message or {"from", "value"} <= message.keys())
        for message in value
    )


def _list(file: Path, broken: list[str] | None) -> Iterator[tuple[int | str, Any]]:
    with _open(file) as opened:
        text = opened.read()
    try:
        items = read_json(text)
    except ValueError as error:
        raise _not_json(str(file), error) from error
    if not isinstance(items, list):
        raise UserError(f"{file} is not a list of rows", "give a JSON list or JSONL")
    yield from enumerate(items, 1)


def _not_json(where: str, error: ValueError) -> UserError:
    return UserError(f"{where} is broken: not JSON ({error})", "correct or remove it")


def _table(file: Path, broken: list[str] | None) -> Iterator[tuple[int | str, Any]]:
    """Yield rows of text; missing cells are ``None``. Quotes in a TSV file may be text."""
    # Many TSV files have quotes as plain text. Quoting is assumed only if every row then has
    # exactly the cells of the header.
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
    if _kind(file) == ".tsv":
        try:
            is_whole = all(None not in row.values() for row in _cells(file, quoting))
        except csv.Error:
            is_whole = False
        quoting = csv.QUOTE_MINIMAL if is_whole else csv.QUOTE_NONE
    yield from enumerate(_cells(file, quoting), 1)


def _cells(file: Path, quoting: Literal[0, 3]) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(2**31 - 1)  # texts are longer than csv's default of 128 KiB
    with _open(file, newline="") as opened:
        table = csv.DictReader(opened, delimiter=TABLES[_kind(file)], strict=True, quoting=quoting)
        # `DictReader` would silently keep only the last of two columns with the same name.
        for name, count in Counter(filter(None, table.fieldnames or ())).items():
            if count > 1:
                raise csv.Error(f"{count} columns are called {name!r}")
        for row in table:
            # `DictReader` stores surplus cells under the key `None`.
            if None in row:
                raise csv.Error("it has more cells than the header")
            yield row


def _parquet(file: Path, columns: tuple[str, ...] | None) -> Iterator[tuple[int | str, Any]]:
    # pyarrow is slow to import, and only Parquet files need it.
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        number = 0
        with ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=PARQUET_BATCH, columns=columns):
                for index, column in enumerate(batch.schema):
                    if column.type == pyarrow.float32():  # 0.1, and not 0.10000000149011612
                        exact = batch.column(index).cast("string").cast("float64")
                        batch = batch.set_column(index, column.name, exact)
                for item in batch.to_pylist():
                    number += 1
                    yield number, item
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{file} can't be read as parquet: {error}", "download it again") from error


_READERS: Mapping[str, Callable[[Path, list[str] | None], Iterator[tuple[int | str, Any]]]] = {
    ".jsonl": _lines,
    ".json": _list,
    **dict.fromkeys(TABLES, _table),
}


# -- the hub --------------------------------------------------------------------------------------

REVISIONS = ("refs/convert/parquet", "main")
"""Branches to read, in order: the hub's own conversion to Parquet, and the files of the owner."""


def download(name: str, repo: Repository, file: str) -> Path:
    """Return a file of a data repository in the hub's cache. Download it if missing.

    ``file`` may be a pattern with ``*`` that matches one file.
    """
    from httpx2 import HTTPError
    from huggingface_hub import hf_hub_download, snapshot_download

    try:
        # A pattern is resolved by downloading the matching file and looking for it in the snapshot.
        if "*" in file:
            folder = snapshot_download(
                repo.name, repo_type="dataset", revision=repo.revision, allow_patterns=file
            )
            for match in Path(folder).glob(file):
                return match
            raise OSError(f"no file matches {file}")
        path = hf_hub_download(repo.name, file, repo_type="dataset", revision=repo.revision)
        return Path(path)
    except (HTTPError, OSError) as error:
        # A full disk must not be reported as a problem of the network.
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"{file} of {repo.name} (revision {repo.revision[:12]}) is not in the cache of the Hugging Face hub and "
            f"can't be downloaded: {str(error.__cause__ or error).splitlines()[0]}",
            f"check the network, HF_ENDPOINT and (for a gated set) HF_TOKEN, and run the command again; or run "
            f"`coterie data download {name}` on another machine and copy its HF_HOME here; or download the files of "
            f"https://huggingface.co/datasets/{repo.name} and add dataset.source=FOLDER",
        ) from error


def trajectory_file(source: str) -> Path:
    """Return the file of a published set of trajectories, which is downloaded if missing, or of another path."""
    if source not in TRAJECTORIES:
        return expanded(source)
    (repo,) = TRAJECTORIES[source].repos
    if repo.train:
        return download(source, repo, repo.train[0])
    # The entry names no file, so the training split is found by the hub's layout.
    files, _ = source_files(source, repo.name)
    if len(files["train"]) > 1:
        raise UserError(f"{repo.name} has several files", "download it and give one of them")
    return files["train"][0]


def _list_files(name: str) -> tuple[Repository, list[str]]:
    """Return a data set of the hub and the names of its files; from the cache if the hub is unreachable."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    fault: Exception | None = None
    # The hub has not converted every set to Parquet; then the files of the owner are used.
    for revision in REVISIONS:
        try:
            siblings = HfApi().dataset_info(name, revision=revision).siblings
            files = [sibling.rfilename for sibling in siblings or ()]
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:
            fault = fault or error
            continue
        except (HTTPError, OSError) as error:
            fault = error
            # The hub is unreachable, so only files of the local cache can be used.
            cached = partial(snapshot_download, repo_type="dataset", local_files_only=True)
            try:
                folder = Path(cached(name, revision=revision))
            except OSError:
                continue
            files = [file.relative_to(folder).as_posix() for file in folder.rglob("*")]
        # A branch without data files, such as one with only a README, counts as missing.
        if layout(files):
            return Repository(name, revision), files
    reason = str(fault or "no data files").splitlines()[0]
    raise UserError(
        f"there is no file or folder {name}, and no data set of that name on the Hugging Face hub ({reason})",
        "check the spelling, the network, HF_ENDPOINT, and HF_TOKEN for a private set; or get the files elsewhere "
        f"(hf download {name} --repo-type dataset --local-dir FOLDER) and give FOLDER",
    )


# -- splits of a user's source --------------------------------------------------------------------

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+){0,2}")
SHARD = re.compile(r"-\d{5}-of-\d{5}.*")
HELDOUT = ("validation", "valid", "val", "dev", "heldout", "holdout", "eval", "evaluation", "test")
"""Words of a held-out split in file names, in order of preference."""
WORDS: Mapping[Split, frozenset[str]] = {
    "train": frozenset({"train"}),
    "heldout": frozenset(HELDOUT),
}
"""Words in file names that determine the split."""


def name_words(name: str) -> set[str]:
    return set(re.split(r"[^a-z]+", re.sub(r"held[_-]out", "heldout", name.lower())))


def is_hub_name(source: str) -> bool:
    """Return True for ``OWNER/NAME[:CONFIG][:SPLIT]`` unless there is a file or folder of that name."""
    plain = HUB_NAME.fullmatch(source) and not source.endswith(SUFFIXES)
    return bool(plain) and not expanded(source.partition(":")[0]).exists()


def source_files(name: str, source: str, kind: str = "") -> tuple[dict[Split, list[Path]], bool]:
    """Return the files of each split, and True if they have the layout of the hub.

    A source of the hub is ``OWNER/NAME``, with a configuration and a training split if it has several:
    ``OWNER/NAME:CONFIG:SPLIT``. A folder may have the same layout, as ``hf download`` writes it.
    """
    if not source:
        raise UserError(f"dataset={name} needs a file of rows", "add dataset.source=FILE.jsonl")
    path = expanded(source)
    if is_hub_name(source):
        repo, names = _list_files(source.partition(":")[0])
        chosen = choose_splits(names, source, kind)
        locate = partial(download, repo.name, repo)
        return {split: list(map(locate, chosen[split])) for split in chosen}, True
    # A local folder may also be followed by a configuration or split, as on the hub.
    if not path.exists() and ":" in source:
        path = expanded(source.partition(":")[0])
    if not path.is_dir():
        return {"train": [path]}, False
    inside = [file for file in path.rglob("*") if file.suffix in SUFFIXES]
    # `train` and `heldout` at the top are coterie's own layout; all other names are read like the
    # hub's.
    top = [file for file in inside if file.parent == path]
    named = {split: [f for f in top if f.name.partition(".")[0] == split] for split in SPLITS}
    for split, files in named.items():
        if len(files) > 1:
            raise UserError(f"{path} has {len(files)} files of {split}", "remove all but one")
    if all(named.values()):
        return named, False
    chosen = choose_splits([file.relative_to(path).as_posix() for file in inside], source, kind)
    return {split: list(map(path.joinpath, chosen[split])) for split in chosen}, True


def layout(paths: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Group paths by configuration and split.

    Names on the hub are ``CONFIG/SPLIT/0000.parquet``, ``CONFIG/SPLIT-00000-of-00001.parquet`` or ``SPLIT.jsonl``. The
    folder ``data`` is not a configuration.
    """
    configs: dict[str, dict[str, list[str]]] = {}
    for path in sorted(paths):
        file = PurePosixPath(path)
        folders, stem = [*file.parts[:-1]], file.name.partition(".")[0]
        if file.suffix not in SUFFIXES:
            continue
        # In `CONFIG/SPLIT/0000.parquet` the folder is the split.
        split = folders.pop() if stem.isdigit() and folders else SHARD.sub("", stem)
        config = "/".join(folder for folder in folders if folder != "data") or "default"
        splits = configs.setdefault(config, {})
        # The hub calls the converted part of a large split `partial-train`.
        splits.setdefault(split.removeprefix("partial-"), []).append(path)
    return configs


def choose_splits(paths: Iterable[str], source: str, kind: str) -> dict[Split, list[str]]:
    """Return the paths of the only or named training split, and of its held-out split if there is one."""
    base, *named = source.split(":")
    configs = layout(paths)
    every = [(config, split) for config, splits in configs.items() for split in splits]
    # A name in the source may be a configuration or a split. Without a split, the candidates are
    # those with the word `train`.
    options = [
        option
        for option in every
        if {*named} <= {*option} and (option[1] in named or "train" in name_words(option[1]))
    ]
    options = [option for option in options if option[0] == "default"] or options
    # Of several training splits such as `train_sft` and `train_prefs`, the kind of the recipe
    # decides.
    if len(options) > 1:
        usual = {"train"} | {split for _, split in options if kind and kind in name_words(split)}
        options = [option for option in options if option[1] in usual] or options
    if len(options) != 1:
        names = [":".join(option).removeprefix("default:") for option in options or every]
        has = "no training split; it has" if not options else f"{len(options)} training splits:"
        problem = f"{source} has {has} {', '.join(names) or 'none'}"
        raise UserError(problem, f"name one: {base}:{(names or ['SPLIT'])[0]}")
    ((config, train),) = options
    splits = configs[config]
    # `train_sft` is evaluated on `test_sft` and not on `test_prefs`, so the other words must agree.
    rest = name_words(train) - WORDS["train"] - WORDS["heldout"]
    by_word = {
        word: split
        for split in splits
        for word in name_words(split) & WORDS["heldout"]
        if split != train and name_words(split) - WORDS["heldout"] == rest
    }
    heldout = next((by_word[word] for word in HELDOUT if word in by_word), None)
    chosen: dict[Split, list[str]] = {"train": splits[train]}
    return {**chosen, "heldout": splits[heldout]} if heldout else chosen


SLACK = 0.1
"""Largest relative error of the share of held-out rows for which rows that belong together stay in one split."""


def divided(rows: Sequence[Q], share: float, source: object) -> tuple[dict[Split, list[Q]], str]:
    """Hold out a share of different rows. Return the splits, and a warning if related rows are in both, or "".

    Rows of a group (``split_group``) stay together if the share then holds within ``SLACK``. Otherwise the largest
    groups are in both splits.
    """
    if not share:
        return {"train": [*rows]}, ""
    target_count, groups = max(1, round(len(rows) * share)), defaultdict[str, list[Q]](list)
    for row in rows:
        groups[row.split_group].append(row)
    held_out, large, warning = list[Q](), list[list[Q]](), ""
    # The order of hashes is as good as random, and independent of the order of the file.
    for _, group in sorted(groups.items()):
        # Groups that exceed the share are divided below, but only if the others do not fill it.
        if len(held_out) + len(group) > target_count * (1 + SLACK):
            large.append(group)
        elif len(held_out) < target_count:
            held_out += group
    for group in sorted(large, key=len, reverse=True):
        if len(held_out) >= target_count * (1 - SLACK):
            break
        warning = "rows that open alike are in both splits"
        # Rows with the same question are neighbors, so that at most one question of a group is in both splits.
        ordered = sorted(group, key=lambda row: (row.key, row.identity))
        held_out += ordered[: target_count - len(held_out)]
    # Rows are compared by object identity, because rows with dictionaries cannot be hashed.
    chosen = set(map(id, held_out))
    train = [row for row in rows if id(row) not in chosen]
    if not train and share < 1:
        problem = f"{source} has too few rows ({len(rows)}) to hold some of them out"
        raise UserError(problem, "give more, or dataset.heldout=0")
    if warning and {row.key for row in train} & {row.key for row in held_out}:
        warning = "rows with the same question are in both splits"
    warning += f": too many of them to hold out {share:g} of the rows otherwise" * bool(warning)
    return {"train": train, "heldout": [row for row in rows if id(row) in chosen]}, warning
