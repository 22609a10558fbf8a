"""Preferences on this machine: prepared sets by name, and anybody's JSONL files; draws from either.

A prepared set is a folder with ``train.jsonl``, a pair a line, and a manifest. Nothing of it is held out: preferences
are only trained on. A set is never in memory as a whole.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coterie.config.folders import expanded
from coterie.config.home import new_folder, sha256
from coterie.datasets.preferences import PREFERENCE_SETS, PreferenceRow, PreferenceSet
from coterie.datasets.prepared import (
    MANIFEST,
    Manifest,
    PreparedSplit,
    folder_of,
    is_prepared,
    is_unchanged,
    read_manifest,
    split_file,
)
from coterie.datasets.preparing import REPEATED
from coterie.datasets.reading import count_lines, read_places, read_rows
from coterie.datasets.rows import LeftOut
from coterie.datasets.splits import source_files
from coterie.errors import UserError, did_you_mean
from coterie.progress import Progress

JSONL = ".jsonl"


def prepare_preferences(
    data_set: PreferenceSet,
    sources: Sequence[Path],
    target: Path,
    progress: Progress,
    *,
    origin: str = "",
) -> Manifest:
    """Write the pairs of upstream's files (or folders of them) to ``target``, each once.

    Raises ``UserError`` for a broken row (by file and line), and if no pair is left.
    """
    files, reasons, kept = list(source_files(sources)), Counter[str](), 0
    seen: set[str] = set()
    with new_folder(target) as folder:
        file = split_file(folder, "train")
        with file.open("w", encoding="utf-8", newline="\n") as out:
            rows = (row for one in files for row in read_rows(one, data_set.row, progress))
            for pair in (pair for row in rows for pair in row.pairs()):
                if isinstance(pair, LeftOut):
                    reasons[pair.reason] += 1
                elif pair.key in seen:
                    reasons[REPEATED] += 1
                else:
                    seen.add(pair.key)
                    out.write(json.dumps(pair.line(), ensure_ascii=False) + "\n")
                    kept += 1
        if not kept:
            why = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
            raise UserError(f"no pair is left of {data_set.name} ({why})", "give more rows")
        manifest = Manifest(
            name=data_set.name,
            licence=data_set.licence,
            licence_url=data_set.licence_url,
            citation=data_set.citation,
            source=origin or ", ".join(one.name for one in files),
            split="all pairs are for training",
            prepared=datetime.now(UTC).date().isoformat(),
            train=PreparedSplit(rows=kept, dropped=reasons.total(), sha256=sha256(file)),
            reasons=dict(reasons.most_common()),
        )
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")
    return manifest


@dataclass(frozen=True, slots=True)
class Preferences:
    """Pairs by the name of a set, or by the path of a JSONL file in TRL's conversational preference format."""

    source: str

    def __post_init__(self) -> None:
        if self.source not in PREFERENCE_SETS and not self.source.endswith(JSONL):
            raise UserError(
                f"there is no set of preferences {self.source!r}",
                f"{did_you_mean(self.source, PREFERENCE_SETS)}known sets: {', '.join(PREFERENCE_SETS)} "
                f"(`coterie data list`); or give the path of a {JSONL} file",
            )

    @property
    def name(self) -> str:
        """A short name: that of the set, or of the file."""
        return Path(self.source).name

    def find(self) -> Path:
        """Where the pairs are. Raises ``UserError`` if they are not there, or have changed since they were prepared."""
        if self.source not in PREFERENCE_SETS:
            file = expanded(self.source)
            if not file.is_file():
                raise UserError(f"there is no file {file}", "check the path")
            return file
        data_set = PREFERENCE_SETS[self.source]
        folder = folder_of(data_set)
        how = (
            f"`coterie data download {data_set.name}`, or `coterie data prepare {data_set.name} "
            "--from FILE...` with upstream's files"
        )
        if not is_prepared(data_set):
            raise UserError(f"{data_set.name} is not prepared on this machine", how)
        if not is_unchanged(folder, read_manifest(folder)):
            raise UserError(f"{folder} has changed since it was prepared", f"do it again: {how}")
        return split_file(folder, "train")

    def content(self) -> str:
        """A checksum of the pairs; ``missing`` if they are not there."""
        if self.source not in PREFERENCE_SETS:
            file = expanded(self.source)
            return sha256(file) if file.is_file() else "missing"
        data_set = PREFERENCE_SETS[self.source]
        known = is_prepared(data_set)
        return read_manifest(folder_of(data_set)).splits["train"].sha256 if known else "missing"

    def draw(self, most: int, seed: str) -> list[PreferenceRow]:
        """So many pairs without replacement, or all, in an order drawn by the seed.

        Raises ``UserError`` as :meth:`find`, for a file without pairs, and with the line of a broken one.
        """
        file = self.find()
        total = count_lines(file)
        if not total:
            raise UserError(f"{file} is empty", "give a file with pairs")
        places = random.Random(seed).sample(range(total), min(most, total))
        found = read_places(file, PreferenceRow, set(places))
        return [found[place] for place in places]
