"""Trainer of any objective, with full weights or an adapter, on one or several ranks.

    report = train(model, rows, TrainingSettings(learning_rate=1e-3), Path("runs/x/train"))

The folder then has ``final/`` (weights, config, tokenizer files, ``training.json``) and ``metrics.jsonl`` (one line per
optimizer step). A finished training is not repeated; another resumes from its newest checkpoint. In float32 on one CPU
process the final weights are bitwise the same as without an interruption.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from coterie.config.settings import Settings
from coterie.errors import UserError
from coterie.models.adapters import using
from coterie.models.check import check
from coterie.models.prefix_trie import Family, Splitter
from coterie.progress import Progress, Silent
from coterie.record.rows import Facts, Row
from coterie.training import checkpoint
from coterie.training.batches import (
    Batch,
    Order,
    make_batch,
    max_row_length,
    prepare_model,
    rank_microbatches,
)
from coterie.training.checkpoint import Record, TrainingReport, hash_items, open_folder
from coterie.training.distributed import launches, open_accelerator
from coterie.training.losses import SFT, Item, Objective
from coterie.training.reference import LossModule, RowValue, ShardedModel, rank_row_values
from coterie.training.settings import Tracker, TrainingSettings

if TYPE_CHECKING:
    from coterie.engines.connections import Address

KeepFacts = Callable[[int, Sequence[Any], Sequence[tuple[int, Facts]]], None]
"""Keeps the facts of a step (``Trainer.facts``), given its number from 1 and its items."""
BUCKET = 1 << 24
"""Elements of one fused update: a small model has hundreds of weights, and each kernel takes microseconds to launch."""


class AdamW(torch.optim.AdamW):
    """Fused AdamW of torch, with float32 moments and stochastic rounding for bfloat16 weights."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient; clear the gradients of bfloat16 weights."""
        # Weights in bfloat16 are hidden from torch's update, which rounds to the nearest value and
        # so loses small changes; they are updated below.
        low = [
            (
                group,
                [w for w in group["params"] if w.dtype == torch.bfloat16 and w.grad is not None],
            )
            for group in self.param_groups
        ]
        # A weight without a gradient is skipped by torch. Each gradient is freed after its bucket.
        gradients = {weight: weight.grad for _, weights in low for weight in weights}
        for weight in gradients:
            weight.grad = None
        super().step(closure)
        for group, weights in low:
            for bucket in _buckets(weights):
                self._update(group, bucket, [gradients.pop(weight) for weight in bucket])

    def _update(
        self, group: dict[str, Any], weights: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> None:
        for weight in weights:
            # The same keys as torch's own state, so that checkpoints do not depend on the dtype.
            if not self.state[weight]:
                zeros = (torch.zeros_like(weight, dtype=torch.float32) for _ in range(2))
                self.state[weight].update(
                    zip(("exp_avg", "exp_avg_sq"), zeros, strict=True),
                    step=torch.zeros((), device=weight.device),
                )
        states = [self.state[weight] for weight in weights]
        stored = [_local(weight) for weight in weights]
        # All weights of the bucket lie in one flat float32 buffer; `adamw` updates views of it in place.
        buffer, exact = _float_copies(stored)
        adamw(
            exact,
            _float_copies([_local(gradient) for gradient in gradients])[1],
            [_local(state["exp_avg"]) for state in states],
            [_local(state["exp_avg_sq"]) for state in states],
            # Maximum second moments, which only AMSGrad has.
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        torch._foreach_copy_(stored, _views(rounded(buffer), stored))


def rounded(exact: Tensor) -> Tensor:
    """Round float32 to bfloat16 stochastically and without bias; keep infinities and NaN."""
    # A bfloat16 number is the upper half of a float32's bits. Uniform noise in the lower half
    # carries over with a probability equal to the part that is cut off, so the mean is exact.
    bits = exact.view(torch.int32)
    noise = torch.randint_like(bits, 1 << 16)
    result = ((bits + noise) & -(1 << 16)).view(torch.float32)
    # The carry would turn the bits of some NaN into those of a number.
    return torch.where(exact.isfinite(), result, exact).to(torch.bfloat16)


def _buckets(weights: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield weights of one device in groups of about :data:`BUCKET` elements, at least one in each."""
    bucket: list[Tensor] = []
    count = 0
    for weight in weights:
        size = _local(weight).numel()
        if bucket and (count + size > BUCKET or weight.device != bucket[0].device):
            yield bucket
            bucket, count = [], 0
        bucket.append(weight)
        count += size
    if bucket:
        yield bucket


def _local(tensor: Tensor) -> Tensor:
    """Return the slice of a sharded tensor that this rank has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _float_copies(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return a flat float32 buffer with all elements, and views of it in the shapes of the tensors."""
    count = sum(tensor.numel() for tensor in tensors)
    buffer = torch.empty(count, dtype=torch.float32, device=tensors[0].device)
    views = _views(buffer, tensors)
    torch._foreach_copy_(views, list(tensors))
    return buffer, views


def _views(buffer: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    parts = buffer.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def make_optimizer(weights: Mapping[str, nn.Parameter], settings: TrainingSettings) -> AdamW:
    """Return AdamW with weight decay for matrices only, not for vectors (norms and biases)."""
    matrices = [weight for weight in weights.values() if weight.ndim > 1]
    vectors = [weight for weight in weights.values() if weight.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return AdamW(groups, lr=settings.learning_rate, betas=settings.betas, fused=True)


def rate_at(step: int, total: int | None, settings: TrainingSettings) -> float:
    """Return the learning rate of a step (from 0): a linear warmup, then the schedule.

    It is constant if the number of steps is unknown.
    """
    if total is None:
        return settings.learning_rate
    warmup = math.ceil(settings.warmup_ratio * total)
    if step < warmup:
        # From 1 / warmup on: a first step at rate 0 would be wasted.
        return settings.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(total - warmup, 1)
    shape = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 + 0.5 * math.cos(math.pi * done)}
    return settings.learning_rate * shape[settings.schedule]


class Trainer(Generic[Item]):
    """Training of one model, open until :meth:`finish` or :meth:`close`.

    On several ranks, all ranks call all methods with the same items. With ``method=lora`` a model without an adapter
    gets a new one, which is removed at the end and saved in ``folder/final``.

    Args:
        model: Model, with or without adapters.
        objective: Objective to minimize. One that reads values needs a value head (``models.adapters``), without FSDP.
        folder: Folder of checkpoints, metrics and final weights.
        steps: Number of optimizer steps, which the schedule needs; if ``None`` the learning rate has to be constant.
        adapter: Name of the adapter to train; the active one by default.
        resume: False to remove the earlier training in ``folder``.
        tracker: Receives the metrics of every step; the caller closes it.
        identity: Further values that have to be equal to resume the training.
        keep_last: Number of newest checkpoints to keep; ``None`` to keep all, also after the end of the training.
        at: Optimizer step to return to: its checkpoint, or the newest before it (0: the start).

    Raises:
        UserError: The folder has another training, the model has dropout, the objective reads values of a head that
            the model does not have, or the settings ask for ranks, which only runs start.
    """

    def __init__(
        self,
        model: Any,
        objective: Objective[Item],
        settings: TrainingSettings,
        folder: Path,
        *,
        steps: int | None = None,
        adapter: str | None = None,
        resume: bool = True,
        tracker: Tracker | None = None,
        identity: Mapping[str, str] | None = None,
        keep_last: int | None = 1,
        at: int | None = None,
    ) -> None:
        if steps is None and (settings.schedule != "constant" or settings.warmup_ratio):
            raise UserError(
                f"schedule={settings.schedule} with warmup_ratio={settings.warmup_ratio} needs the number of steps, "
                "which is unknown",
                "give the number of steps, or use schedule=constant warmup_ratio=0",
            )
        # A run starts ranks itself; here the settings would be silently ignored.
        if launches(settings) and "WORLD_SIZE" not in os.environ:
            ranks_key = f"processes={settings.processes}" if settings.processes else "launch"
            raise UserError(
                f"{ranks_key} starts ranks in a run, and this training is in one process",
                "leave it out and start the script with torchrun, or train by coterie run",
            )
        self.objective = objective
        self.settings = settings
        self.folder = folder
        self._tracker = tracker or Tracker()
        self.report: TrainingReport | None = None
        """Report of the finished training; if an earlier process finished it, the model has its weights."""
        self._closed = self.torn = False
        """``torn``: a step is changing the weights."""
        self._random: tuple[torch.Tensor, torch.Tensor | None] | None = None
        """States of the random number generators of the CPU and the CUDA device since the last block of work."""
        with ExitStack() as stack, self._scope():
            self._prepared = stack.enter_context(
                prepare_model(model, settings, adapter, objective.reads)
            )
            self.model = self._prepared.model
            """Model to sample from between two steps, with its adapter for lora."""
            self._accelerator = stack.enter_context(open_accelerator(settings, self.model.device))
            # Accelerate forgets it on a CPU, where it enables FSDP only for us.
            self._sharded: bool = self._accelerator.is_fsdp2
            self._rule = check(self.model).packing(settings.packing)
            self._max_length = max_row_length(self.model, settings)
            # Files of a killed process are removed before the state of the folder is read.
            open_folder(folder, self._accelerator, resume=resume, at=at)
            with self._prepared.training():
                self._open(steps, identity or {}, keep_last)
            # Nothing failed: keep model and accelerator open until `close`.
            self._stack = stack.pop_all()

    def __enter__(self) -> "Trainer[Item]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def done(self) -> int:
        """Number of steps so far, including steps of earlier processes."""
        return self.report.steps if self.report else self._record.done

    @property
    def facts(self) -> Sequence[tuple[int, Facts]]:
        """Index of each item of the last step with its loss and the numbers of its tokens, equal on all ranks."""
        return self._record.facts

    @property
    def is_main(self) -> bool:
        """True on the first rank, which writes files."""
        return self._accelerator.is_main_process

    @property
    def longest(self) -> int:
        """Maximum length of a row in tokens."""
        return self._max_length

    def step(self, items: Sequence[Item], heldout: Sequence[Item] = ()) -> dict[str, float]:
        """Take one optimizer step on all items and return its metrics, as in ``metrics.jsonl``.

        With ``heldout`` items the metrics have their mean loss after the step, as ``heldout_loss``.

        Items that can't be trained (too long, or without targets) are dropped and counted. Raises :class:`UserError` if
        no item remains, and for a loss or gradient that is not finite; the weights then keep their values.
        """
        self._refuse_closed()
        if self.done == self._record.total:
            problem = f"the training in {self.folder} has taken all its {self.done} steps"
            raise UserError(problem, "finish it, or create the trainer with more steps")
        start = time.monotonic()
        with self._scope(), self._prepared.training():
            batch, splitter, families = self._batch(items)
            # What can't be measured is refused before the weights change.
            if heldout:
                make_batch(heldout, self.objective, self._max_length)
            rate = rate_at(self.done, self._record.total, self.settings)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            try:
                loss, norm = self._gradient(batch, splitter, families)
                measures = self._tally.result()
                # Until the step is recorded, weights and record may differ. After an interruption
                # in between only the last checkpoint can be used.
                self.torn = True
                self._wrapped_optimizer.step()
            finally:
                # Also after an error: what remains would be added to the next step.
                self._wrapped_optimizer.zero_grad()
                self._tally.parts.clear()
                self._facts.clear()
            counts = self._record.counts
            counts.rows += len(batch.items)
            counts.dropped_too_long += batch.too_long
            counts.dropped_empty += batch.empty
            counts.tokens += batch.tokens
            counts.targets += sum(batch.targets)
            counts.computed_tokens += sum(family.nodes for family in families)
            # Held-out items are not part of the training's speed.
            seconds = time.monotonic() - start
            if heldout:
                measures["heldout_loss"] = self.measure(heldout)
            metrics = self._record.add(
                loss=loss, grad_norm=norm, learning_rate=rate, seconds=seconds, measures=measures
            )
            self.torn = False
            if self.is_main:
                self._tracker.log(metrics, self.done)
            if self._record.save_is_due:
                # The caller has not kept the facts of this step yet.
                self._record.save(self._weights, self._optimizer, with_facts=True)
        return metrics

    def measure(self, items: Sequence[Item]) -> float:
        """Return the mean loss of items, without training on them."""
        accelerator, (batch, splitter, families) = self._accelerator, self._batch(items)
        total = torch.zeros((), device=accelerator.device)
        with torch.no_grad():
            for part in rank_microbatches(
                splitter, families, accelerator.process_index, accelerator.num_processes
            ):
                # A rank with an empty part computes any item with weight 0, since all ranks must
                # call a sharded model equally often.
                losses = self._wrapped([batch.items[i] for i in part or [0]], counts=False)
                total += losses.sum() * bool(part)
        return float(accelerator.reduce(total, reduction="sum")) / sum(batch.counts)

    def _batch(self, items: Sequence[Item]) -> tuple[Batch[Item], Splitter, list[Family]]:
        batch = make_batch(items, self.objective, self._max_length)
        self.objective.prepare_step(batch.items, self._logprobs)
        splitter = Splitter(batch.sequences, self._rule, self.settings.tokens_per_microbatch)
        return batch, splitter, splitter.families(range(len(batch.items)))

    def row_values(
        self, kind: RowValue, rows: Sequence[Row], temperature: float
    ) -> list[tuple[int, tuple[float, ...]]]:
        """Return this rank's share of the values of rows, with their indices.

        The reference is the model without its adapter.
        """
        accelerator, model = self._accelerator, self.model
        rank_and_count = accelerator.process_index, accelerator.num_processes
        sharded = ShardedModel(self._wrapped, self._rule) if self._sharded else None
        # Policy and reference share the base: without its adapter, the model is the reference.
        with using(model, None) if kind == "reference" else nullcontext():
            arguments = kind, rows, self.settings, temperature, rank_and_count, sharded
            return list(rank_row_values(model, *arguments))

    def _logprobs(self, rows: Sequence[Row]) -> list[tuple[float, ...]]:
        """Return the log-probs of rows' targets under the current weights, on all ranks."""
        parts = gather_object([self.row_values("logprobs", rows, self.objective.temperature)])
        values = {i: logprobs for part in parts for i, logprobs in part}
        return [values[i] for i in range(len(rows))]

    def leave_out(self, too_long: int, empty: int) -> None:
        """Add to the counts of dropped items."""
        self._record.counts.dropped_too_long += too_long
        self._record.counts.dropped_empty += empty

    def save(self) -> None:
        """Write a checkpoint."""
        self._refuse_closed()
        with self._scope(), self._prepared.training():
            self._record.save(self._weights, self._optimizer)

    def publish(self, folder: Path) -> None:
        """Save the current weights (of the adapter, for lora) to ``folder`` for engines to load."""
        self._refuse_closed()
        facts = {"steps": self.done, "settings": self.settings.model_dump(mode="json")}
        with self._prepared.training():
            checkpoint.save_weights(self.model, folder, facts, write=self.is_main)
            self._accelerator.wait_for_everyone()

    def send(self, kind: str, address: "Address") -> None:
        """Send the current weights to a paused vLLM server, from GPU to GPU (``engine.vllm.transfer``)."""
        # Only trainings beside vLLM servers load their clients.
        from coterie.engines.transfer import send_weights

        self._refuse_closed()
        with self._prepared.training():
            state = self.model.state_dict(keep_vars=True)
            # Gathering sharded weights needs all ranks; the sender is one of them.
            weights = {name: checkpoint.whole(weight).detach() for name, weight in state.items()}
            send_weights(weights, kind, address, self._accelerator.process_index)

    def finish(self) -> TrainingReport:
        """Save the final weights in ``folder/final``, remove the checkpoints, and close."""
        if self.report is None:
            self._refuse_closed()
            with self._prepared.training():
                self.report = self._record.finish()
        self.close()
        return self.report

    def close(self) -> None:
        """Release the model. Steps since the last checkpoint are lost; a new trainer can resume from it."""
        self._stack.close()
        self._closed = True

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Use the threads and random numbers of the training; restore the caller's at the end of the block."""
        threads, on_gpu = torch.get_num_threads(), torch.cuda.is_available()
        # Adapter initialization and stochastic rounding draw random numbers. The training continues
        # its own stream in each block, whatever its caller draws between two steps.
        with torch.random.fork_rng([torch.cuda.current_device()] if on_gpu else []):
            torch.set_num_threads(self.settings.threads or threads)
            if self._random is None:
                # First block of work of this trainer.
                torch.manual_seed(self.settings.seed)
            else:
                torch.set_rng_state(self._random[0])
            if self._random is not None and self._random[1] is not None:
                torch.cuda.set_rng_state(self._random[1])
            try:
                yield
            finally:
                on_device = torch.cuda.get_rng_state() if on_gpu else None
                self._random = (torch.get_rng_state(), on_device)
                torch.set_num_threads(threads)

    def _open(self, steps: int | None, identity: Mapping[str, str], keep_last: int | None) -> None:
        """Wrap the model and restore the state of the folder."""
        objective_settings = getattr(self.objective, "settings", None)
        names = self._prepared.names
        starting = self.model.named_parameters()
        # Adapters of other roles don't influence this training, and may have changed since it began.
        starting = ((n, parameter) for n, parameter in starting if n in names or ".lora_" not in n)
        numbers = (
            objective_settings.fingerprint() if isinstance(objective_settings, Settings) else ""
        )
        # A checkpoint with another identity is refused: resuming it would mix two trainings.
        identity = {
            "objective": self.objective.name,
            "objective's settings": numbers,
            "settings": self.settings.identity(),
            "steps": str(steps),
            checkpoint.START: checkpoint.hash_tensors(starting),
            **identity,
        }
        self._record = Record(
            *(self.model, self.folder, self.settings, self._accelerator, steps, identity), keep_last
        )
        self.report = self._record.load()
        # A finished training takes no more steps, so it needs no optimizer.
        if self.report is not None:
            return
        # Model and objective are wrapped together, so that log-probs are computed inside the
        # wrapper's forward pass, where DDP and FSDP act.
        module = LossModule(self.model, self.objective, self._rule)
        self._tally, self._facts = module.tally, module.facts
        self._optimizer = make_optimizer(self._trained(), self.settings)
        self._wrapped, self._wrapped_optimizer = self._accelerator.prepare(module, self._optimizer)
        self._weights = self._trained()  # sharding has replaced the parameters
        self._record.restore(self._weights, self._optimizer)

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        names = self._prepared.names
        return {
            name: parameter for name, parameter in self.model.named_parameters() if name in names
        }

    def _gradient(
        self, batch: Batch[Item], splitter: Splitter, families: Sequence[Family]
    ) -> tuple[float, float]:
        """Compute the clipped gradient of one step. Return the loss, and the norm before clipping.

        The denominator is known before the first pass. Ranks average their gradients, so each loss is multiplied by the
        number of ranks. An empty micro-batch computes a row with weight 0.
        """
        accelerator, module = self._accelerator, self._wrapped
        # The denominator is the whole step's, on all ranks. Each part adds its share to the gradient.
        ranks, count = accelerator.num_processes, sum(batch.counts)
        parts = rank_microbatches(splitter, families, accelerator.process_index, ranks)
        item_losses: list[tuple[int, torch.Tensor]] = []
        for number, part in enumerate(parts, start=1):
            items = [batch.items[i] for i in part or [0]]
            # Under FSDP2 a rank that does not reduce would keep the gradients of all weights.
            reduces = number == len(parts) or self._sharded
            with nullcontext() if reduces else accelerator.no_sync(module):
                losses = module(items, counts=bool(part))
                # Ranks average their gradients, but the shares should be added: hence the factor `ranks`.
                accelerator.backward(losses.sum() * (ranks / count if part else 0.0))
            # An empty part has the loss of its substitute, which does not count; hence not strict.
            item_losses += zip(part, losses.detach(), strict=False)
        total = sum((loss for _, loss in item_losses), torch.zeros((), device=accelerator.device))
        loss = float(accelerator.reduce(total, reduction="sum")) / count
        norm = float(accelerator.clip_grad_norm_(module.parameters(), self.settings.max_grad_norm))
        # Checked before the optimizer's step, while the weights are still right. All ranks have the
        # same loss and norm, so all raise.
        if not (math.isfinite(loss) and math.isfinite(norm)):
            # A finite sum of losses may still have an infinite gradient, so there may be no bad row.
            bad_names = [
                batch.names[i] for i, loss in item_losses if not math.isfinite(float(loss))
            ]
            bad = gather_object(bad_names)
            which = f"rows {', '.join((bad or batch.names)[:8])}"
            raise UserError(
                f"the loss ({loss}) or gradient norm ({norm}) of {which if bad else 'a step of ' + which} is not "
                "finite; this step did not change the weights",
                "check these rows and their weights; if the loss was growing, lower the learning_rate",
            )
        # Every pass has added its items in the same order to both lists.
        local = zip(item_losses, self._facts, strict=True)
        values = [(i, {"loss": loss / batch.counts[i], **facts}) for (i, loss), facts in local]
        rank_facts = [
            (batch.indices[i], {name: value.cpu().numpy() for name, value in facts.items()})
            for i, facts in values
        ]
        self._record.facts = sorted(gather_object(rank_facts), key=itemgetter(0))
        return loss, norm

    def _refuse_closed(self) -> None:
        if self.torn:
            raise UserError(
                f"the training in {self.folder} was interrupted while a step changed the weights",
                "close it and open it again with the model as first loaded; it resumes from its last checkpoint",
            )
        if self._closed or self.report is not None:
            raise UserError(
                f"the training in {self.folder} is {'finished' if self.report else 'closed'}",
                "use another folder for the next training" if self.report else "open it again",
            )


def train(
    model: Any,
    rows: Sequence[Any],
    settings: TrainingSettings,
    folder: Path | str,
    *,
    objective: Objective[Any] | None = None,
    adapter: str | None = None,
    resume: bool = True,
    progress: Progress | None = None,
    tracker: Tracker | None = None,
    heldout: Sequence[Any] = (),
    measure_every: int | None = None,
    keep: KeepFacts | None = None,
) -> TrainingReport:
    """Train a model in place.

    Other arguments and errors are as in :class:`Trainer`.

    Args:
        rows: Items of the objective: rows for SFT, the default. Every rank gets all of them.
        progress: Progress display.
        heldout: Items whose mean loss is in the metrics as ``heldout_loss``, at some steps and at the last one.
        measure_every: Steps between two measures of ``heldout``; an epoch by default.
        keep: Function that keeps the facts of each step.
    """
    objective = objective or SFT()
    # Filtered here, before the order of the steps is made, so that dropped items make no step smaller.
    batch = make_batch(rows, objective, max_row_length(model, settings))
    order = Order(batch.groups, settings.seed, settings.batch_size)
    with Trainer(
        *(model, objective, settings, Path(folder)),
        steps=order.count(settings),
        adapter=adapter,
        resume=resume,
        tracker=tracker,
        identity={"rows": hash_items(batch.items)},
    ) as trainer:
        return fit(trainer, batch, order, progress, heldout, measure_every, keep)


def fit(
    trainer: Any,
    batch: Batch[Any],
    order: Order,
    progress: Progress | None,
    heldout: Sequence[Any],
    measure_every: int | None,
    keep: KeepFacts | None,
) -> TrainingReport:
    """Take the remaining steps of a trainer, in this process or on ranks, and finish it."""
    if trainer.report is None:
        watch = progress if progress and trainer.is_main else Silent()
        steps, every = order.count(trainer.settings), measure_every or order.steps_per_epoch
        # A resumed training has counted its dropped items already.
        if trainer.done == 0:
            trainer.leave_out(batch.too_long, batch.empty)
        try:
            watch.start(steps, f"training {len(batch.items)} rows")
            watch.advance(trainer.done)
            # Continue after the steps of the checkpoint, in the same order. A process that was killed right after it
            # wrote the checkpoint has not kept the facts of its last step, which the checkpoint has.
            start = trainer.done - bool(trainer.facts)
            for number, indices in enumerate(order.steps(start, steps), start + 1):
                items = [batch.items[i] for i in indices]
                if number > trainer.done:
                    measured = heldout if number == steps or number % every == 0 else ()
                    watch.advance(1, **trainer.step(items, measured))
                if keep:
                    keep(number, items, trainer.facts)
        finally:
            watch.close()
    report: TrainingReport = trainer.finish()
    return report
