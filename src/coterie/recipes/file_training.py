"""Training on conversations or preferences of a file, measured on held-out rows before and after."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from coterie.datasets.catalogue import Split
from coterie.datasets.conversations import Conversation
from coterie.datasets.rows import QuestionRow
from coterie.engines.protocol import POLICY, Engine
from coterie.environments.conversation import ConversationReply
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load_renderer
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.file_settings import FileTrainingSettings
from coterie.recipes.plan import Plan
from coterie.record.rows import Row
from coterie.record.tree import Metrics
from coterie.runs.folder import Run
from coterie.runs.loop import Stage
from coterie.training.settings import TrainingSettings

MEASURE = "measure"
SHOWN = 3
"""Number of items that a dry run shows."""
CHUNK = 16
"""Number of held-out rows in one call of the engine."""
NAMED = 5
"""Maximum number of long rows that an error names."""


class FileTraining(Recipe):
    """Base class of recipes that train on a file, with evaluation on its held-out rows before and after."""

    settings: FileTrainingSettings
    environment: ConversationReply
    row: type[Conversation]
    """Type of the training rows."""

    def __init__(self, settings: FileTrainingSettings) -> None:
        super().__init__(settings)
        self._left_out = Counter[str]()
        is_conversation = isinstance(self.environment, ConversationReply)
        if not is_conversation or not self.trains_on(self.environment.dataset.row):
            raise UserError(
                f"{self.name} trains on {self.row.__name__.lower()}s, not on {settings.dataset.name}",
                f"give a file, a folder or OWNER/NAME of the Hugging Face hub: coterie run {self.name} FILE",
            )

    def stages(self) -> list[Stage]:
        s = self.settings
        depends = (s.train.identity(), s.rows, s.long_rows, *self._identity())
        before = [self.evaluation(0), self._measured(0)]
        train = self.stage(0, "train", self.train, (), depends, trains=POLICY)
        return [*before, train, self.evaluation(1, [train]), self._measured(1, [train])]

    def _measured(self, version: int, after: Sequence[Stage] = ()) -> Stage:
        depends = (self.settings.evaluate.rows, *self._identity())
        return self.stage(version, MEASURE, self.measure, after, depends, alone=True)

    def _identity(self) -> tuple[object, ...]:
        """Return settings that training and measurement depend on."""
        return ()

    def trains_on(self, row: type[QuestionRow]) -> bool:
        """Return True if the recipe can train on a type of rows."""
        return row is self.row

    @abstractmethod
    def items_of(self, renderer: ChatRenderer, conversation: Conversation) -> list[Any]:
        """Return the training rows or the pair of a conversation."""

    @abstractmethod
    def rows_of(self, item: Any) -> Sequence[Row]:
        """Return the rows of an item."""

    @abstractmethod
    def train(self, run: Run, i: int, progress: Progress) -> Metrics: ...

    @abstractmethod
    async def measure(self, run: Run, version: int, progress: Progress) -> Metrics: ...

    def trainings(self) -> dict[str, TrainingSettings]:
        return {"train": self.settings.train}

    def longest_rows(self) -> tuple[int | None, int]:
        groups = [self.rows_of(item) for item in self.training_items]
        lengths = [len(row.ids) for rows in groups for row in rows]
        return max(lengths, default=None), max(map(len, groups), default=1)

    def training_tasks(self) -> int:
        """Return 0: training rows are not played."""
        return 0

    def examples(self) -> list[list[tuple[str, bool]]]:
        """Return the first rows as texts, each with True if its tokens are trained."""
        renderer, _ = self._model
        texts = []
        for row in [row for item in self.training_items[:SHOWN] for row in self.rows_of(item)]:
            pieces, at = [], 0
            for target in row.targets:
                pieces.append((renderer.decode(row.ids[at : target.start]), False))
                pieces.append((renderer.decode(row.ids[target.start : target.stop]), True))
                at = target.stop
            texts.append(pieces)
        return texts

    def plan(self) -> Plan:
        """Return the size of the run. Raises ``UserError`` for rows that exceed the limits."""
        plan = super().plan()
        self._check_lengths("training", self.training_items, self._limit("train"))
        self._check_lengths("held-out", self.heldout_items, self._limit("heldout"))
        rows = [row for item in self.training_items for row in self.rows_of(item)]
        tokens, targets = sum(len(row.ids) for row in rows), sum(row.target_count for row in rows)
        left_out = Counter(self.environment.dataset.left_out) + self._left_out
        details = (
            ("tokens of training rows", f"{tokens:,}, {targets:,} of them trained"),
            ("longest training row", f"{max(len(row.ids) for row in rows):,} tokens"),
            *((f"left out: {why}", f"{count:,}") for why, count in left_out.items() if count),
        )
        return replace(plan, rows=len(self.training_items), details=details)

    def _check_lengths(self, which: str, items: Sequence[Any], limit: int) -> None:
        if not items:
            raise UserError(
                f"no {which} row is left", "raise train.max_length, or add shorter rows"
            )
        lengths = {row.origin: len(row.ids) for item in items for row in self.rows_of(item)}
        long = {origin: count for origin, count in lengths.items() if count > limit}
        if long:
            named = ", ".join(f"{origin} ({long[origin]:,})" for origin in [*long][:NAMED])
            longest, more = max(long.values()), ", ..." if len(long) > NAMED else ""
            fits = which == "training" and longest <= self._model[1]
            raise UserError(
                f"{len(long)} {which} rows have more than {limit:,} tokens: {named}{more}",
                f"raise train.max_length to {longest} (and train.tokens_per_microbatch), " * fits
                + "or leave them out with long_rows=drop",
            )

    def _limit(self, split: Split) -> int:
        context = self._model[1]
        return min(self.settings.train.max_length, context) if split == "train" else context

    @cached_property
    def _model(self) -> tuple[ChatRenderer, int]:
        """Renderer of the model, and its context length."""
        return load_renderer(self.settings.model, self.settings.engine.template_args)

    @cached_property
    def training_items(self) -> list[Any]:
        """All items of the training split, in the order of the file."""
        return self._items("train", self.settings.rows)

    @cached_property
    def heldout_items(self) -> list[Any]:
        """First ``evaluate.rows`` items of the held-out split."""
        return self._items("heldout", self.settings.evaluate.rows)

    def measured_in_training(self) -> dict[str, Any]:
        """Return the held-out items to measure during training, and the number of steps between measurements."""
        limit = self._limit("train")
        fitting = [
            item
            for item in self.heldout_items
            if all(len(row.ids) <= limit for row in self.rows_of(item))
        ]
        return {"heldout": fitting, "measure_every": self.settings.evaluate.every}

    def _items(self, split: Split, count: int) -> list[Any]:
        """Return the items of the first ``count`` conversations of a split, without dropped rows."""
        items, limit = [], self._limit(split)
        for one in self.environment.rows(split)[:count]:
            try:
                new_items = self.items_of(self._model[0], one)
            except UserError:
                if getattr(self.settings.dataset, "broken", "refuse") == "refuse":
                    raise
                self._left_out["not shown by the chat template"] += 1
                continue
            for item in new_items:
                is_long = any(len(row.ids) > limit for row in self.rows_of(item))
                if is_long and self.settings.long_rows == "drop":
                    self._left_out["too long"] += 1
                else:
                    items.append(item)
        return items


async def target_logprobs(
    engine: Engine, rows: Sequence[Row], progress: Progress, title: str
) -> list[list[float]]:
    """Return the log-probs (nats) of each row's targets, except a target at the first token."""
    by_first: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        by_first.setdefault(row.ids[0], []).append(at)
    logprobs: list[list[float]] = [[] for _ in rows]
    progress.start(len(rows), title)
    try:
        for first, places in by_first.items():
            for at in range(0, len(places), CHUNK):
                chunk = places[at : at + CHUNK]
                results = await engine.logprobs([first], [rows[one].ids[1:] for one in chunk])
                for one, values in zip(chunk, results, strict=True):
                    logprobs[one] = [values[p - 1] for turn in rows[one].predicted for p in turn]
                progress.advance(len(chunk))
    finally:
        progress.close()
    return logprobs
