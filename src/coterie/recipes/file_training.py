"""Training on the rows of a file, measured on held-out rows before and after: ``sft`` and ``dpo``.

    evaluate, measure   the base model: replies to held-out prompts, and loss or margins of held-out rows
    train               sft: -log p of the assistant's tokens, mean over a batch
                        dpo (arXiv 2305.18290): -log sigmoid(beta (log-ratio of chosen - log-ratio of rejected)),
                        with the base model as the reference, or another loss of objective.kind
    evaluate, measure   the trained model, on the same rows

Rows that begin with the same tokens are packed into prefix tries, so shared prefixes are computed once.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from coterie.datasets.catalogue import Split
from coterie.datasets.conversations import Conversation, Preference
from coterie.datasets.rows import QuestionRow
from coterie.engines.protocol import POLICY, Engine
from coterie.environments.conversation import PROBLEMS, ConversationReply
from coterie.errors import UserError
from coterie.evaluation import mean_interval, percentiles, resampled_means
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load_renderer
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.file_training_settings import (
    DPOFileSettings,
    FileTrainingSettings,
    SFTFileSettings,
)
from coterie.recipes.plan import Plan
from coterie.recipes.trainings import TrainingJob
from coterie.record.rows import LabeledTrajectory, Pair, Row, unpair
from coterie.record.tree import ItemKey, Metrics
from coterie.runs.loop import Stage, stage
from coterie.runs.run import Run, StageKey
from coterie.training.chat_rows import conversation_rows, preference_pair
from coterie.training.settings import DPOSettings, TrainingSettings

MEASURE = "measure"
SHOWN = 3
CHUNK = 16
"""Number of held-out rows in one call of the engine."""
NAMED = 5
EQUAL_SIDES = "chosen and rejected are equal as the chat template shows them"


class FileTraining(Recipe):
    """Base class of recipes that train on a file, with evaluation on its held-out rows before and after."""

    settings: FileTrainingSettings
    environment: ConversationReply
    row: type[Conversation]

    def __init__(self, settings: FileTrainingSettings) -> None:
        super().__init__(settings)
        self._left_out = Counter[str]()
        is_conversation = isinstance(self.environment, ConversationReply)
        if not is_conversation or not self.trains_on(self.environment.dataset.row):
            problem = f"{self.name} trains on {self.row.__name__.lower()}s, not on {settings.dataset.name}"
            fix = f"give a file, a folder or OWNER/NAME of the Hugging Face hub: coterie run {self.name} FILE"
            raise UserError(problem, fix)

    def stages(self) -> list[Stage]:
        training = self.make_stages(0, self.train)
        # Without held-out rows there is nothing to evaluate or to measure.
        if not self.holds_out:
            return training
        base = [self.evaluation(0), *self.make_stages(0, self.measure)]
        trained = self.make_stages(1, self.evaluate, self.measure, after=training)
        return [*base, *training, *trained]

    @property
    def holds_out(self) -> bool:
        """False if all rows are trained on, and nothing is evaluated."""
        return "heldout" in self.environment.dataset.splits

    def heldout_loss(self, run: Run, version: int) -> tuple[float, float, float] | None:
        measured = run.metrics(StageKey(version, MEASURE))
        if "loss_low" not in measured:
            return None
        return float(measured["loss"]), float(measured["loss_low"]), float(measured["loss_high"])

    def trains_on(self, row: type[QuestionRow]) -> bool:
        return row is self.row

    @abstractmethod
    def items_of(self, renderer: ChatRenderer, conversation: Conversation) -> list[Any]:
        """Return the training rows or the pair of a conversation."""

    @abstractmethod
    def rows_of(self, item: Any) -> Sequence[Row]: ...

    @abstractmethod
    def train(self, run: Run, i: int, progress: Progress) -> Metrics: ...

    @abstractmethod
    async def measure(self, run: Run, version: int, progress: Progress) -> Metrics: ...

    def trainings(self) -> dict[str, TrainingSettings]:
        return {"train": self.settings.train}

    def longest_rows(self) -> tuple[int | None, int, int | None]:
        groups = [self.rows_of(item) for item in self.training_items]
        lengths = [len(row.ids) for rows in groups for row in rows]
        return max(lengths, default=None), max(map(len, groups), default=1), len(groups)

    def training_tasks(self) -> int:
        return 0

    def examples(self) -> list[list[tuple[str, bool]]]:
        decode, texts = self._model[0].decode, []
        for row in [row for item in self.training_items[:SHOWN] for row in self.rows_of(item)]:
            pieces, end = [], 0
            # The text before a target is context, and the target itself is trained.
            for target in row.targets:
                pieces.append((decode(row.ids[end : target.start]), False))
                pieces.append((decode(row.ids[target.start : target.stop]), True))
                end = target.stop
            texts.append(pieces)
        return texts

    def plan(self) -> Plan:
        plan = super().plan()
        self._check_lengths("training", self.training_items, self._limit("train"))
        nothing = ("evaluation", "none: no rows are held out (dataset.heldout=0)")
        if self.holds_out:
            self._check_lengths("held-out", self.heldout_items, self._limit("heldout"))
        rows = [row for item in self.training_items for row in self.rows_of(item)]
        tokens, targets = sum(len(row.ids) for row in rows), sum(row.target_count for row in rows)
        left_out = Counter(self.environment.dataset.left_out) + self._left_out
        # Thoughts that the template cannot show are left out of the rows, so the plan warns.
        dropped = sum(bool(m.thought) for r in self.environment.rows("train") for m in r.messages)
        thoughts = f"the chat template has no place for thoughts: {dropped:,} are left out"
        details = (
            *plan.details,
            *([] if self.holds_out else [nothing]),
            *([] if not dropped or self._model[0].template.thoughts else [("warning", thoughts)]),
            ("tokens of training rows", f"{tokens:,}, {targets:,} of them trained"),
            ("longest training row", f"{max(len(row.ids) for row in rows):,} tokens"),
            *((f"left out: {reason}", f"{count:,}") for reason, count in left_out.items() if count),
        )
        return replace(plan, rows=len(self.training_items), details=details)

    def _check_lengths(self, which: str, items: Sequence[Any], limit: int) -> None:
        if not items:
            raise UserError(f"no {which} row is left", "raise train.max_length, or add rows")
        # Both sides of a preference have the same origin.
        lengths: dict[str, int] = {}
        for row in (row for item in items for row in self.rows_of(item)):
            lengths[row.origin] = max(lengths.get(row.origin, 0), len(row.ids))
        long = {origin: count for origin, count in lengths.items() if count > limit}
        if long:
            named = ", ".join(f"{origin} ({long[origin]:,})" for origin in [*long][:NAMED])
            longest, ellipsis = max(long.values()), ", ..." if len(long) > NAMED else ""
            # A row beyond the model's context does not fit with any max_length.
            fits = which == "training" and longest <= self._model[1]
            raise UserError(
                f"{len(long)} {which} rows have more than {limit:,} tokens: {named}{ellipsis}",
                f"raise train.max_length to {longest} (and train.tokens_per_microbatch), " * fits
                + "or leave them out with long_rows=drop",
            )

    def _limit(self, split: Split) -> int:
        context = self._model[1]
        return min(self.settings.train.max_length, context) if split == "train" else context

    @cached_property
    def _model(self) -> tuple[ChatRenderer, int]:
        return load_renderer(self.settings.model, self.settings.engine.template)

    @cached_property
    def training_items(self) -> list[Any]:
        """All items of the training split, in the order of the file."""
        return self._items("train", self.settings.rows)

    @cached_property
    def heldout_items(self) -> list[Any]:
        """First ``evaluate.rows`` items of the held-out split, if there is one."""
        return self._items("heldout", self.settings.evaluate.rows) if self.holds_out else []

    def _fits(self, item: Any, limit: int) -> bool:
        return all(len(row.ids) <= limit for row in self.rows_of(item))

    def measured_in_training(self) -> dict[str, Any]:
        """Return the held-out items to measure during training, and the number of steps between measurements."""
        limit, every = self._limit("train"), self.settings.evaluate.every
        fitting = [item for item in self.heldout_items if self._fits(item, limit)]
        return {"heldout": fitting, "measure_every": every}

    def _items(self, split: Split, count: int) -> list[Any]:
        """Return the items of the first ``count`` conversations of a split, without dropped rows."""
        items, limit = [], self._limit(split)
        for conversation in self.environment.rows(split)[:count]:
            try:
                new_items = self.items_of(self._model[0], conversation)
            # A conversation may fail only when it is rendered; then the rule for broken rows applies too.
            except UserError as error:
                if getattr(self.settings.dataset, "broken", "refuse") == "refuse":
                    raise
                is_equal = error.what.endswith(EQUAL_SIDES)
                self._left_out[EQUAL_SIDES if is_equal else "not shown by the chat template"] += 1
                continue
            self._left_out["the last message is not trained"] += not new_items
            for item in new_items:
                if self.settings.long_rows == "drop" and not self._fits(item, limit):
                    self._left_out["too long"] += 1
                else:
                    items.append(item)
        return items


async def target_logprobs(
    engine: Engine, rows: Sequence[Row], progress: Progress, title: str
) -> list[list[float]]:
    """Return the log-probs (nats) of each row's targets, except a target at the first token."""
    # The engine scores continuations of one prefix. Rows are grouped by their first token, which is
    # the prefix and has no log-prob.
    by_first: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        by_first.setdefault(row.ids[0], []).append(index)
    logprobs: list[list[float]] = [[] for _ in rows]
    progress.start(len(rows), title)
    try:
        for first_token, indices in by_first.items():
            for start in range(0, len(indices), CHUNK):
                chunk = indices[start : start + CHUNK]
                results = await engine.logprobs([first_token], [rows[n].ids[1:] for n in chunk])
                for n, values in zip(chunk, results, strict=True):
                    # Continuations begin at token 1, so the value of the token at p is at p - 1.
                    logprobs[n] = [values[p - 1] for turn in rows[n].predicted for p in turn]
                progress.advance(len(chunk))
    finally:
        progress.close()
    return logprobs


def mean_loss(losses: Sequence[float], counts: Sequence[int]) -> dict[str, float]:
    """Return the mean loss and its 95% interval over rows, given each row's sum and the number of its terms."""
    # Equal generators draw the same rows for sums and numbers.
    sums, numbers = (
        resampled_means(np.array(values, float), RESAMPLES, np.random.default_rng(0))
        for values in (losses, counts)
    )
    # A resample may draw only rows without terms.
    low, high = percentiles(sums / np.maximum(numbers, 1e-9), 0.95)
    return {"loss": sum(losses) / max(1, sum(counts)), "loss_low": low, "loss_high": high}


class SFTOnFile(FileTraining):
    """Recipe of ``sft``."""

    settings: SFTFileSettings
    row = Conversation

    def trains_on(self, row: type[QuestionRow]) -> bool:
        return row is Conversation or issubclass(row, PROBLEMS)

    def items_of(self, renderer: ChatRenderer, conversation: Conversation) -> list[Row]:
        return conversation_rows(renderer, conversation, self.settings.targets)

    def rows_of(self, item: Row) -> Sequence[Row]:
        return (item,)

    @stage("train", uses=("train", "rows", "long_rows", "targets"), trains=POLICY)
    def train(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Minimize the mean of -log p over the trained tokens."""
        job = TrainingJob.of(self, run, i, self.settings.train, progress)
        return job.train(self.training_items, **self.measured_in_training())

    @stage(MEASURE, uses=("evaluate.rows", "targets"), alone=True)
    async def measure(self, run: Run, version: int, progress: Progress) -> Metrics:
        """Return the mean loss of the assistant's tokens in held-out rows, in nats per token."""
        engine, rows = self.models(run).embedded(POLICY, version), self.heldout_items
        logprobs = await target_logprobs(engine, rows, progress, f"held-out loss {version}")
        tokens = [len(row) for row in logprobs]
        loss = mean_loss([-sum(row) for row in logprobs], tokens)
        return {"held out": len(rows), **loss, "tokens": sum(tokens)}


class DPOOnFile(FileTraining):
    """Recipe of ``dpo``."""

    settings: DPOFileSettings
    row = Preference

    def items_of(self, renderer: ChatRenderer, conversation: Conversation) -> list[Pair]:
        pair = preference_pair(renderer, conversation)
        if pair.equal_sides:
            raise UserError(f"{conversation.origin}: {EQUAL_SIDES}", "set dataset.broken=skip")
        return [pair]

    def rows_of(self, item: Pair) -> Sequence[Row]:
        return (*item.chosen, *item.rejected)

    @stage("train", uses=("train", "rows", "long_rows", "objective"), trains=POLICY)
    def train(self, run: Run, i: int, progress: Progress) -> Metrics:
        job = TrainingJob.of(self, run, i, self.settings.train, progress)
        objective, measured = self.settings.objective, self.measured_in_training()
        return job.train_dpo(self.training_items, objective, **measured)

    @stage(MEASURE, uses=("evaluate.rows", "objective"), alone=True)
    async def measure(self, run: Run, version: int, progress: Progress) -> Metrics:
        """Return loss of the trained objective, and accuracy and margin of its implicit rewards, on held-out pairs."""
        import torch  # torch takes seconds to import

        from coterie.training.losses import DPO

        s = self.settings.objective
        # KTO and DPO have the same implicit rewards.
        is_kto, as_dpo = s.kind == "kto", s.model_copy(update={"kind": "dpo"})
        pairs, objective = self.heldout_items, DPO(as_dpo if is_kto else s)
        rows = [row for pair in pairs for row in self.rows_of(pair)]
        sides = unpair(pairs, self._limit("heldout")) if is_kto else []
        rows += [row for side in sides for row in side.mismatched]
        logprobs = []
        # Implicit rewards compare with the base model, or are log-probs of a loss without a
        # reference. For version 0 both models are the same.
        for policy in sorted({0, version}) if s.needs_reference else [version]:
            engine = self.models(run).embedded(POLICY, policy)
            values = await target_logprobs(engine, rows, progress, f"held-out pairs {policy}")
            logprobs.append([torch.tensor(row, dtype=torch.float64) for row in values])
        losses, margins, stop = [], [], 0
        for pair in pairs:
            # The rows of a pair are consecutive in the list of all rows.
            start, stop = stop, stop + len(self.rows_of(pair))
            base, trained = logprobs[0][start:stop], logprobs[-1][start:stop]
            # With a reference of 0, the log-ratios are the reduced log-probs of the base model itself.
            better, worse = objective.log_ratios(replace(pair, reference=(0.0, 0.0)), base)
            scored = replace(pair, reference=(float(better), float(worse)))
            ratios = objective.log_ratios(scored, trained)
            # The implicit reward of DPO: beta * (log pi - log pi_ref) of each side.
            chosen, rejected = (s.beta * float(ratio) for ratio in ratios)
            losses.append(float(objective.loss(scored, trained)))
            margins.append(chosen - rejected)
            key = ItemKey(version, MEASURE, pair.name)
            # A measurement that is resumed finds the items of its first attempt.
            if not run.store.finished(key):
                run.store.finish(key, metrics={"chosen": chosen, "rejected": rejected})
        if is_kto:
            losses = _kto_losses(s, sides, logprobs[0], logprobs[-1])
        right = [float(margin > 0) for margin in margins]
        low, high = mean_interval(right, seed=0)
        return {
            "held out": len(pairs),
            **mean_loss(losses, [1] * len(losses)),
            "accuracy": sum(right) / len(right),
            "accuracy_low": low,
            "accuracy_high": high,
            "margin": sum(margins) / len(margins),
        }


def _kto_losses(
    settings: DPOSettings,
    sides: Sequence[LabeledTrajectory],
    base: Sequence[Any],
    trained: Sequence[Any],
) -> list[float]:
    """Return the mean KTO loss of the sides of each pair.

    ``base`` and ``trained`` have the log-probs of the rows of all sides, then of their mismatched rows.
    """
    from coterie.training.losses import KTO

    objective, count = KTO(settings), sum(len(side.rows) for side in sides)
    totals = [float(row.sum()) for row in base]
    of_sides, of_mismatched, read = iter(totals), iter(totals[count:]), iter(trained)
    scored = []
    for side in sides:
        reference = sum(next(of_sides) for _ in side.rows)
        mismatched = sum(next(of_mismatched) for _ in side.mismatched)
        scored.append(replace(side, reference=(reference, mismatched)))
    objective.prepare_step(scored, lambda _: [row.tolist() for row in trained[count:]])
    losses = [float(objective.loss(side, [next(read) for _ in side.rows])) for side in scored]
    return [
        (chosen + rejected) / 2 for chosen, rejected in zip(losses[::2], losses[1::2], strict=True)
    ]


RESAMPLES = 2000
