"""Makes the prepared form of a data set from upstream's files, whole or not at all.

No question is in both splits: repeated rows are dropped, and so are training rows whose question is held out or
belongs to a set that must be left out, and rows that can't be asked.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coterie.config.home import new_folder, sha256
from coterie.datasets.catalogue import SPLITS, DataSet, Split, find
from coterie.datasets.prepared import (
    MANIFEST,
    Manifest,
    PreparedSplit,
    folder_of,
    is_prepared,
    split_file,
)
from coterie.datasets.reading import read_rows
from coterie.datasets.rows import LeftOut, QuestionRow, question_key
from coterie.datasets.splits import Division, division, source_files, split_of
from coterie.errors import UserError
from coterie.progress import Progress, Silent

REPEATED = "is there before"
HELD_OUT = "is held out"
UNUSABLE = "can't be a task"

Examine = Callable[[Sequence[Path]], Mapping[Path, Collection[int]]]
"""Of files, the numbers of the rows (the first is 1) that nothing can be done with."""


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
    plan = division(data_set, files, heldout, seed)
    with new_folder(target) as folder:
        bad = examine(files) if examine is not None else {}
        rows = _assigned(data_set, plan, progress, bad)
        written, reasons, lacks = _write(rows, folder, left_out, data_set)
        manifest = Manifest(
            name=data_set.name,
            licence=data_set.licence,
            licence_url=data_set.licence_url,
            citation=data_set.citation,
            source=origin or ", ".join(file.name for file in files),
            split=_rule(data_set, plan),
            prepared=datetime.now(UTC).date().isoformat(),
            train=written.get("train"),
            heldout=written["heldout"],
            reasons=dict(reasons.most_common()),
            lacks=dict(lacks.most_common()),
        )
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")
    return manifest


def _rule(data_set: DataSet, plan: Division) -> str:
    """How rows were divided and which were left out, in words."""
    rule = plan.rule
    for split in SPLITS:
        if (upstream := data_set.upstream(split)) is not None and upstream.first is not None:
            rule += f"; {upstream.name} is its first {upstream.first:,} rows"
    if data_set.without is not None:
        rule += f"; training questions that {data_set.without} has are left out"
    return rule


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


@dataclass(frozen=True, slots=True)
class _Assigned:
    """What a source has, and what becomes of it."""

    split: Split
    row: QuestionRow | None
    flaw: str
    """Why it is left out; empty if it is not, as far as can be told from the row."""

    def asked_in(self, questions: frozenset[str]) -> bool:
        """Whether it is for training, and its question is one of these."""
        if self.row is None or self.split != "train":
            return False
        return question_key(self.row.question) in questions

    def repeated(self, seen: Mapping[str, Split]) -> str:
        """Why it is left out beside the rows before it; empty if it is not."""
        if self.row is None or self.row.key not in seen:
            return ""
        return REPEATED if seen[self.row.key] == self.split else HELD_OUT


def _assigned(
    data_set: DataSet,
    plan: Division,
    progress: Progress,
    bad: Mapping[Path, Collection[int]],
) -> Iterator[_Assigned]:
    """Each row with its split."""
    if data_set.join is not None:
        for joined in data_set.join([file for _, file in plan.files], progress):
            if isinstance(joined, LeftOut):
                yield _Assigned("train", None, joined.reason)
            else:
                yield _Assigned(plan.drawn(joined.key), joined, joined.flaw)
        return
    taken = Counter[Split | None]()
    for split, file in plan.files:
        told = split or split_of(file)
        first = data_set.first(told) if told else None
        for number, row in enumerate(read_rows(file, data_set.row, progress), 1):
            if taken[told] == first:
                break
            taken[told] += 1
            flaw = row.flaw or (UNUSABLE if number in bad.get(file, ()) else "")
            yield _Assigned(split or plan.drawn(row.key), row, flaw)


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
            known = f"is a question of {data_set.without}" if one.asked_in(left_out) else ""
            reason = one.flaw or known or one.repeated(seen)
            if one.row is None or reason:
                dropped[one.split] += 1
                reasons[reason] += 1
                continue
            seen[one.row.key] = one.split
            kept[one.split] += 1
            opened[one.split].write(one.row.model_dump_json() + "\n")
            lacks.update([one.row.lack] if one.row.lack else [])
    _check_kept(kept, dropped, reasons)
    written = {
        split: PreparedSplit(
            rows=kept[split], dropped=dropped[split], sha256=sha256(split_file(folder, split))
        )
        for split in data_set.splits
    }
    return written, reasons, lacks


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
