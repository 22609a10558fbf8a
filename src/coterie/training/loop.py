"""The training loop: the same for every objective, full weights or adapter, one rank or many.

    report = train(model, rows, TrainingSettings(learning_rate=1e-3), Path("runs/x/train"))

The folder then holds ``final/`` (weights, config, tokenizer files, ``training.json``) and
``metrics.jsonl`` (a line per optimiser step). Until then it holds a checkpoint; calling ``train``
again with the same arguments goes on from it, and in float32 on one CPU process the weights come out
bitwise as if it had never stopped. A finished training is not done again.
"""

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, gather_object

from coterie.errors import UserError
from coterie.models.check import check
from coterie.models.heads import find_head
from coterie.models.packing import CostRule
from coterie.models.splitting import Family
from coterie.progress import Progress, Silent
from coterie.training.batches import TrainingPlan, plan
from coterie.training.forward import LossModule
from coterie.training.objective import Item, Objective
from coterie.training.optimizer import make_optimizer, rate_at, set_rate
from coterie.training.prepare import max_row_length, precision, prepared, trainable
from coterie.training.record import Record, TrainingReport, open_folder
from coterie.training.settings import TrainingSettings
from coterie.training.sft import SFT
from coterie.training.trackers import Tracker, make_tracker


def train(
    model: Any,
    rows: Sequence[Any],
    settings: TrainingSettings,
    folder: Path,
    *,
    objective: Objective[Any] | None = None,
    adapter: str | None = None,
    resume: bool = True,
    progress: Progress | None = None,
    tracker: Tracker | None = None,
) -> TrainingReport:
    """Train ``model`` in place on ``rows`` (the objective's items; SFT on rows by default).

    With ``method=lora`` a model without adapter gets a fresh one, which is taken off again at the
    end and lives in ``folder/final``; of a model with adapters the one named, or the active one, is
    trained. On one rank of many, give every rank all rows. ``tracker`` stands in for the one that ``settings`` names.

    An objective that reads values needs a model with a value head (``models.heads``), which is trained
    with it; full weights only, and not under FSDP.

    Raises :class:`UserError` for what can't be trained: no rows left, a folder with another
    training, dropout, no head, a loss or gradient that is not finite (the weights are then as they were
    before the step).
    """
    objective = objective or SFT()
    with (
        _torch(settings),
        prepared(model, settings, adapter, objective.reads) as model,
        _accelerator(settings, model.device) as accelerator,
    ):
        if find_head(model) is not None:
            _refuse_sharded_head(accelerator)
        rule = check(model).packing(settings.packing)
        batches = _plan(model, rows, settings, objective, rule)
        open_folder(folder, accelerator, resume=resume)
        record = Record(model, objective.name, batches, settings, folder, accelerator)
        if (report := record.finished()) is not None:
            return report
        watch = progress if progress and accelerator.is_main_process else Silent()
        name = settings.tracker if accelerator.is_main_process else "none"
        tracker = tracker or make_tracker(
            name, folder, "-".join(folder.parts[-3:]), settings.model_dump()
        )
        try:
            watch.start(record.total, f"training {len(batches.items)} rows")
            module = LossModule(model, objective, rule)
            _run(accelerator, module, batches, record, watch, tracker)
        finally:
            watch.close()
            tracker.close()
        return record.finish()


def _plan(
    model: Any,
    rows: Sequence[Item],
    settings: TrainingSettings,
    objective: Objective[Item],
    rule: CostRule | None,
) -> TrainingPlan[Item]:
    return plan(
        rows,
        objective,
        seed=settings.seed,
        batch_rows=settings.batch_rows,
        tokens_per_microbatch=settings.tokens_per_microbatch,
        max_length=max_row_length(model, settings),
        rule=rule,
    )


def _run(
    accelerator: Accelerator,
    module: LossModule[Item],
    batches: TrainingPlan[Item],
    record: Record,
    progress: Progress,
    tracker: Tracker,
) -> None:
    """Take the steps that are left."""
    settings = record.settings
    optimizer = make_optimizer(trainable(module.model), settings)
    wrapped, stepper = accelerator.prepare(module, optimizer)
    weights = trainable(module.model)  # sharding has put others in their places
    first = record.restore(weights, optimizer)
    progress.advance(first)
    for step, chosen in enumerate(batches.steps(first, record.total), start=first):
        rate = rate_at(step, record.total, settings)
        set_rate(optimizer, rate)
        families = batches.splitter.families(chosen)
        loss, norm = _gradient(accelerator, wrapped, batches, families, settings.max_grad_norm)
        stepper.step()
        stepper.zero_grad()
        record.computed_tokens += sum(family.nodes for family in families)
        metrics = record.add(chosen, loss=loss, grad_norm=norm, learning_rate=rate)
        progress.advance(1, **metrics)
        tracker.log(metrics, step + 1)
        record.save_if_due(weights, optimizer)


def _gradient(
    accelerator: Accelerator,
    module: LossModule[Item],
    batches: TrainingPlan[Item],
    families: Sequence[Family],
    max_norm: float,
) -> tuple[float, float]:
    """Put the gradient of one step into the weights, clipped; gives (loss, norm before clipping).

    The denominator is one number, known before the first pass. Ranks average their gradients, so
    each loss is multiplied by their number. An empty micro-batch takes a row along at weight 0.
    """
    chosen = [item for family in families for item in family.items]
    ranks, count = accelerator.num_processes, sum(batches.counts[i] for i in chosen)
    parts = batches.microbatches(families, accelerator.process_index, ranks)
    found: list[tuple[int, torch.Tensor]] = []
    for number, part in enumerate(parts, start=1):
        items = [batches.items[i] for i in part or chosen[:1]]
        with nullcontext() if number == len(parts) else accelerator.no_sync(module):
            losses = module(items)
            accelerator.backward(losses.sum() * (ranks / count if part else 0.0))
        found += zip(part, losses.detach(), strict=False)
    total = sum((loss for _, loss in found), torch.zeros((), device=accelerator.device))
    loss = float(accelerator.reduce(total, reduction="sum")) / count
    norm = float(accelerator.clip_grad_norm_(module.parameters(), max_norm))
    if not all(map(_finite, (loss, norm))):
        module.zero_grad()
        bad = [batches.names[i] for i, value in found if not _finite(float(value))]
        _refuse_step(loss, norm, gather_object(bad), [batches.names[i] for i in chosen])
    return loss, norm


def _refuse_step(loss: float, norm: float, bad: list[str], step: list[str]) -> None:
    """Say which rows made a step's loss or gradient not finite."""
    rows = f"of rows {', '.join(bad[:8])}" if bad else f"of a step of rows {', '.join(step[:8])}"
    raise UserError(
        f"the loss ({loss}) or gradient norm ({norm}) {rows} is not finite; "
        "the weights are as they were before this step",
        "look at these rows and their weights; a lower learning_rate may help if loss had grown",
    )


def _finite(value: float) -> bool:
    return value - value == 0.0


@contextmanager
def _torch(settings: TrainingSettings) -> Iterator[None]:
    """Threads and random numbers of this training; the caller's are put back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads or threads)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _shard_on_cpu(accelerator: Accelerator) -> None:
    """Let FSDP shard over CPU ranks too where a launcher asked for it; Accelerate takes only GPUs."""
    asked = os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
    state = AcceleratorState()
    if asked and state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin()


@cache
def _end_ranks_at_exit() -> None:
    """Have the process group taken down at exit: a process that ends with gloo's threads may abort."""
    atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())


def _refuse_sharded_head(accelerator: Accelerator) -> None:
    """A head is not one of the layers that FSDP gathers; nobody has seen that work."""
    if accelerator.distributed_type == DistributedType.FSDP:
        raise UserError(
            "a model with a value head can't be trained under FSDP",
            "train it on one GPU or with a copy on each (configs/accelerate/ddp.yaml)",
        )


@contextmanager
def _accelerator(settings: TrainingSettings, device: torch.device) -> Iterator[Accelerator]:
    """Accelerate, set up for one training on the device that the model is on.

    Ranks that a launcher has started have the devices that it gave them.

    Its state outlives it in the process and would refuse another precision, so it is cleared.
    """
    AcceleratorState._reset_state()
    alone = "WORLD_SIZE" not in os.environ
    if alone and device.type == "cuda":
        torch.cuda.set_device(device)
    accelerator = Accelerator(
        cpu=alone and device.type == "cpu", mixed_precision=precision(settings, device)
    )
    _shard_on_cpu(accelerator)
    if dist.is_initialized() and dist.get_backend() == "gloo":
        _end_ranks_at_exit()
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        raise UserError(
            "training under DeepSpeed is not there yet: it steps inside its backward pass, before a "
            "loss or gradient that is not finite can be refused",
            "launch it with FSDP (configs/accelerate/fsdp2.yaml), which shards as much",
        )
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise UserError(
            "training runs under FSDP 2, not FSDP 1", "use configs/accelerate/fsdp2.yaml"
        )
    try:
        yield accelerator
    finally:
        accelerator.free_memory()
