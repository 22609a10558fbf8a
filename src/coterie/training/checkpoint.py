"""Checkpoints that resume exactly, final weights, and the metrics of a training.

A checkpoint is a folder ``checkpoint-STEP`` with a model, like the final weights, and in ``trainer/`` the state of its
training: optimizer moments and states of random number generators. It is flushed to disk under a temporary name and
renamed. Weights that are sharded over ranks are gathered when saved, so the files do not depend on the number of ranks.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from pydantic import TypeAdapter
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.utils import logging

from coterie.config.folders import atomic_folder, flush
from coterie.errors import UserError
from coterie.models.adapters import (
    HEAD,
    HEAD_FILE,
    adapter_weights,
    find_head,
    save_adapter,
    split_head,
)
from coterie.models.loading import check_whole, reading, with_weights, writing
from coterie.models.saving import save_model, save_tokenizer
from coterie.record.rows import Facts
from coterie.training.settings import TrainingSettings

METRICS, REPORT, STATE = "metrics.jsonl", "training.json", "trainer/state.safetensors"
"""Files of a training: metrics of its steps, facts about saved weights, and the state of a checkpoint's optimizer."""
START = "starting weights"
"""Key of the identity of a training that its forks share."""


def save_checkpoint(
    folder: Path,
    step: int,
    model: Any,
    weights: Mapping[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    facts: Mapping[str, Any],
    *,
    write: bool = True,
    keep_last: int | None = 1,
) -> None:
    """Write ``checkpoint-STEP`` into ``folder``, and keep only the ``keep_last`` newest checkpoints (``None``: all).

    Every rank calls this; only a rank with ``write`` writes.
    """
    # Stochastic rounding draws random numbers, so an exact resumption needs the generators' states.
    tensors: dict[str, torch.Tensor] = {"random/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    for name, weight in weights.items():
        for key, value in optimizer.state[weight].items():
            # All ranks take part in gathering a sharded tensor, also those that do not write.
            gathered = whole(value)
            if write:
                tensors[f"optimizer/{name}/{key}"] = gathered.contiguous().cpu()
    target = checkpoint_folder(folder, step)
    save_weights(model, target, {"step": step, **facts}, tensors, write=write)
    if write and keep_last is not None:
        remove_checkpoints(folder, keep_last)


def checkpoint_folder(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint after an optimizer step."""
    return folder / f"checkpoint-{step:08d}"


def remove_checkpoints(folder: Path, keep_last: int, best: int | None = None) -> None:
    """Remove all but the ``keep_last`` newest checkpoints and the one after the optimizer step ``best``."""
    checkpoints = _checkpoints(folder)
    for old in checkpoints[: max(len(checkpoints) - keep_last, 0)]:
        if _step_of(old) != best:
            # A checkpoint that is half removed must not have the name of a whole one.
            shutil.rmtree(old.rename(old.with_name(f".{old.name}.partial")))


def fork_checkpoint(checkpoint: Path, target: Path) -> None:
    """Copy a checkpoint to the folder of another training, whose settings and objective may differ."""
    copied = target / checkpoint.name
    shutil.copytree(checkpoint, copied)
    shutil.copy2(checkpoint.parent / METRICS, target)
    facts = json.loads((copied / REPORT).read_text())
    # Settings and objective of a fork may differ, but it has to start from the same weights.
    facts["identity"] = {START: facts["identity"][START]}
    (copied / REPORT).write_text(json.dumps(facts, indent=1))


def saved_steps(folder: Path) -> list[int]:
    """Return the optimizer steps of the checkpoints in ``folder``, in order."""
    return list(map(_step_of, _checkpoints(folder)))


def newest_checkpoint(folder: Path) -> Path | None:
    return max(_checkpoints(folder), default=None)


def load_optimizer(
    checkpoint: Path, weights: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """Load the optimizer state and the random number generators of a checkpoint, whose model has its ``weights``."""
    file = checkpoint / STATE
    with reading(file, _advice(checkpoint)):
        tensors = load_file(file)
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        # Names are `optimizer/WEIGHT/KEY`, with dots but no slashes in the name of a weight.
        if group == "optimizer":
            weight, _, field = rest.rpartition("/")
            optimizer.state[weights[weight]][field] = _shard_like(tensor, weights[weight])
    torch.set_rng_state(tensors["random/cpu"])
    if "random/cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random/cuda"])


def save_weights(
    model: Any,
    folder: Path,
    facts: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor] | None = None,
    *,
    write: bool = True,
) -> None:
    """Save a model, with ``facts`` about its training, and the ``tensors`` of a checkpoint.

    Writes the model or its adapter, the tokenizer with the trained ends of turn, and the value head if any. Every rank
    calls this; only a rank with ``write`` writes.
    """
    # `keep_vars` keeps the parameters themselves, whose identity shows which names are tied.
    state = model.state_dict(keep_vars=True)
    gathered = {id(weight): whole(weight) for weight in state.values()}  # a tied weight stays tied
    weights = {name: gathered[id(weight)] for name, weight in state.items()}
    # Not earlier: gathering needs all ranks.
    if not write:
        return
    with writing(folder), atomic_folder(folder) as temporary:
        # Transformers and PEFT do not know the value head, which is saved in its own file.
        weights, head = split_head(weights)
        if isinstance(model, PeftModel):
            save_adapter(model, temporary, model.active_adapter, weights)
            save_tokenizer(model, temporary)
        else:
            with _without_bar():
                save_model(model, temporary, weights)
        if head:
            save_file(head, temporary / HEAD_FILE)
        (temporary / REPORT).write_text(json.dumps(facts, indent=1))
        if tensors is not None:
            (temporary / STATE).parent.mkdir()
            save_file(dict(tensors), temporary / STATE)


def load_weights(model: Any, folder: Path) -> None:
    """Load the weights of a checkpoint or of a finished training into ``model``, in place."""
    head = find_head(model)
    with reading(folder):
        head_weights = load_file(folder / HEAD_FILE) if head else {}
    if isinstance(model, PeftModel):
        file = folder / "adapter_model.safetensors"
        with reading(file):
            tensors = load_file(file)
        # PEFT would keep the random initial values of weights that the file lacks.
        check_whole(file, adapter_weights(model, model.active_adapter) - tensors.keys())
        set_peft_model_state_dict(model, tensors, adapter_name=model.active_adapter)
        if head:
            head.load_state_dict(
                {name.removeprefix(f"{HEAD}."): w for name, w in head_weights.items()}
            )
    else:
        with _without_bar(), reading(folder):
            # Load through Transformers, which ties weights and joins the parts of split files.
            saved = with_weights(type(model), folder, dtype=model.dtype)
        model.load_state_dict({**saved.state_dict(), **head_weights})


def finish_with(folder: Path, step: int) -> None:
    """Replace the final weights of a finished training with the weights of a checkpoint."""
    # Only the weights change: the report of the whole training stays, and a final folder has no optimizer state.
    final, ignored = folder / "final", shutil.ignore_patterns(Path(STATE).parent.name)
    with atomic_folder(final) as temporary:
        weights = checkpoint_folder(folder, step)
        shutil.copytree(weights, temporary, dirs_exist_ok=True, ignore=ignored)
        shutil.copy2(final / REPORT, temporary)


def weight_hash(model: Path | nn.Module) -> str:
    """Return the SHA-256 of tensor names in order, dtypes, shapes and bytes.

    A saved folder and its model have the same hash: a tied weight counts once, and of a model with an adapter only the
    adapter and a value head count, because only these are saved.
    """
    if isinstance(model, Path):
        return hash_tensors(_saved_tensors(model))
    if isinstance(model, PeftModel):
        adapter = get_peft_model_state_dict(model, adapter_name=model.active_adapter)
        head = split_head(dict(model.named_parameters()))[1]
        return hash_tensors({**adapter, **head}.items())
    # Buffers that are not saved (such as rotary angles) are computed from the config when loaded.
    saved = set(model.state_dict())
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in saved]
    return hash_tensors([*model.named_parameters(), *buffers])


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gather a tensor from all ranks if it is sharded; then every rank has to call this."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _shard_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Move a full tensor to the device and the sharding of ``like``."""
    if tensor.shape != like.shape:  # the optimizer's step count
        return tensor
    tensor = tensor.to(like.device)
    # Checkpoints have whole tensors, so that a training may resume on another number of ranks.
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements)


def hash_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return the SHA-256 of (name, dtype, shape, bytes) in the order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda pair: pair[0]):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        # As bytes, because NumPy has no bfloat16.
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_items(items: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for item in items:
        digest.update(repr(item).encode())
    return digest.hexdigest()


def _saved_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} has no *.safetensors file", "give a folder of saved weights")
    for path in files:
        with reading(path), safe_open(path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, opened.get_tensor(name)


@contextmanager
def _without_bar() -> Iterator[None]:
    """Disable the progress bar of Transformers, which would overwrite ours."""
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*"))


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


@dataclass
class Counts:
    """Counts of a training so far."""

    rows: int
    """Items of all steps, counted again in each epoch."""
    dropped_too_long: int
    """Items with a row longer than the limit."""
    dropped_empty: int
    """Items with a count of 0 (no targets, weight 0)."""
    tokens: int
    """Tokens of all trained rows, without padding."""
    targets: int
    computed_tokens: int
    """Tokens of the forward and backward passes; a shared prefix counts once."""


@dataclass
class TrainingReport(Counts):
    """Result of a training, also in ``final/training.json``."""

    final: Path
    steps: int
    first_loss: float
    last_loss: float
    """Mean loss of the last tenth of the steps."""
    seconds: float
    """Time spent in steps, over all sessions of a resumed training."""


@dataclass(eq=False)
class Record:
    """Progress of one training and its files."""

    _model: Any
    _folder: Path
    settings: TrainingSettings
    _accelerator: Accelerator
    total: int | None
    _identity: Mapping[str, str]
    _keep_last: int | None = 1
    counts: Counts = field(default_factory=lambda: Counts(0, 0, 0, 0, 0, 0))
    facts: Sequence[tuple[int, Facts]] = ()
    """Facts of the last step, see ``Trainer.facts``."""
    _losses: list[float] = field(default_factory=list)
    _seconds: float = 0.0
    _seconds_before: float = 0.0
    _tokens_before: int = 0
    _saved_at: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        return len(self._losses)

    def load(self) -> TrainingReport | None:
        """Load the weights of the finished training and return its report, or those of the newest checkpoint.

        Called before ranks shard the model.
        """
        final, advice = self._folder / "final", _advice(self._folder)
        # A final folder is complete, since it was renamed into place.
        if final.exists():
            identity, report = read_report(final)
            self._check(identity)
            load_weights(self._model, final)
            return report
        if (newest := newest_checkpoint(self._folder)) is not None:
            state = newest / REPORT
            with reading(state, advice):
                facts = json.loads(state.read_text())
                self._check(facts["identity"])
                self.counts = TypeAdapter(Counts).validate_python(facts["counts"])
                self.facts = json.loads(facts["step_facts"])
            load_weights(self._model, newest)
            # Tokens and seconds of earlier sessions don't count for the speed: they may be of another machine.
            self._tokens_before = self.counts.tokens
            self._seconds = self._seconds_before = facts["seconds"]
            with reading(self._metrics, advice), self._metrics.open() as lines:
                # Lines after the checkpoint's step are of steps that will be repeated.
                self._losses = [json.loads(lines.readline())["loss"] for _ in range(facts["step"])]
        return None

    def restore(
        self, weights: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> None:
        """Load the optimizer state of the checkpoint whose weights :meth:`load` has loaded."""
        if (newest := newest_checkpoint(self._folder)) is not None:
            load_optimizer(newest, weights, optimizer)
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:  # remove the metrics of later steps, which run again
            with self._metrics.open("a+b") as file:
                file.seek(0)
                for _ in self._losses:
                    file.readline()
                file.truncate(file.tell())
        self._saved_at = time.monotonic()

    def add(
        self,
        *,
        loss: float,
        grad_norm: float,
        learning_rate: float,
        seconds: float,
        measures: Mapping[str, float],
    ) -> dict[str, float]:
        """Append a step to ``metrics.jsonl`` and return its metrics; ``measures`` come from the objective."""
        self._losses.append(loss)
        self._seconds += seconds
        counts = self.counts
        speed = (counts.tokens - self._tokens_before) / (self._seconds - self._seconds_before)
        metrics = {
            "step": self.done,
            "loss": loss,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            "tokens_per_second": speed,
            "rows_dropped": counts.dropped_too_long + counts.dropped_empty,
            **measures,
        }
        if self.total is not None:
            # Assume that later steps have the mean number of tokens of the steps so far.
            remaining = self.total - self.done
            metrics["seconds_left"] = remaining * counts.tokens / self.done / speed
        if self._accelerator.is_main_process:
            with self._metrics.open("a") as file:
                file.write(json.dumps(metrics) + "\n")
        return metrics

    @property
    def save_is_due(self) -> bool:
        """True if a checkpoint is due by steps or time, the same on all ranks; False at the last step."""
        every = self.settings.save_every_steps
        due = every is not None and self.done % every == 0
        seconds = self.settings.save_every_seconds
        due = due or (seconds is not None and time.monotonic() - self._saved_at >= seconds)
        if self._accelerator.num_processes > 1:  # clocks differ, and all ranks save together
            (due,) = broadcast_object_list([due])
        return due and self.done != self.total

    def save(
        self,
        weights: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        *,
        with_facts: bool = False,
    ) -> None:
        """Write a checkpoint, with the facts of its last step if ``with_facts``."""
        if write := self._accelerator.is_main_process:
            # `load` reads the losses back from the metrics, so they must be on disk before the checkpoint is.
            flush(self._metrics)
        facts = {
            "identity": self._identity,
            "counts": asdict(self.counts),
            "seconds": self._seconds,
            # A text, whose numbers get no lines of their own.
            "step_facts": json.dumps(self.facts if with_facts else (), default=np.ndarray.tolist),
        }
        save_checkpoint(
            *(self._folder, self.done, self._model, weights, optimizer, facts),
            write=write,
            keep_last=self._keep_last,
        )
        self._saved_at = time.monotonic()

    def finish(self) -> TrainingReport:
        # The loss of a single step is noisy: report the mean of the last tenth.
        tail, final = self._losses[-max(len(self._losses) // 10, 1) :], self._folder / "final"
        report = TrainingReport(
            final=final,
            steps=len(self._losses),
            **asdict(self.counts),
            first_loss=self._losses[0] if self._losses else 0.0,
            last_loss=sum(tail) / max(len(tail), 1),
            seconds=self._seconds,
        )
        facts = {
            "identity": self._identity,
            "settings": self.settings.model_dump(mode="json"),
            "report": {k: v for k, v in asdict(report).items() if k != "final"},
        }
        write = self._accelerator.is_main_process
        save_weights(self._model, final, facts, write=write)
        if write and self._keep_last is not None:
            remove_checkpoints(self._folder, 0)
        self._accelerator.wait_for_everyone()
        return report

    @property
    def _metrics(self) -> Path:
        return self._folder / METRICS

    def _check(self, identity: Mapping[str, str]) -> None:
        names = identity if [*identity] == [START] else self._identity  # a fork has other settings
        changed = [name for name in names if identity.get(name) != self._identity[name]]
        if changed:
            raise UserError(
                f"{self._folder} has a training that differs in its {', '.join(changed)}",
                "use another folder, restart the training (resume=False), or repeat the arguments of the "
                "earlier training (with the starting weights as first loaded)",
            )


def read_report(final: Path) -> tuple[dict[str, str], TrainingReport]:
    """Return the identity and the report of a finished training. Raises ``UserError`` if the file is damaged."""
    file = final / REPORT
    with reading(file, _advice(final.parent)):
        record = json.loads(file.read_text())
        fields = {**record["report"], "final": final}
        return record["identity"], TypeAdapter(TrainingReport).validate_python(fields)


def _advice(folder: Path) -> str:
    return f"remove {folder}; the training then starts again"


def open_folder(
    folder: Path, accelerator: Accelerator, *, resume: bool, at: int | None = None
) -> None:
    """Make the folder of a training and remove incomplete files of a killed process.

    Removes the earlier training unless ``resume``, and checkpoints after the optimizer step ``at``.
    """
    if accelerator.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        for path in (*folder.glob(".*.partial"), *(() if resume else folder.glob("final"))):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in _checkpoints(folder):
            if not resume or (at is not None and _step_of(path) > at):
                shutil.rmtree(path)
        if not resume:
            (folder / METRICS).unlink(missing_ok=True)
    # Other ranks must not look for a checkpoint before the folder is clean.
    accelerator.wait_for_everyone()
