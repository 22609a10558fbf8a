"""Settings of environments, and which rows of a data set become their tasks."""

import hashlib
import random
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeVar

from coterie.config.folders import expanded
from coterie.config.settings import Settings, key
from coterie.datasets.catalogue import Split
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.environments.formats import read_pool
from coterie.record.turn import digest
from coterie.tools.sandbox.results import Mode


class EnvironmentSettings(Settings):
    """Base class of environment settings. An environment with more keys sets ``settings_type`` to a subclass."""

    main: ClassVar[str] = "name"

    name: str | None = key(
        None,
        "The environment: `exchange`, `persona`, `problems`, `sums`, `question`, `debate`, `information_exchange`, "
        "`backend_programming`, `plan_ground`, `shop`, `python_maths`, `babyai`, `encyclopedia`, `mhqa`, `web`, "
        "`code`, `code_maths`, or your own (package.module:NAME, path/file.py:NAME). The default depends on the "
        "data set.",
    )

    def identity(self) -> str:
        """Return a hash of the settings that results depend on, independent of the paths of files."""
        return digest(self.model_dump_json(exclude={"name"}))


class FormatSettings(EnvironmentSettings):
    """Settings of an environment whose prompts may request a format."""

    format_pool_file: str | None = key(
        None,
        "A file of formats (JSONL or YAML) instead of the packaged pool. `coterie data prompt-pool` "
        "writes one. Debates on mathematics have no packaged pool.",
        source="Optima section 3.1 and appendix H.3",
    )

    def pool(self, packaged: tuple[str, ...]) -> tuple[str, ...]:
        file = self.format_pool_file
        return packaged if file is None else tuple(read_pool(expanded(file)))

    def identity(self) -> str:
        """Return a hash of the settings and of the formats in the file, not of its path."""
        pool = hashlib.sha256("\n".join(self.pool(())).encode()).hexdigest()
        return digest(self.model_dump_json(exclude={"name", "format_pool_file"}), pool)


class TalkSettings(FormatSettings):
    """Settings of agents that discuss the questions of a data set."""

    agents: int = key(
        2,
        "Number of agents: 2, or 3 (a context is split into three; a debate has a second critic).",
        source="Optima: 2; 3 in table 7",
        ge=2,
        le=3,
    )
    turns: int = key(10, "Maximum turns of all agents together.", source="Optima: 10", ge=1)


class CodingSettings(EnvironmentSettings):
    """Settings of an agent that writes functions for a user."""

    turns: int = key(10, "Maximum turns of the agent.", source="ColBench: 10", ge=1)
    grading: Mode = key(
        "module",
        "`module` runs code as a module. `legacy` runs it like SWEET-RL's grader, where answers with helpers, "
        "imports at the top or recursion fail, for comparison with published numbers.",
        source="SWEET-RL's code: legacy",
    )
    on_leak: Literal["keep", "fail", "drop"] = key(
        "keep",
        "Handling of dialogues in which the user quotes the reference: `keep` counts them (`leaks`), `fail` scores "
        "them 0, `drop` gives them no score, so that they are not trained on.",
    )
    tolerance: float = key(0.0, "Relative tolerance for equality of floats; 0 is exact.", ge=0)
    strict: bool = key(
        False,
        "Compare the types of results too. Otherwise 1, 1.0 and True are equal, and an iterator equals the list "
        "of its items.",
        source="SWEET-RL's code: Python's ==",
    )


MicroSplit = Literal["train", "heldout", "corpus"]
"""``corpus`` is the pre-training data of the micro-world's model."""
SPLIT_SHARES: dict[MicroSplit, range] = {
    "train": range(30),
    "heldout": range(30, 55),
    "corpus": range(55, 100),
}


def split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def split_of_key(key: str) -> MicroSplit:
    residue = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % 100
    return next(name for name, residues in SPLIT_SHARES.items() if residue in residues)


def check_split(split: str) -> None:
    """Raise ``ValueError`` for an unknown split."""
    if split not in SPLIT_SHARES:
        raise ValueError(f"unknown split {split!r}: choose one of {', '.join(SPLIT_SHARES)}")


Row = TypeVar("Row")


def draw(
    rows: Rows, split: Split, count: int, seed: int, after: Sequence[int] = ()
) -> list[QuestionRow]:
    """Return the first held-out rows, or a draw of training rows (see :func:`draws`)."""
    all_rows = rows.split(split)
    return all_rows[:count] if split == "heldout" else draws(all_rows, (*after, count), seed)[-1]


def draws(rows: Sequence[Row], counts: Sequence[int], seed: int) -> list[list[Row]]:
    """Return the rows of successive draws: one cursor over all rows, shuffled by ``seed``.

    Rows are shuffled again after all have been drawn. A draw across two shuffles contains no row twice, so it has at
    most ``len(rows)`` rows; its rows move to the end of the new order.
    """
    remaining: list[int] = []
    epochs, result = 0, []
    for count in counts:
        indices = remaining[:count]
        remaining = remaining[len(indices) :]
        more = min(count, len(rows)) - len(indices)
        if more > 0:
            fresh = list(range(len(rows)))
            random.Random(f"order/{seed}/{epochs}").shuffle(fresh)
            epochs += 1
            present = set(indices)
            remaining = sorted(fresh, key=present.__contains__)
            indices, remaining = indices + remaining[:more], remaining[more:]
        result.append([rows[index] for index in indices])
    return result
