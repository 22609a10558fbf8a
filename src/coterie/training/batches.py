"""Preparation of models and rows for training: checks, the order of an epoch, and micro-batches.

Within a step the rows are packed into tries (:mod:`coterie.models.prefix_trie`), and items with rows in the same trie
form a *family*. Families are sorted by length and split into micro-batches of at most
``tokens_per_microbatch`` padded tokens. That changes memory and speed, not results.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic

import torch
from peft import PeftModel
from torch import nn

from coterie.errors import UserError
from coterie.models.adapters import activate, add_lora, find_head, using
from coterie.models.loading import context_length
from coterie.models.prefix_trie import Family, Ids, Splitter
from coterie.record.rows import Row
from coterie.training.losses import OF_A_HEAD, SFT, Item, Objective
from coterie.training.settings import Reads, TrainingSettings


def steps_for_targets(
    model: Any, rows: Sequence[Row], settings: TrainingSettings, tokens: int
) -> tuple[int, int]:
    """Return the number of SFT steps (at least 1) with target tokens closest to ``tokens``, and the epochs they start.

    Order and dropped rows are the same as in the training. Raises ``UserError`` if no row can be trained.
    """
    # Long and empty rows are dropped from the training, so they must not count here, either.
    batch = make_batch(rows, SFT(), max_row_length(model, settings))
    counts = [row.target_count for row in batch.items]
    order = Order(batch.groups, settings.seed, settings.batch_size)
    # Steps of all epochs (rounded up) in which the training sees at least `tokens` targets.
    max_steps = -(-tokens // sum(counts)) * order.steps_per_epoch
    # Number of targets after each step, counted over all epochs.
    seen = list(accumulate(sum(counts[i] for i in step) for step in order.steps(0, max_steps)))
    steps = min(range(max_steps), key=lambda index: abs(seen[index] - tokens)) + 1
    return steps, -(-steps // order.steps_per_epoch)


RANDOM = ("dropout", "layerdrop", "jitter")
"""Parts of the names of module attributes that are rates of random behavior in training mode."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model and its trained weights."""

    model: Any
    adapter: str | None
    names: frozenset[str]
    checkpointing: bool
    """True to recompute activations in the backward pass."""

    @contextmanager
    def training(self) -> Iterator[None]:
        """Put the model into training mode, with gradients for the trained weights only; restore it at the end.

        Between two steps others may use the model and train other adapters of it.
        """
        model = self.model
        base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
        with using(self.model, self.adapter) if self.adapter else nullcontext():
            # Freeze all but the trained weights: the model may have adapters of other roles, which
            # are trained in turn and must not get gradients here.
            requires_grad = {weight: weight.requires_grad for weight in self.model.parameters()}
            for name, weight in self.model.named_parameters():
                weight.requires_grad_(name in self.names)
            if self.checkpointing:
                # The reentrant variant gives no gradients if its inputs need none, as the output of
                # frozen embeddings under an adapter.
                base.gradient_checkpointing_enable({"use_reentrant": False})
            self.model.train()
            try:
                yield
            finally:
                self.model.eval()
                if self.checkpointing:
                    base.gradient_checkpointing_disable()
                for weight, was in requires_grad.items():
                    weight.requires_grad_(was)


@contextmanager
def prepare_model(
    model: Any, settings: TrainingSettings, adapter: str | None = None, reads: Reads = "logprobs"
) -> Iterator[Prepared]:
    """Prepare a model for training inside the block, and restore it at the end.

    A new adapter is removed at the end and the value head is reset: their weights are in the training's ``final``
    folder. ``adapter`` is the name of the adapter to train, if the model has several.
    """
    head = find_head(model)
    if reads in OF_A_HEAD and head is None:
        raise UserError(
            "this objective trains a value head, which the model does not have",
            "add it first: coterie.add_head",
        )
    frozen = {name: not weight.requires_grad for name, weight in model.named_parameters()}
    base, active = model, model.active_adapter if isinstance(model, PeftModel) else None
    # A head belongs to the base, and is trained in place even with a new adapter.
    initial_head = {name: w.clone() for name, w in head.state_dict().items()} if head else {}
    model = _with_trainable(model, settings, adapter)

    def restore() -> None:
        base.eval()
        if active is not None:
            activate(base, active)
        for name, weight in base.named_parameters():
            weight.requires_grad_(not frozen.get(name, True))  # an adapter may be new

    try:
        if head is not None:
            # Weights that the objective does not read are frozen: ranks would wait for their gradients.
            head.requires_grad_(reads in OF_A_HEAD)
            output = model.get_output_embeddings()
            if reads in OF_A_HEAD and output.weight is not model.get_input_embeddings().weight:
                output.requires_grad_(False)
            if reads == "differences":
                head.bias.requires_grad_(False)
        _check_weights(model, settings)
        # From here on the trained weights are known by name: `Prepared.training` sets the flags.
        trained = model.active_adapter if isinstance(model, PeftModel) else None
        names = frozenset(
            name for name, parameter in model.named_parameters() if parameter.requires_grad
        )
        prepared_model = Prepared(model, trained, names, settings.gradient_checkpointing)
        # The caller may sample from its own model between steps, as it was before. A wrapper for a
        # new adapter is used by the training alone.
        if model is base:
            restore()
        yield prepared_model
    finally:
        if model is not base:
            # Remove the new adapter's layers, so that the caller has its base back. Its trained
            # weights, and the head's, are in the final folder of the training.
            base = model.unload()
            if head:
                head.load_state_dict(initial_head)
        restore()


def _with_trainable(model: Any, settings: TrainingSettings, adapter: str | None) -> Any:
    """Enable gradients of the trained weights; for lora, wrap a model that has no adapter."""
    with_adapter = isinstance(model, PeftModel)
    if adapter is not None and not with_adapter:
        raise UserError(f"this model has no adapter {adapter!r} to train", "add it first")
    if settings.method == "full":
        if with_adapter:
            raise UserError(
                "method=full can't train a model with a LoRA adapter",
                "merge the adapter first (merge_and_unload), or use method=lora",
            )
        return model.requires_grad_(True)
    # An existing adapter continues to train, instead of a second one on top of it.
    if with_adapter:
        activate(model, adapter or model.active_adapter)
        model.set_adapter(model.active_adapter)  # makes this adapter alone trainable
        return model
    return add_lora(
        model, r=settings.rank, alpha=settings.alpha, target_modules=settings.lora_targets
    )


def _check_weights(model: Any, settings: TrainingSettings) -> None:
    """Raise ``UserError`` for dropout, with which log-probs would differ from sampling, and for another dtype."""
    # Some models keep rates as numbers for functional dropout, so modules of type `Dropout` are not all.
    active = {
        f"{name or 'the model'}.{key}": rate
        for name, module in model.named_modules()
        for key, rate in vars(module).items()
        if isinstance(rate, float) and rate > 0
        if any(word in key for word in RANDOM) or (key == "p" and isinstance(module, nn.Dropout))
    }
    if active:
        name, rate = next(iter(active.items()))
        raise UserError(
            f"the model has dropout in {len(active)} places, such as {name}={rate}",
            "set the rates to 0 when loading it (attention_dropout=0, resid_pdrop=0, ...)",
        )
    if getattr(model, "is_loaded_in_4bit", False) != settings.load_in_4bit:
        raise UserError(
            f"the training has load_in_4bit={settings.load_in_4bit}, but the model was loaded otherwise",
            "give the same value of load_in_4bit to the training and to load()",
        )
    # Layers in 4 bits and adapters have dtypes of their own, so look at the embeddings.
    weight_dtype = model.get_input_embeddings().weight.dtype
    if weight_dtype != getattr(torch, settings.dtype):
        dtype_name = str(weight_dtype).removeprefix("torch.")
        raise UserError(
            f"the weights are {dtype_name}, but the training has dtype={settings.dtype}",
            f"set dtype={dtype_name} in the training, or load the model with dtype=torch.{settings.dtype}",
        )


def max_row_length(model: Any, settings: TrainingSettings) -> int:
    """Return the length limit of trained rows: ``max_length``, or the model's context if that is shorter."""
    return min(settings.max_length, context_length(model.config) or settings.max_length)


@dataclass(frozen=True, slots=True)
class Batch(Generic[Item]):
    """Trainable items in their original order, and the number of dropped ones."""

    items: Sequence[Item]
    indices: Sequence[int]
    """Index of each item among the given ones."""
    groups: Sequence[str]
    """Group of each item; items with an equal, non-empty group are drawn together."""
    sequences: Sequence[Sequence[Ids]]
    targets: Sequence[int]
    """Number of targets of each item, in all its rows."""
    counts: Sequence[float]
    """Share of each item in the denominator of its step."""
    names: Sequence[str]
    too_long: int
    """Number of dropped items with a row longer than the limit."""
    empty: int
    """Number of dropped items that count 0 (no targets, no weight, equal sides)."""

    @property
    def tokens(self) -> int:
        return sum(len(ids) for sequences in self.sequences for ids in sequences)


def make_batch(items: Sequence[Item], objective: Objective[Item], max_length: int) -> Batch[Item]:
    """Drop (and count) items that can't be trained.

    Raises :class:`UserError` if no item remains, or if a remaining row lacks values that the objective needs. Rows that
    are too long may lack them, because no pass computes them.
    """
    groups = [objective.rows(item) for item in items]
    lengths = [max((len(row.ids) for row in group), default=0) for group in groups]
    short = [i for i, length in enumerate(lengths) if length <= max_length]
    # Counted only where it is needed: `count` raises for a pair without a reference, and pairs that
    # are too long have none.
    counts = {i: objective.count(items[i]) for i in short}
    indices = [i for i in short if counts[i] > 0]
    for row in (row for i in indices for row in groups[i]):
        for name in objective.needs:
            # Values are aligned with targets by order alone, so a missing one would shift all others.
            values = getattr(row, name)
            if values is None or len(values) != row.target_count:
                value_count = "no" if values is None else len(values)
                raise UserError(
                    f"row {row.origin or '?'} has {value_count} {name} for {row.target_count} targets, but the "
                    f"objective {objective.name} needs one for each",
                    "compute them first (coterie.with_reference, coterie.with_advantages)",
                )
    too_long, empty = len(items) - len(short), len(short) - len(indices)
    if not items:
        raise UserError("there are no rows to train on", "give at least one row")
    if not indices:
        raise UserError(
            f"no row can be trained: {too_long} are longer than {max_length} tokens, "
            f"{empty} have no targets",
            "raise max_length, or give rows with targets",
        )
    return Batch(
        items=[items[i] for i in indices],
        indices=indices,
        groups=[getattr(items[i], "group", "") for i in indices],
        sequences=[[row.ids for row in groups[i]] for i in indices],
        targets=[sum(row.target_count for row in groups[i]) for i in indices],
        counts=[counts[i] for i in indices],
        names=[groups[i][0].origin or f"number {i}" for i in indices],
        too_long=too_long,
        empty=empty,
    )


@dataclass(frozen=True, slots=True)
class Order:
    """Order of the items over all epochs, in steps of ``batch_size``."""

    groups: Sequence[str]
    seed: int
    batch_size: int

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps of an epoch; the last may be smaller."""
        return -(-len(self.groups) // self.batch_size)

    def count(self, settings: TrainingSettings) -> int:
        """Return the number of optimizer steps of a training."""
        steps = self.steps_per_epoch * settings.epochs
        return min(steps, settings.max_steps or steps)

    def steps(self, start: int, stop: int) -> Iterator[list[int]]:
        """Yield the item indices of each step in ``range(start, stop)``, counted over all epochs."""
        order: list[int] = []
        for step in range(start, stop):
            epoch, index = divmod(step, self.steps_per_epoch)
            # A resumed training starts within an epoch, and needs the order of that epoch too.
            if not order or index == 0:
                order = self._of_epoch(epoch)
            yield order[index * self.batch_size : (index + 1) * self.batch_size]

    def _of_epoch(self, epoch: int) -> list[int]:
        groups: dict[str, list[int]] = {}
        for index, name in enumerate(self.groups):
            # An item without a group is a group of its own.
            groups.setdefault(name or f"/{index}", []).append(index)
        shuffled = list(groups.values())
        # The order depends on the epoch's number only, so that a resumed training does not need the
        # state of a generator.
        random.Random(f"{self.seed}/{epoch}").shuffle(shuffled)
        return [index for group in shuffled for index in group]


def rank_microbatches(
    splitter: Splitter, families: Sequence[Family], rank: int, ranks: int
) -> list[list[int]]:
    """Return the micro-batches of one rank in a step.

    All ranks get the same number of micro-batches, as a sharded model needs; some may be empty.
    """
    parts = splitter.microbatches(families, ranks)
    count = max(map(len, parts))
    return parts[rank] + [[] for _ in range(count - len(parts[rank]))]
