"""Trainers and frozen models on ranks, with the methods of those in one process."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

import torch
from peft import PeftModel
from pydantic import TypeAdapter
from safetensors.torch import save_file

from coterie.config.plugins import at_place, place_of
from coterie.config.settings import Settings
from coterie.engines.connections import Address
from coterie.errors import UserError
from coterie.models.adapters import HEAD_FILE, ModelSource, find_head, save_adapter, split_head
from coterie.models.loading import LoadedModel
from coterie.progress import Progress
from coterie.record.rows import Facts, Row
from coterie.training.batches import Order, make_batch, max_row_length
from coterie.training.checkpoint import TrainingReport, hash_items, saved_steps
from coterie.training.losses import Item, Objective
from coterie.training.ranks import Job, Ranks, request
from coterie.training.reference import RowValue
from coterie.training.settings import Tracker, TrainingSettings
from coterie.training.trainer import KeepFacts, fit


class RankTrainer(Generic[Item]):
    """A :class:`~coterie.training.trainer.Trainer` on ranks.

    Requests that change the trainer (:meth:`_call`) are kept until the next checkpoint, and repeated if all ranks start
    again. Other requests are only sent.
    """

    def __init__(
        self,
        ranks: Ranks,
        source: ModelSource,
        objective: Objective[Item],
        settings: TrainingSettings,
        folder: Path,
        item: type[Item],
        *,
        steps: int | None = None,
        tracker: Tracker | None = None,
        identity: Mapping[str, str] | None = None,
        keep_last: int | None = 1,
        at: int | None = None,
    ) -> None:
        objective_settings = getattr(objective, "settings", None)
        saved = (
            (place_of(type(objective_settings)), objective_settings.model_dump_json())
            if isinstance(objective_settings, Settings)
            else None
        )
        job = Job(
            source=source,
            settings=settings,
            folder=folder.absolute(),
            objective=place_of(type(objective)),
            objective_settings=saved,
            item=place_of(item),
            steps=steps,
            identity=identity or {},
            keep_last=keep_last,
            at=at,
        )
        _check_job(job, objective)
        self.settings = settings
        self.folder = folder
        self.report: TrainingReport | None = None
        self.done = self.longest = 0
        self.facts: Sequence[tuple[int, Facts]] = ()
        self._ranks, self._job = ranks, job
        # The number keeps trainers apart whose folders have the same name.
        self._name = f"{len(ranks.trainers)}/{folder.name}"
        self._tracker = tracker or Tracker()
        self._kept: list[tuple[int, bytes]] = []
        """Requests since the last checkpoint, with the number of steps before each."""
        self._set_state(ranks.call(self._request("open", job=job))[0])
        ranks.trainers.append(self)

    is_main = True
    """The process of this object reports the progress."""
    torn = True
    """As if a step were always changing the weights (``Trainer.torn``), so that Ctrl-C waits for its end."""

    def __enter__(self) -> "RankTrainer[Item]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, items: Sequence[Item], heldout: Sequence[Item] = ()) -> dict[str, float]:
        # With the number of steps before it, so that ranks with a checkpoint of this step skip it.
        done_before = {"before": self.done}
        reply = self._call("step", items=items, heldout=heldout, **done_before)
        metrics: dict[str, float] = reply["metrics"]
        self.facts = reply["facts"]
        self.done += 1
        self._tracker.log(metrics, self.done)
        # A checkpoint may be due after a step; the requests before it need not be repeated.
        saved = max(saved_steps(self.folder), default=0)
        self._kept = [entry for entry in self._kept if entry[0] >= saved]
        return metrics

    def row_values(
        self, kind: RowValue, rows: Sequence[Row], temperature: float
    ) -> list[tuple[float, ...] | None]:
        """Compute the values of rows on all ranks; the reference is the model without its adapter."""
        values = {"kind": kind, "rows": rows, "temperature": temperature}
        return _merge(self._ranks.call(self._request("row_values", **values)), len(rows))

    def leave_out(self, too_long: int, empty: int) -> None:
        if too_long or empty:
            self._call("leave_out", too_long=too_long, empty=empty)

    def save(self) -> None:
        self._ranks.call(self._request("save"))
        self._kept.clear()

    def publish(self, folder: Path) -> None:
        """Save the current weights (of the adapter, for lora) to ``folder`` for engines to load."""
        self._ranks.call(self._request("publish", folder=folder.absolute()))

    def finish(self) -> TrainingReport:
        """Save the final weights in ``folder/final``, remove the checkpoints, and close."""
        if self.report is None:
            self._set_state(self._ranks.call(self._request("finish"))[0])
        assert self.report is not None
        self.close()
        return self.report

    def send(self, kind: str, address: Address) -> None:
        """Send the current weights to a paused vLLM server, from GPU to GPU (``engine.vllm.transfer``)."""
        self._ranks.call(self._request("send", kind=kind, address=address))

    def close(self) -> None:
        """Forget the trainer. The ranks end with their block."""
        if self in self._ranks.trainers:
            self._ranks.trainers.remove(self)

    def reopen(self) -> None:
        """Open the trainer on new ranks and repeat the steps after its last checkpoint."""
        # From the newest checkpoint, which may be later than the one of the first start.
        (state, *_) = self._ranks.exchange(self._request("open", job=replace(self._job, at=None)))
        for done_before, message in self._kept:
            if done_before >= state["done"]:
                self._ranks.exchange(message)

    def _call(self, do: str, **values: Any) -> Any:
        """Send a request that changes the trainer, and keep it until the next checkpoint."""
        message = self._request(do, **values)
        reply, *_ = self._ranks.call(message)
        # Kept after the reply only: `call` itself sends a request again that had none.
        self._kept.append((self.done, message))
        return reply

    def _request(self, do: str, **values: Any) -> bytes:
        return request(self._name, do, **values)

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self.done, self.longest, self.facts = state["done"], state["longest"], state["facts"]
        if state["report"] is not None:
            self.report = TypeAdapter(TrainingReport).validate_python(state["report"])


@dataclass(frozen=True, slots=True)
class RankScorer:
    """Frozen model on ranks; its adapter, if any, is active. A context manager."""

    ranks: Ranks
    source: ModelSource
    settings: TrainingSettings

    def __enter__(self) -> "RankScorer":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.ranks.call(request("", "forget"))

    def row_values(
        self, kind: RowValue, rows: Sequence[Row], temperature: float
    ) -> list[tuple[float, ...] | None]:
        model = {"source": self.source, "settings": self.settings.model_dump(mode="json")}
        values = {"kind": kind, "rows": rows, "temperature": temperature}
        return _merge(self.ranks.call(request("", "score", **model, **values)), len(rows))


def _merge(parts: Sequence[Any], count: int) -> list[tuple[float, ...] | None]:
    """Join the values of all ranks, in the order of the rows."""
    result: list[tuple[float, ...] | None] = [None] * count
    for part in parts:
        for i, rank_values in part:
            result[i] = tuple(rank_values)
    return result


def _check_job(job: Job, objective: Objective[Any]) -> None:
    """Raise ``UserError`` if ranks can't rebuild the objective, or the class of the items."""
    try:
        rebuilt = vars(job.make_objective()) == vars(objective)
        is_class = isinstance(at_place(job.item), type)
    except (ImportError, AttributeError, TypeError):
        rebuilt = is_class = False
    in_main = any(name.startswith("__main__:") for name in (job.objective, job.item))
    if in_main or not is_class or not rebuilt:
        raise UserError(
            f"ranks can't rebuild the objective {job.objective} from its class and settings, or the items {job.item}",
            "define the class at the top level of an importable module and put all its numbers into `settings`, or "
            "train in one process",
        )


def source_of(loaded: LoadedModel, folder: Path) -> ModelSource:
    """Return the source of a model, whose adapter and value head are saved in ``folder``."""
    model = loaded.model
    adapter = model.active_adapter if isinstance(model, PeftModel) else None
    folder.mkdir(parents=True, exist_ok=True)
    if adapter is not None:
        save_adapter(model, folder, adapter)
    head = find_head(model) is not None
    if head:
        save_file(split_head(model.state_dict())[1], folder / HEAD_FILE)
    return ModelSource(
        loaded.source,
        str(model.dtype).removeprefix("torch."),
        model.config._attn_implementation,
        load_in_4bit=getattr(model, "is_loaded_in_4bit", False),
        adapter=str(folder.absolute()) if adapter is not None else None,
        trainable=True,
        head=str(folder.absolute()) if head else None,
    )


@contextmanager
def ranks_of(
    loaded: LoadedModel,
    settings: TrainingSettings,
    folder: Path,
    launch: Mapping[str, Any] | None = None,
) -> Iterator[tuple[Ranks, ModelSource]]:
    """Start ranks for a model, which leaves its device to them. ``folder`` is the training's folder.

    ``launch`` has the arguments of :class:`Ranks` for a cluster.
    """
    device, job = loaded.model.device.type, folder / "job"
    shutil.rmtree(job, ignore_errors=True)
    source = source_of(loaded, job)
    if device == "cuda":
        loaded.model.to("cpu")  # the ranks need the room
        torch.cuda.empty_cache()
    try:
        with Ranks(settings, device, job, **(launch or {})) as ranks:
            yield ranks, source
        shutil.rmtree(job)
    finally:
        loaded.model.to(device)


def train_on_ranks(
    ranks: Ranks,
    source: ModelSource,
    model: Any,
    items: Sequence[Any],
    settings: TrainingSettings,
    folder: Path,
    objective: Objective[Any],
    progress: Progress,
    tracker: Tracker,
    heldout: Sequence[Any] = (),
    measure_every: int | None = None,
    keep: KeepFacts | None = None,
) -> TrainingReport:
    """Run :func:`~coterie.training.trainer.train` on ranks; ``model`` is the starting model, which does not change.

    Raises :class:`UserError` as ``train`` does, and with the end of the log if the ranks die again and again. The next
    call resumes from the last checkpoint.
    """
    batch = make_batch(items, objective, max_row_length(model, settings))
    kinds = sorted({place_of(type(item)) for item in batch.items})
    if len(kinds) > 1:
        raise UserError(
            f"ranks train items of one class, but these have several: {', '.join(kinds)}",
            "use one class, or train in one process",
        )
    order = Order(batch.groups, settings.seed, settings.batch_size)
    with RankTrainer(
        *(ranks, source, objective, settings, folder, type(batch.items[0])),
        steps=order.count(settings),
        tracker=tracker,
        identity={"rows": hash_items(batch.items)},
    ) as trainer:
        return fit(trainer, batch, order, progress, heldout, measure_every, keep)
