"""Preferences to train on: a dialogue, and two replies of which one is better.

The form of a row is TRL's conversational preference format, with an id: ``{"id", "prompt": [{"role", "content"}, ...],
"chosen": [{"role": "assistant", "content"}], "rejected": [...]}``. Published rows are converted by a type for each
set, which says what pairs a row makes. To add a set, write the type of its rows and an entry here.
"""

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coterie.config.folders import expanded
from coterie.config.home import sha256
from coterie.config.plain import wrong_at
from coterie.datasets.catalogue import Repository
from coterie.datasets.files import SUFFIXES, read_rows
from coterie.datasets.load import download
from coterie.datasets.rows import LeftOut, SetRow, Text, question_key
from coterie.errors import UserError, did_you_mean

ChatRole = Literal["system", "user", "assistant"]
Score = Annotated[float, Field(allow_inf_nan=False)]


class PreferenceRow(SetRow):
    """A dialogue that ends with a turn of the person, and the better and the worse reply."""

    id: Text = "?"
    messages: tuple[tuple[ChatRole, Text], ...] = Field(min_length=1)
    """(role, text) of each turn before the reply."""
    chosen: Text
    rejected: Text

    @property
    def key(self) -> str:
        """A short hash of all that is said, the id left out."""
        said = json.dumps((self.messages, self.chosen, self.rejected))
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def line(self) -> dict[str, object]:
        return {
            "id": self.id,
            "prompt": [{"role": role, "content": text} for role, text in self.messages],
            "chosen": [{"role": "assistant", "content": self.chosen}],
            "rejected": [{"role": "assistant", "content": self.rejected}],
        }

    @model_validator(mode="before")
    @classmethod
    def _from_line(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "prompt" not in value:
            return value
        known = {"id": value["id"]} if "id" in value else {}
        prompt = value["prompt"]
        if not isinstance(prompt, list):
            raise ValueError("prompt must be a list of messages")
        return known | {
            "messages": [_message(one, f"prompt.{place}") for place, one in enumerate(prompt)],
            **{side: _reply(value.get(side), side) for side in ("chosen", "rejected")},
        }

    @model_validator(mode="after")
    def _alternating(self) -> "PreferenceRow":
        turns = self.messages[self.messages[0][0] == "system" :]
        for place, (role, _) in enumerate(turns):
            expected = "assistant" if place % 2 else "user"
            if role != expected:
                raise ValueError(f"turn {place + 1} is of {role}, not of {expected}")
        if len(turns) % 2 == 0:
            raise ValueError("the dialogue before the replies doesn't end with a turn of the user")
        if self.chosen.strip() == self.rejected.strip():
            raise ValueError("chosen and rejected are equal")
        return self


def _message(value: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(value, Mapping) or not {"role", "content"} <= value.keys():
        raise ValueError(f"{where} must be an object with role and content")
    return value["role"], value["content"]


def _reply(value: Any, where: str) -> Any:
    if not isinstance(value, list) or len(value) != 1:
        raise ValueError(f"{where} must be a list of one message, the reply")
    role, text = _message(value[0], where)
    if role != "assistant":
        raise ValueError(f"{where} is of {role}, not of assistant")
    return text


class UpstreamPreferences(SetRow, ABC):
    """A row of upstream's, which makes pairs."""

    @abstractmethod
    def pairs(self) -> Iterator[PreferenceRow | LeftOut]:
        """The pairs, and why there are none, or fewer."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Said(_Strict):
    """A turn of a trajectory of UltraInteract."""

    speaker: Literal["user", "assistant"] = Field(alias="from")
    value: str


class UltraInteractRow(UpstreamPreferences):
    """UltraInteract, its pairs: an interaction, and a right and a wrong next action."""

    columns: ClassVar[tuple[str, ...] | None] = ("id", "trajectory", "chosen", "rejected")

    id: Text
    trajectory: tuple[Said, ...] = Field(min_length=1)
    chosen: str
    rejected: str

    def pairs(self) -> Iterator[PreferenceRow | LeftOut]:
        said = tuple((turn.speaker, turn.value) for turn in self.trajectory)
        yield _pair(self.id, said, self.chosen, self.rejected)


class Completion(_Strict):
    """A reply that a model judged."""

    response: str
    overall_score: Score | None = None


class UltraFeedbackRow(UpstreamPreferences):
    """UltraFeedback: an instruction, and replies of several models, each with an overall score."""

    columns: ClassVar[tuple[str, ...] | None] = ("instruction", "completions")

    instruction: str
    completions: tuple[Completion, ...]

    def pairs(self) -> Iterator[PreferenceRow | LeftOut]:
        """Every two replies with different scores, the one with the higher score chosen."""
        scored = [(one, one.overall_score) for one in self.completions]
        known = [(place, one, s) for place, (one, s) in enumerate(scored) if s is not None]
        found, asked = False, question_key(self.instruction)
        for two in combinations(known, 2):
            (better, chosen, high), (worse, rejected, low) = sorted(two, key=lambda one: -one[2])
            if high > low:
                found = True
                said: tuple[tuple[ChatRole, str], ...] = (("user", self.instruction),)
                id_ = f"{asked}-{better}-{worse}"
                yield _pair(id_, said, chosen.response, rejected.response)
        if not found:
            yield LeftOut("has no two replies with different scores", asked)


def _pair(
    id_: str, messages: tuple[tuple[ChatRole, str], ...], chosen: str, rejected: str
) -> PreferenceRow | LeftOut:
    try:
        return PreferenceRow(id=id_, messages=messages, chosen=chosen, rejected=rejected)
    except ValidationError as error:
        return LeftOut(wrong_at(error.errors()[0]), id_)


@dataclass(frozen=True, slots=True)
class PreferenceSet:
    """One set of preferences; all its pairs are for training."""

    name: str
    what: str
    row: type[UpstreamPreferences]
    licence: str
    train: int
    """Number of published rows."""
    repo: Repository

    def files(self) -> list[Path]:
        """Download the files into the hub's cache, if they are not there."""
        return [download(self.name, self.repo, file) for file in self.repo.train]

    def pairs(self, left_out: Counter[str] | None = None) -> Iterator[PreferenceRow]:
        """Yield each distinct pair of the hub's files once, and count in ``left_out`` what makes none."""
        reasons, seen = Counter[str]() if left_out is None else left_out, set[str]()
        for file in self.files():
            for row in read_rows(file, self.row):
                for pair in row.pairs():
                    if isinstance(pair, LeftOut):
                        reasons[pair.reason] += 1
                    elif pair.key in seen:
                        reasons["is a duplicate"] += 1
                    else:
                        seen.add(pair.key)
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


@dataclass(frozen=True, slots=True)
class Preferences:
    """Pairs by the name of a set, or by the path of a file in TRL's conversational preference format."""

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
        """A short name: that of the set, or of the file."""
        return Path(self.source).name

    def files(self) -> list[Path]:
        """Return the files of the pairs. Raises ``UserError`` if they are not there and can't be downloaded."""
        if self.source in PREFERENCE_SETS:
            return PREFERENCE_SETS[self.source].files()
        file = expanded(self.source)
        if not file.is_file():
            raise UserError(f"there is no file {file}", "check the path")
        return [file]

    def pairs(self) -> Iterator[PreferenceRow]:
        """Yield all pairs. Raises ``UserError`` with the line of a broken one, and if they are not there."""
        if self.source in PREFERENCE_SETS:
            return PREFERENCE_SETS[self.source].pairs()
        return read_rows(expanded(self.source), PreferenceRow)

    def content(self) -> str:
        """Return the revision of a set, or the checksum of a file; ``missing`` if it is not there."""
        if self.source in PREFERENCE_SETS:
            repo = PREFERENCE_SETS[self.source].repo
            return f"{repo.name}@{repo.revision}"
        file = expanded(self.source)
        return sha256(file) if file.is_file() else "missing"

    def draw(self, most: int, seed: str) -> list[PreferenceRow]:
        """Draw ``most`` pairs without replacement, or all, in an order drawn by the seed.

        Reads the pairs twice, so that they are never in memory as a whole. Raises ``UserError`` as :meth:`pairs`.
        """
        total = sum(1 for _ in self.pairs())
        places = random.Random(seed).sample(range(total), min(most, total))
        wanted = set(places)
        found = {place: pair for place, pair in enumerate(self.pairs()) if place in wanted}
        return [found[place] for place in places]
