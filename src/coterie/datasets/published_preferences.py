"""Published sets of preferences by name, and draws of pairs from them or from files."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from coterie.config.folders import expanded, sha256
from coterie.datasets.catalogue import PREFERENCE_SETS, DataSet, Split
from coterie.datasets.conversations import Preference, Preferences, parse_preference
from coterie.datasets.files import SUFFIXES, numbered
from coterie.datasets.load import hub_files
from coterie.datasets.question_files import FileSettings, HeldOutSettings
from coterie.datasets.rows import Raw, question_key
from coterie.errors import UserError, did_you_mean

Pairs = Iterator[tuple[str, dict[str, Any]]]
"""Names of pairs, and pairs with the columns ``PREFERENCE``."""
PREFERENCE = ("prompt", "chosen", "rejected")


def interaction_pairs(row: Raw) -> Pairs:
    """Yield the pair of a row of UltraInteract: an interaction, and a right and a wrong next action."""
    sides = {"chosen": row["chosen"], "rejected": row["rejected"]}
    yield row["id"], {"prompt": row["trajectory"], **sides}


def feedback_pairs(row: Raw) -> Pairs:
    """Yield all pairs of replies of a row of UltraFeedback whose overall scores differ."""
    replies = enumerate(row["completions"])
    scored = [(n, reply["response"], reply.get("overall_score")) for n, reply in replies]
    prompt = [{"role": "user", "content": row["instruction"]}]
    # Replies without a score or with equal scores express no preference.
    for pair in combinations([reply for reply in scored if reply[2] is not None], 2):
        (better, chosen, high), (worse, rejected, low) = sorted(pair, key=lambda reply: -reply[2])
        if high > low:
            name = f"{question_key(row['instruction'])}-{better}-{worse}"
            yield name, {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def published_pairs(
    data_set: DataSet, left_out: Counter[str] | None = None
) -> Iterator[Preference]:
    """Yield each distinct pair of the hub's files once. Count other rows in ``left_out`` by reason."""
    reasons, seen = Counter[str]() if left_out is None else left_out, set[str]()
    for _, file in hub_files(data_set):
        for position, row in numbered(file):
            try:
                pairs = list(data_set.row(row))
            except (KeyError, TypeError, AttributeError) as error:
                problem = f"{file}, {position} is broken: {type(error).__name__} {error}"
                raise UserError(problem, "download it again") from error
            reasons["no two replies with different scores"] += not pairs
            for name, raw in pairs:
                # A published pair that cannot be trained on is counted instead of failing the
                # command.
                try:
                    pair = parse_preference(raw, PREFERENCE, f"{data_set.name}/{name}")
                except ValueError as error:
                    reasons[str(error)] += 1
                    continue
                reasons["duplicates"] += pair.id in seen
                if pair.id not in seen:
                    seen.add(pair.id)
                    yield pair


class PublishedPreferences(Preferences):
    """A published set of preferences as a data set of tasks."""

    settings_type = HeldOutSettings

    def content(self) -> str:
        return f"{MixedPreferences(self.settings.name).content()} {self.settings.heldout:g}"

    def read_splits(self) -> tuple[dict[Split, list[Preference]], bool]:
        pairs = published_pairs(PREFERENCE_SETS[self.settings.name], self.left_out)
        return {"train": list(pairs)}, False


@dataclass(frozen=True, slots=True)
class MixedPreferences:
    """Pairs of a published set (by its name) or of a file (by its path)."""

    source: str

    def __post_init__(self) -> None:
        if self.source not in PREFERENCE_SETS and not self.source.endswith(SUFFIXES):
            fix = f"{did_you_mean(self.source, PREFERENCE_SETS)}known sets: {', '.join(PREFERENCE_SETS)}"
            fix += f"; or give the path of a file ({', '.join(SUFFIXES)})"
            raise UserError(f"there is no set of preferences {self.source!r}", fix)

    @property
    def name(self) -> str:
        return Path(self.source).name

    def files(self) -> list[Path]:
        if self.source in PREFERENCE_SETS:
            return [file for _, file in hub_files(PREFERENCE_SETS[self.source])]
        file = expanded(self.source)
        if not file.is_file():
            raise UserError(f"there is no file {file}", "check the path")
        return [file]

    def pairs(self) -> Iterator[Preference]:
        if self.source in PREFERENCE_SETS:
            return published_pairs(PREFERENCE_SETS[self.source])
        rows = Preferences(FileSettings(name=self.name)).read_file(expanded(self.source))
        return (row.model_copy(update={"origin": f"{self.name}, {row.origin}"}) for row in rows)  # type: ignore[misc]

    def content(self) -> str:
        """Return the revision of a set, or the checksum of a file; ``missing`` if there is no file."""
        if self.source in PREFERENCE_SETS:
            (repo,) = PREFERENCE_SETS[self.source].repos
            return f"{repo.name}@{repo.revision}"
        file = expanded(self.source)
        return sha256(file) if file.is_file() else "missing"

    def draw(self, limit: int, seed: str) -> list[Preference]:
        """Draw at most ``limit`` pairs without replacement, in a random order.

        Reads the pairs twice, so that a large set is never in memory as a whole.
        """
        total = sum(1 for _ in self.pairs())
        # A dictionary keeps the drawn order and finds an index in constant time.
        order = dict.fromkeys(random.Random(seed).sample(range(total), min(limit, total)))
        pairs = {index: pair for index, pair in enumerate(self.pairs()) if index in order}
        return [pairs[index] for index in order]
