"""Rows divided by how often a policy solves them: those worth training on, too easy ones, too hard ones.

Reinforcement learning learns nothing from a task that is always or never solved (AFM, arXiv 2508.13167, keeps web
tasks that a model without tools solves at most 3 times in 10, and drops code tasks that it solves 8 times in 8).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from coterie.config.folders import whole_folder
from coterie.datasets.data_set import Split
from coterie.datasets.prepared import split_file
from coterie.datasets.rows import QuestionRow
from coterie.errors import UserError

Place = Literal["kept", "too_easy", "too_hard", "not_played"]


@dataclass(frozen=True, slots=True)
class RateRule:
    """Which rates are kept: both ends are."""

    least: float
    most: float
    unplayed: Literal["kept", "not_played"] = "not_played"
    """Where rows go of which nothing is known."""

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most <= 1:
            raise UserError(
                f"no rate is at least {self.least:g} and at most {self.most:g}",
                "give shares from 0 to 1, the lower one first",
            )

    def place(self, rate: float | None) -> Place:
        """Where a row with this rate goes."""
        if rate is None:
            return self.unplayed
        return "too_hard" if rate < self.least else "too_easy" if rate > self.most else "kept"


@dataclass(slots=True)
class Divided:
    """The rows of a split, each in one place, in their order."""

    rows: dict[Place, list[QuestionRow]] = field(
        default_factory=lambda: {"kept": [], "too_easy": [], "too_hard": [], "not_played": []}
    )


def divided_by_rate(rated: Iterable[tuple[QuestionRow, float | None]], rule: RateRule) -> Divided:
    """Rows with their rates (``None`` for one that was not played), divided."""
    found = Divided()
    for row, rate in rated:
        found.rows[rule.place(rate)].append(row)
    return found


def write_divided(
    folder: Path,
    found: Divided,
    split: Split,
    others: Sequence[tuple[Split, Sequence[QuestionRow]]],
) -> None:
    """Write a new folder that ``dataset.source`` reads: the kept rows as those of the split, the other splits whole;
    beside them ``too_easy.jsonl`` and ``too_hard.jsonl``. All of it, or nothing.

    Raises ``UserError`` if no row is kept, and for a folder that is there.
    """
    if not found.rows["kept"]:
        counts = ", ".join(
            f"{len(rows)} {place.replace('_', ' ')}" for place, rows in found.rows.items()
        )
        raise UserError(f"no row is kept: {counts}", "allow other rates (--least, --most)")
    with whole_folder(folder) as part:
        _write(split_file(part, split), found.rows["kept"])
        for other, rows in others:
            _write(split_file(part, other), rows)
        _write(part / "too_easy.jsonl", found.rows["too_easy"])
        _write(part / "too_hard.jsonl", found.rows["too_hard"])


def _write(file: Path, rows: Iterable[QuestionRow]) -> None:
    text = "".join(f"{row.model_dump_json()}\n" for row in rows)
    file.write_text(text, encoding="utf-8", newline="\n")
