"""Files of a user's source by split: a file, a folder, or a data set of the Hugging Face hub.

A source of the hub is ``OWNER/NAME``, with a configuration and a training split if it has several:
``OWNER/NAME:CONFIG:SPLIT``. A folder may have the same layout, as ``hf download`` writes it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

from coterie.config.folders import expanded
from coterie.datasets.catalogue import SPLITS, Repository, Split
from coterie.datasets.files import SUFFIXES
from coterie.datasets.load import WORDS, download
from coterie.datasets.rows import QuestionRow
from coterie.errors import UserError

R = TypeVar("R", bound=QuestionRow)
Files = dict[Split, list[Path]]
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+){0,2}")
REVISIONS = ("refs/convert/parquet", "main")
"""Branches to read, in order: the hub's own conversion to Parquet, and the files of the owner."""
SHARD = re.compile(r"-\d{5}-of-\d{5}.*")
HELDOUT = ("validation", "valid", "dev", "heldout", "test")
"""Words of a held-out split, in order of preference."""


def is_hub_name(source: str) -> bool:
    """Return True for ``OWNER/NAME[:CONFIG][:SPLIT]`` unless there is a file or folder of that name."""
    plain = HUB_NAME.fullmatch(source) and not source.endswith(SUFFIXES)
    return bool(plain) and not expanded(source.partition(":")[0]).exists()


def user_splits(
    name: str,
    source: str,
    read: Callable[[Path], list[R]],
    heldout: float,
    kind: str = "",
    left_out: Counter[str] | None = None,
) -> dict[Split, list[R]]:
    """Read a user's source, and split it (:func:`divided`) if it has no held-out files.

    Args:
        name: Name of the data set, for errors.
        source: File, folder or name on the hub.
        read: Function that returns the rows of a file.
        heldout: Share of the rows to hold out if there is only one split.
        kind: Word in the name of the preferred training split, such as ``prefs``.
        left_out: Counter of training rows that are also in the published held-out split.

    Raises:
        UserError: There is no source, no training split, or more than one.
    """
    files, is_published = source_files(name, source, kind)
    rows = {split: [row for file in some for row in read(file)] for split, some in files.items()}
    if "heldout" not in rows:
        return divided(rows["train"], heldout, source)
    if is_published:
        keys = {row.key for row in rows["heldout"]}
        train = [row for row in rows["train"] if row.key not in keys]
        if left_out is not None:
            left_out["held out too"] += len(rows["train"]) - len(train)
        rows["train"] = train
    return rows


def source_files(name: str, source: str, kind: str = "") -> tuple[Files, bool]:
    """Return the files of each split, and True if they have the layout of the hub."""
    if not source:
        raise UserError(f"dataset={name} needs a file of rows", "add dataset.source=FILE.jsonl")
    path = expanded(source)
    if is_hub_name(source):
        repo, listed = _list_files(source.partition(":")[0])
        chosen = choose_splits(listed, source, kind)
        return {
            split: [download(repo.name, repo, file) for file in some]
            for split, some in chosen.items()
        }, True
    if not path.exists() and ":" in source:
        path = expanded(source.partition(":")[0])
    if not path.is_dir():
        return {"train": [path]}, False
    inside = [one for one in path.rglob("*") if one.suffix in SUFFIXES]
    own = {split: [one for one in inside if one.parent == path and one.name.partition(".")[0] == split]
           for split in SPLITS}  # fmt: skip
    for split, matches in own.items():
        if len(matches) > 1:
            raise UserError(
                f"{path} has {len(matches)} files of {split}", f"give one ({', '.join(SUFFIXES)})"
            )
    if all(own.values()):
        return own, False
    names = [one.relative_to(path).as_posix() for one in inside]
    chosen = choose_splits(names, source, kind)
    return {split: [path / one for one in some] for split, some in chosen.items()}, True


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
        split = folders.pop() if stem.isdigit() and folders else SHARD.sub("", stem)
        config = "/".join(one for one in folders if one != "data") or "default"
        splits = configs.setdefault(config, {})
        splits.setdefault(split.removeprefix("partial-"), []).append(path)
    return configs


def choose_splits(paths: Iterable[str], source: str, kind: str) -> dict[Split, list[str]]:
    """Return the paths of the training split, and of its held-out split if there is one.

    Raises ``UserError`` if there is no training split, or more than one and ``source`` names none.
    """
    named = source.split(":")[1:]
    configs = layout(paths)
    known = {*configs, *(split for splits in configs.values() for split in splits)}
    for part in named:
        if part not in known:
            raise UserError(f"{source} has no {part!r}", f"it has {', '.join(sorted(known))}")
    candidates = {name: splits for name, splits in configs.items() if name in named} or configs
    training = {
        name: names for name, splits in candidates.items() if (names := _training(splits, named))
    }
    if not training:
        has = f": it has {', '.join(sorted(known))}" if known else ""
        raise UserError(f"{source} has no training split{has}", f"name one: {source}:SPLIT")
    if len(training) > 1 and "default" in training:
        training = {"default": training["default"]}
    if len(training) > 1:
        raise UserError(
            f"{source} has {len(training)} configurations: {', '.join(training)}",
            f"name one, such as {source}:{next(iter(training))}",
        )
    ((config, names),) = training.items()
    if len(names) > 1:
        names = [one for one in names if one == "train" or (kind and kind in _words(one))] or names
    if len(names) > 1:
        raise UserError(
            f"{source} has {len(names)} training splits: {', '.join(names)}",
            f"name one, such as {source}:{names[0]}",
        )
    (train,), splits = names, configs[config]
    rest = _words(train) - WORDS["train"] - WORDS["heldout"]
    others = {
        word: one
        for one in splits
        for word in _words(one) & WORDS["heldout"]
        if one != train and _words(one) - WORDS["heldout"] == rest
    }
    heldout = next((others[word] for word in HELDOUT if word in others), None)
    chosen: dict[Split, list[str]] = {"train": splits[train]}
    return {**chosen, "heldout": splits[heldout]} if heldout else chosen


def _training(splits: Mapping[str, Sequence[str]], named: Sequence[str]) -> list[str]:
    return [one for one in splits if one in named] or [
        one for one in splits if _words(one) & WORDS["train"]
    ]


def _words(split: str) -> set[str]:
    return set(re.split(r"[^a-z]+", split.lower()))


def _list_files(name: str) -> tuple[Repository, list[str]]:
    """Return a data set of the hub and the names of its files; from the cache if the hub is unreachable."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    for revision in REVISIONS:
        try:
            siblings = HfApi().dataset_info(name, revision=revision).siblings
            files = [one.rfilename for one in siblings or ()]
        except RevisionNotFoundError:
            continue
        except RepositoryNotFoundError as error:
            raise UserError(
                f"there is no file or folder {name}, and no data set of that name on the Hugging Face hub",
                "check the spelling, and HF_TOKEN for a private set",
            ) from error
        except (HTTPError, OSError) as error:
            try:
                folder = Path(
                    snapshot_download(
                        name, repo_type="dataset", revision=revision, local_files_only=True
                    )
                )
            except OSError:
                if revision != REVISIONS[-1]:
                    continue
                raise UserError(
                    f"there is no file or folder {name}, and the Hugging Face hub cannot be reached: "
                    f"{str(error).splitlines()[0]}",
                    "check the spelling, the network and HF_ENDPOINT; or get the files elsewhere (hf download "
                    f"{name} --repo-type dataset --local-dir FOLDER) and give FOLDER",
                ) from error
            files = [one.relative_to(folder).as_posix() for one in folder.rglob("*")]
        if layout(files):
            return Repository(name, revision), files
    raise UserError(f"{name} has no {', '.join(SUFFIXES)} file on the hub", "give another data set")


def divided(rows: Sequence[R], heldout: float, source: object) -> dict[Split, list[R]]:
    """Hold out a share of the questions, so that no question is in both splits.

    Raises ``UserError`` if no question is left to train on.
    """
    keys = sorted({row.key for row in rows})
    held_out = set(keys[: max(1, round(len(keys) * heldout))])
    train = [row for row in rows if row.key not in held_out]
    if not train:
        raise UserError(
            f"{source} has too few questions ({len(keys)}) to hold some of them out",
            "give more, or a lower dataset.heldout",
        )
    return {"train": train, "heldout": [row for row in rows if row.key in held_out]}
