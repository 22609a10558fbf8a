"""Published sets of preferences, and preferences to mix into other training data.

To add a set, write a type for its rows, whose ``pairs`` yields the pairs of a row, and an entry here.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from coterie.config.folders import expanded, sha256
from coterie.config.settings import key
from coterie.datasets.catalogue import Repository, Split
from coterie.datasets.conversations import (
    FileSettings,
    Preference,
    Preferences,
    parse_preference,
)
from coterie.datasets.files import SUFFIXES, read_rows
from coterie.datasets.load import DatasetSettings, download
from coterie.datasets.rows import SetRow, Text, question_key
from coterie.datasets.sources import divided
from coterie.errors import UserError, did_you_mean

Score = Annotated[float, Field(allow_inf_nan=False)]
FORMAT = "preference with a prompt"
Raw = tuple[str, dict[str, Any]]
"""Name of a pair, and the pair in the format :data:`FORMAT`."""


class PublishedRow(SetRow, ABC):
    """Row of a published set, from which pairs are made."""

    @abstractmethod
    def pairs(self) -> Iterator[Raw]:
        """Yield the pairs of the row."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class UltraInteractTurn(_Strict):
    """Turn of a trajectory of UltraInteract."""

    speaker: Literal["user", "assistant"] = Field(alias="from")
    value: str


class UltraInteractRow(PublishedRow):
    """Pair of UltraInteract: an interaction, and a right and a wrong next action."""

    columns: ClassVar[tuple[str, ...] | None] = ("id", "trajectory", "chosen", "rejected")

    id: Text
    trajectory: tuple[UltraInteractTurn, ...] = Field(min_length=1)
    chosen: str
    rejected: str

    def pairs(self) -> Iterator[Raw]:
        prompt = [{"role": one.speaker, "content": one.value} for one in self.trajectory]
        yield self.id, {"prompt": prompt, "chosen": self.chosen, "rejected": self.rejected}


class Completion(_Strict):
    """Reply with a score by a judge model."""

    response: str
    overall_score: Score | None = None


class UltraFeedbackRow(PublishedRow):
    """Row of UltraFeedback: an instruction, and replies of several models, each with an overall score."""

    columns: ClassVar[tuple[str, ...] | None] = ("instruction", "completions")

    instruction: str
    completions: tuple[Completion, ...]

    def pairs(self) -> Iterator[Raw]:
        """Yield all pairs of replies with different scores; the reply with the higher score is chosen."""
        scored = [(one, one.overall_score) for one in self.completions]
        known = [(place, one, s) for place, (one, s) in enumerate(scored) if s is not None]
        prompt = [{"role": "user", "content": self.instruction}]
        for two in combinations(known, 2):
            (better, chosen, high), (worse, rejected, low) = sorted(two, key=lambda one: -one[2])
            if high > low:
                name = f"{question_key(self.instruction)}-{better}-{worse}"
                sides = {"chosen": chosen.response, "rejected": rejected.response}
                yield name, {"prompt": prompt, **sides}


@dataclass(frozen=True, slots=True)
class PreferenceSet:
    """Published set, whose pairs are all for training."""

    name: str
    what: str
    row: type[PublishedRow]
    licence: str
    train: int
    """Number of published rows."""
    repo: Repository

    def files(self) -> list[Path]:
        """Download the files into the hub's cache, if they are not there."""
        return [download(self.name, self.repo, file) for file in self.repo.train]

    def pairs(self, left_out: Counter[str] | None = None) -> Iterator[Preference]:
        """Yield each distinct pair of the hub's files once. Count other rows in ``left_out`` by reason."""
        reasons, seen = Counter[str]() if left_out is None else left_out, set[str]()
        for file in self.files():
            for row in read_rows(file, self.row):
                pairs = list(row.pairs())
                reasons["no two replies with different scores"] += not pairs
                for name, raw in pairs:
                    try:
                        pair = parse_preference(raw, FORMAT, f"{self.name}/{name}")
                    except ValueError as error:
                        reasons[str(error)] += 1
                        continue
                    if pair.id in seen:
                        reasons["duplicates"] += 1
                        continue
                    seen.add(pair.id)
                    yield pair


_FEEDBACK = ("evol_instruct", "false_qa", "flan", "sharegpt", "truthful_qa", "ultrachat")
PREFERENCE_SETS: Mapping[str, PreferenceSet] = MappingProxyType(
    {
        "ultra_interact": PreferenceSet(
            "ultra_interact",
            "preferences: the next action in reasoning",
            UltraInteractRow,
            "MIT",
            219522,
            Repository(
                "openbmb/UltraInteract_pair",
                "b72549d02a631381d1d270375898fb87aa9201bc",
                ("0000_pair.parquet",),
            ),
        ),
        "ultra_feedback": PreferenceSet(
            "ultra_feedback",
            "preferences: replies with unequal scores",
            UltraFeedbackRow,
            "MIT",
            63967,
            Repository(
                "openbmb/UltraFeedback",
                "40b436560ca83a8dba36114c22ab3c66e43f6d5e",
                tuple(f"{source}.jsonl" for source in _FEEDBACK),
            ),
        ),
    }
)


class HeldOutSettings(DatasetSettings):
    """Settings of a published set."""

    heldout: float = key(0.1, "Share of the rows that is held out.", gt=0, lt=1)


class PublishedPreferences:
    """A published set of preferences as a data set of tasks."""

    settings_type = HeldOutSettings
    row = Preference

    def __init__(self, settings: HeldOutSettings) -> None:
        self.settings, self.set = settings, PREFERENCE_SETS[str(settings.name)]
        self.left_out = Counter[str]()

    def rows(self, split: Split) -> list[Preference]:
        """Return the pairs of a split."""
        return self._splits[split]

    def content(self) -> str:
        repo = self.set.repo
        return f"{repo.name}@{repo.revision} {self.settings.heldout:g}"

    @cached_property
    def _splits(self) -> dict[Split, list[Preference]]:
        pairs = list(self.set.pairs(self.left_out))
        return divided(pairs, self.settings.heldout, self.set.name)


@dataclass(frozen=True, slots=True)
class MixedPreferences:
    """Pairs of a published set (by its name) or of a file (by its path)."""

    source: str

    def __post_init__(self) -> None:
        if self.source not in PREFERENCE_SETS and not self.source.endswith(SUFFIXES):
            raise UserError(
                f"there is no set of preferences {self.source!r}",
                f"{did_you_mean(self.source, PREFERENCE_SETS)}known sets: {', '.join(PREFERENCE_SETS)} "
                f"(`coterie data list`); or give the path of a file ({', '.join(SUFFIXES)})",
            )

    @property
    def name(self) -> str:
        """Name of the set, or of the file without its folder."""
        return Path(self.source).name

    def files(self) -> list[Path]:
        """Return the files of the pairs. Raises ``UserError`` if they are missing and cannot be downloaded."""
        if self.source in PREFERENCE_SETS:
            return PREFERENCE_SETS[self.source].files()
        file = expanded(self.source)
        if not file.is_file():
            raise UserError(f"there is no file {file}", "check the path")
        return [file]

    def pairs(self) -> Iterator[Preference]:
        """Yield all pairs. Raises ``UserError`` with the lines of invalid rows."""
        if self.source in PREFERENCE_SETS:
            return PREFERENCE_SETS[self.source].pairs()
        rows = Preferences(FileSettings(name=self.name)).read_file(expanded(self.source))
        return (row.model_copy(update={"place": f"{self.name}, {row.place}"}) for row in rows)  # type: ignore[misc]

    def content(self) -> str:
        """Return the revision of a set, or the checksum of a file; ``missing`` if there is no file."""
        if self.source in PREFERENCE_SETS:
            repo = PREFERENCE_SETS[self.source].repo
            return f"{repo.name}@{repo.revision}"
        file = expanded(self.source)
        return sha256(file) if file.is_file() else "missing"

    def draw(self, most: int, seed: str) -> list[Preference]:
        """Draw at most ``most`` pairs without replacement, in a random order.

        Reads the pairs twice, so that a large set is never in memory as a whole.
        """
        total = sum(1 for _ in self.pairs())
        places = random.Random(seed).sample(range(total), min(most, total))
        chosen = set(places)
        by_place = {place: pair for place, pair in enumerate(self.pairs()) if place in chosen}
        return [by_place[place] for place in places]
