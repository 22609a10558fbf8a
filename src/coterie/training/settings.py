"""Settings of a training and of its objective, and experiment trackers that receive its metrics."""

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from uuid import uuid4

from pydantic import Field, model_validator

from coterie.config.plugins import error_message
from coterie.config.resolve import flatten
from coterie.config.settings import MOST_SEED, OptionalPath, Settings, key
from coterie.errors import UserError

if TYPE_CHECKING:
    import torch

Method = Literal["full", "lora"]
Schedule = Literal["cosine", "linear", "constant"]
Packing = Literal["auto", "flat"]
Precision = Literal["no", "bf16", "auto"]
DType = Literal["float32", "bfloat16"]
Reduction = Literal["none", "tokens", "turns"]
"""``none``: sum over tokens. ``tokens``: their mean. ``turns``: sum over turns of the mean over a turn's tokens."""
PairLoss = Literal["dpo", "ipo", "simpo", "orpo", "kto"]
Aggregation = Literal["token", "sequence", "constant"]
KLEstimator = Literal["k2", "k3", "k3_forward"]
OldLogprobs = Literal["behavior", "recomputed"]
PolicyLoss = Literal["ppo", "gspo", "cispo"]
ImportanceSampling = Literal[
    "off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
]
Reads = Literal["logprobs", "entropies", "entropies_no_grad", "values", "differences", "states"]
"""Kind of values that an objective reads at each target token.

* ``logprobs``: log-prob of the token, shape ``(targets,)``.
* ``entropies``: log-prob, and entropy of the token's distribution, ``(targets, 2)``; ``entropies_no_grad``: without a
  gradient.
* ``values``: the value head's output at the token. ``states``: its output before the token.
* ``differences``: as ``values``, for a loss on differences. The head's bias cancels and is frozen: its gradient would
  be pure rounding error, which Adam would amplify.
"""
Beta = Annotated[float, Field(ge=0, lt=1)]

_WITHOUT_EFFECT = (
    "save_every_seconds",
    "save_every_steps",
    "processes",
    "launch",
    "stall_seconds",
    "token_facts",
)
"""Keys that do not change the weights beyond rounding, so that they may differ when a training is resumed."""


class TrainerSettings(Settings):
    """Settings that all trainings of a run share: trained weights, precision, memory, ranks.

    ``mixed_precision=auto`` is bfloat16 on a CUDA device that supports it, and float32 elsewhere. With
    ``dtype=bfloat16`` all weights of the model are bfloat16, but an adapter is float32. On a CPU ``auto`` stays
    float32: bfloat16 is only an eighth faster there (``tiny``, AVX512-BF16 without AMX: 4,800 against 5,400 tokens/s
    per thread), and resumption and log-probs would no longer be exact.
    """

    method: Method = key("full", "train all weights, or a low-rank adapter on frozen ones")
    lora_r: int | None = key(None, "rank of the adapter (lora only; 16 if not given)", ge=1)
    lora_alpha: int | None = key(None, "scale of the adapter (lora only; 2r if not given)", gt=0)
    lora_targets: tuple[str, ...] = key(
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        "names of the layers that get an adapter; all-linear: all linear layers but the output layer",
        min_length=1,
    )
    packing: Packing = key(
        "auto", "auto: compute shared prefixes of rows once where that is cheaper; flat: never"
    )
    betas: tuple[Beta, Beta] = key((0.9, 0.999), "AdamW's decay rates of its two moments")
    max_grad_norm: float = key(1.0, "gradient clipping: maximum norm", gt=0)
    gradient_checkpointing: bool = key(False, "recompute activations: less memory, more time")
    dtype: DType = key(
        "float32",
        "dtype of the weights; bfloat16 in one training applies to all models of the run in this process: less memory, "
        "with stochastic rounding so that small updates are not lost",
    )
    load_in_4bit: bool = key(
        False, "QLoRA: frozen linear layers in 4 bits, in all models (lora only)"
    )
    mixed_precision: Precision = key("auto", "bfloat16 autocast; auto: on CUDA only")
    seed: int = key(0, "seed of the row order and of a new adapter", ge=0, le=MOST_SEED)
    threads: int | None = key(None, "CPU threads of torch; none: do not change them", ge=1)
    processes: int | None = key(
        None,
        "number of ranks, each a process that coterie starts; none: train in the run's process, or on the number of "
        "ranks in the launch file",
        ge=1,
    )
    launch: OptionalPath = key(
        None,
        "Accelerate configuration file for the ranks, such as configs/accelerate/fsdp2.yaml; none: a copy of the model "
        "on each rank",
    )
    stall_seconds: float = key(
        300.0, "seconds without a sign of life of a rank after which all ranks start again", ge=10
    )
    token_facts: str = key(
        "all",
        "steps whose trained tokens the record keeps with advantage, log-prob, entropy and clipping: all, every Nth "
        "(steps:N), or none; the trained rows are always recorded",
        pattern=r"^(all|none|steps:[1-9]\d*)$",
    )

    @model_validator(mode="after")
    def _check_lora(self) -> Self:
        if self.method == "full" and (self.lora_r is not None or self.lora_alpha is not None):
            raise ValueError(
                "lora_r and lora_alpha have no effect with method=full; use method=lora, or set both to none"
            )
        if self.method == "full" and self.load_in_4bit:
            raise ValueError(
                "load_in_4bit=true freezes the weights, and method=full trains them; use method=lora"
            )
        return self

    def keeps_facts(self, step: int) -> bool:
        """Return True if the record keeps the facts of the tokens of a step, counted from 0."""
        kind, _, every = self.token_facts.partition(":")
        return kind != "none" and step % int(every or 1) == 0

    def autocast(self, *, on_gpu: bool) -> bool:
        """Return True if the training uses bfloat16 autocast; ``on_gpu``: on a GPU with bfloat16 support."""
        # Weights that are all bfloat16 compute in bfloat16 anyway; a float32 adapter on them needs
        # autocast to have the same dtype as its layer.
        if self.mixed_precision != "auto":
            return self.mixed_precision == "bf16"
        return on_gpu and not (self.dtype == "bfloat16" and self.method == "full")

    @property
    def rank(self) -> int:
        """Rank of the adapter, 16 by default."""
        return self.lora_r or 16

    @property
    def alpha(self) -> int:
        """Scale of the adapter, twice its rank by default."""
        return self.lora_alpha or 2 * self.rank

    def identity(self) -> str:
        """Return the hash of all settings that can change the trained weights."""
        fields = type(self).model_fields
        # Replace keys without an effect by their defaults, so that they may differ.
        same = {name: fields[name].default for name in _WITHOUT_EFFECT if name in fields}
        # A default that is given explicitly is the same training.
        if self.method == "lora":
            same |= {"lora_r": self.rank, "lora_alpha": self.alpha}
        return self.model_copy(update=same).fingerprint()


class SharedTrainingSettings(TrainerSettings):
    """Settings that several trainings on rows or pairs share."""

    schedule: Schedule = key("cosine", "learning rate after warmup: decay to zero, or constant")
    weight_decay: float = key(0.0, "AdamW's weight decay of matrices (not norms, biases)", ge=0)
    max_steps: int | None = key(None, "maximum number of optimizer steps of a training", ge=1)
    save_every_seconds: float | None = key(300.0, "time between checkpoints; none: never", gt=0)
    save_every_steps: int | None = key(None, "optimizer steps between checkpoints", ge=1)


class PhaseSettings(Settings):
    """Settings of one of several trainings of a run. :class:`TrainerSettings` has the others."""

    learning_rate: float = key(2e-5, "peak learning rate", gt=0)
    warmup_ratio: float = key(0.03, "share of the steps for linear warmup", ge=0, le=1)
    max_length: int = key(
        1024,
        "longest row in tokens; a row longer than this or the model's context is dropped and counted, never "
        "truncated",
        ge=2,
    )
    tokens_per_microbatch: int = key(
        4096,
        "padded tokens of one forward and backward pass, unless a single row is longer; changes memory, not results",
        ge=2,
    )


class EpochSettings(PhaseSettings):
    """Settings of one of several trainings on rows or pairs."""

    epochs: int = key(1, "number of passes over the rows", ge=1)
    batch_size: int = key(32, "rows (or pairs) of one optimizer step", ge=1)


class TrainingSettings(SharedTrainingSettings, EpochSettings):
    """Settings of a training."""


def combine(shared: TrainerSettings, phase: PhaseSettings) -> TrainingSettings:
    """Return the settings of a training from its own and those that it shares with others."""
    # A phase of reinforcement learning has no epochs, but a schedule and weight decay of its own.
    settings_type = SharedTrainingSettings if isinstance(phase, EpochSettings) else TrainerSettings
    values = {name: getattr(shared, name) for name in settings_type.model_fields}
    return TrainingSettings.model_validate({**values, **phase.model_dump()})


def shared_group(settings: Settings, training: str) -> str:
    """Return the settings group with the shared keys of a training: its own group, or else ``train``."""
    return training if isinstance(attrgetter(training)(settings), TrainerSettings) else "train"


class DPOSettings(Settings):
    """Settings of DPO, and of IPO, SimPO, ORPO and KTO on the same pairs."""

    kind: PairLoss = key(
        "dpo",
        "loss of a pair: dpo or ipo (relative to the reference), simpo or orpo (no reference); kto: of each side alone "
        "(relative to the reference)",
    )
    beta: float = key(
        0.1,
        "dpo, kto: strength of the pull towards the reference; ipo: inverse of twice the target margin; simpo: scale "
        "of the mean log-probs; orpo: weight of the odds ratio",
        source="SimPO: 2 to 10",
        gt=0,
    )
    simpo_gamma: float = key(0.5, "target margin of simpo", source="TRL: 0.5", ge=0)
    label_smoothing: float = key(
        0.0, "assumed share of pairs with swapped sides (dpo, simpo)", ge=0, lt=0.5
    )
    reduction: Reduction = key(
        "none",
        "reduction of a side's log-ratios: none (sum over tokens), tokens (mean over tokens), turns (sum over turns of "
        "the mean over a turn's tokens)",
        source="SWEET-RL equations 2 and 3: turns; its released code: tokens",
    )
    nll_coef: float = key(
        0.0, "weight of the chosen side's mean -log p (iterative RPO and ORPO: 1)", ge=0
    )

    @property
    def needs_reference(self) -> bool:
        """True if the loss compares with a reference model."""
        return self.kind in ("dpo", "ipo", "kto")

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind == "kto":
            if self.reduction != "none" or self.label_smoothing or self.nll_coef:
                raise ValueError(
                    "kind=kto compares sums of log-probs with their divergence; leave out reduction, label_smoothing "
                    "and nll_coef"
                )
        # These losses are defined on means: sums would make the loss depend on the sides' lengths.
        elif self.kind != "dpo" and self.reduction != "tokens":
            raise ValueError(f"kind={self.kind} compares means over tokens; set reduction=tokens")
        if self.kind in ("ipo", "orpo") and self.label_smoothing:
            raise ValueError(
                f"label_smoothing has no effect with kind={self.kind}; set label_smoothing=0"
            )
        if self.kind == "orpo" and not self.nll_coef:
            raise ValueError("kind=orpo needs the chosen side's -log p; set nll_coef=1")
        return self


class PolicyLossSettings(Settings):
    """Settings of the policy gradient, without the temperature of sampling."""

    kind: PolicyLoss = key(
        "ppo",
        "ppo: clipped ratio of each token (also GRPO, DAPO); gspo: one clipped ratio for all tokens of a row; cispo: "
        "clipped ratio as a constant weight of log p, so that each token has a gradient",
    )
    clip_low: float = key(
        0.2, "clip of the ratio below 1; 1: none", source="GSPO: 3e-4; CISPO: 1", ge=0, le=1
    )
    clip_high: float = key(
        0.2, "clip of the ratio above 1", source="PPO: 0.2; DAPO: 0.28; GSPO: 4e-4", ge=0
    )
    dual_clip: float | None = key(
        None, "upper bound of the ratio of a token with a negative advantage", gt=1
    )
    aggregation: Aggregation = key(
        "token",
        "mean over the step's tokens (token), over its paths of each path's mean (sequence), or over its paths of each "
        "path's sum divided by a constant (constant)",
    )
    length_constant: int | None = key(
        None, "divisor of a path's sum for aggregation=constant", ge=1
    )
    kl_coef: float = key(0.0, "weight of the KL divergence from the reference in the loss", ge=0)
    kl_estimator: KLEstimator = key(
        "k3",
        "estimator of the KL divergence: k2 and k3 (times the ratio) have the gradient of KL(policy, reference); "
        "k3_forward (as in GRPO) has the gradient of KL(reference, policy)",
    )
    entropy_coef: float = key(0.0, "weight of the entropy bonus", ge=0)
    old_logprobs: OldLogprobs = key(
        "behavior",
        "old log-probs of the ratio: from the engine, or recomputed by the trainer under the sampling weights",
    )
    importance_sampling: ImportanceSampling = key(
        "off",
        "weight of a token by the ratio of trainer to engine, of the token or of all tokens of its row: truncated at "
        "importance_sampling_cap, or masked above it",
    )
    importance_sampling_cap: float = key(2.0, "maximum ratio of trainer to engine", gt=0)

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        # The weight p_old / p_engine is 1 by definition if p_old is the engine's.
        if self.importance_sampling != "off" and self.old_logprobs == "behavior":
            raise ValueError(
                f"importance_sampling={self.importance_sampling} needs the trainer's log-probs under the sampling "
                "weights; set old_logprobs=recomputed"
            )
        if (self.aggregation == "constant") != (self.length_constant is not None):
            raise ValueError(
                "aggregation=constant needs length_constant, and no other aggregation uses it; set both or neither"
            )
        # GSPO clips and compares whole sequences, so each must count once.
        if self.kind == "gspo" and self.aggregation != "sequence":
            raise ValueError(
                f"kind=gspo with aggregation={self.aggregation} weighs a sequence by its length; set "
                "aggregation=sequence"
            )
        if self.kind == "cispo" and self.dual_clip is not None:
            raise ValueError("dual_clip has no effect with kind=cispo; set dual_clip=none")
        # The bound is for ratios far above the ordinary range of the clip.
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"dual_clip={self.dual_clip} is too small; use more than 1 + clip_high={1 + self.clip_high:g}"
            )
        return self

    def at(self, temperature: float) -> "PolicyGradientSettings":
        """Return the settings for tokens sampled at a temperature."""
        return PolicyGradientSettings.model_validate(
            {**self.model_dump(), "temperature": temperature}
        )


class PolicyGradientSettings(PolicyLossSettings):
    """Settings of the policy gradient."""

    temperature: float = key(1.0, "temperature of sampling, by which logits are divided", gt=0)
    distill_coef: float = key(
        0.0, "weight of log p_teacher - log p_old in the advantage of a token", ge=0
    )


class ValueLossSettings(Settings):
    """Settings of the value loss."""

    clip: float = key(
        0.5,
        "clip of the change of a value since the row was made",
        source="GAP: 0.5; PPO: 0.2",
        gt=0,
    )


def weight_dtype(settings: Settings) -> "torch.dtype":
    """Return bfloat16 if any training in a run's settings has that dtype, else float32."""
    import torch

    # Models of a run share a base in this process, which has one dtype.
    is_bfloat16 = any(training.dtype == "bfloat16" for training in _trainings(settings))
    return torch.bfloat16 if is_bfloat16 else torch.float32


def loads_in_4bit(settings: Settings) -> bool:
    """Return True if any training in a run's settings loads the weights in 4 bits."""
    return any(training.load_in_4bit for training in _trainings(settings))


def keeps_bases(settings: Settings) -> bool:
    """Return True if samplers in this process keep all adapters beside their bases, which roles then share."""
    is_rounded = loads_in_4bit(settings) or weight_dtype(settings).itemsize < 4
    return is_rounded and all(training.method == "lora" for training in _trainings(settings))


def _trainings(settings: Settings) -> Iterator[TrainerSettings]:
    """Yield the groups of a run's settings, at any depth, that have the settings of a training."""
    if isinstance(settings, TrainerSettings):
        yield settings
    for name in type(settings).model_fields:
        if isinstance(group := getattr(settings, name), Settings):
            yield from _trainings(group)


TrackerName = Literal["none", "tensorboard", "trackio", "wandb", "swanlab"]
Rollout = Mapping[str, Any]
"""Rollout that a tracker shows: ``messages`` as an agent sees them, and facts such as its reward."""


@dataclass(frozen=True, slots=True)
class Tracker:
    """Receiver of the metrics of a training, which are discarded by default."""

    write: Callable[[dict[str, Any], int], object] = lambda metrics, step: None
    finish: Callable[[], object] = lambda: None
    show: Callable[[Sequence[Rollout]], object] | None = None
    """Returns rollouts in the package's form, to log them like a metric."""

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log the metrics of an optimizer step (counted from 1)."""
        self.write({name: n for name, n in metrics.items() if name != "step"}, step)

    def close(self) -> None:
        """Flush and finish; also called after a failed training."""
        self.finish()


def make_tracker(name: TrackerName, folder: Path, run: str, config: Mapping[str, Any]) -> Tracker:
    """Return a tracker that writes to ``folder`` under the run name ``run``.

    Nothing leaves the machine by default: ``wandb`` and ``swanlab`` start offline unless ``WANDB_MODE`` or
    ``SWANLAB_MODE`` is set. ``trackio`` has one local database for all runs (``TRACKIO_DIR`` moves it). The folder
    holds the id of the experiment, so that a tracker that is made again continues it. Raises ``UserError`` if the
    package is not installed or does not start.
    """
    if name == "none":
        return Tracker()
    check_tracker(name)
    folder = folder.absolute()  # wandb's process keeps the folder in which it started
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return _start(name, folder, run, flatten(config))
    except Exception as error:  # each package has errors of its own: no login, no network, ...
        problem = f"tracker={name} does not start: {error_message(error)}"
        raise UserError(problem, "fix the cause, or use tracker=none") from error


def _start(name: TrackerName, folder: Path, run: str, config: Mapping[str, Any]) -> Tracker:
    """Start an experiment, or continue the one whose id the folder holds."""
    if name == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard shows only plain values as hyperparameters; others become text.
        writer = SummaryWriter(str(folder / run))
        is_plain = bool | int | float | str
        plain = {key: n if isinstance(n, is_plain) else str(n) for key, n in config.items()}
        writer.add_hparams(plain, {}, run_name=".")

        def write(metrics: dict[str, float], step: int) -> None:
            for metric, value in metrics.items():
                writer.add_scalar(metric, value, step)
            writer.flush()

        return Tracker(write, writer.close)
    # The id is kept with the run, so that a resumed run continues the same curves.
    id_file = folder / "id"
    if not id_file.is_file():
        id_file.write_text(uuid4().hex[:16])
    id_ = id_file.read_text()
    options: dict[str, Any] = {"project": "coterie", "resume": "allow", "config": config}
    if name == "trackio":  # continues an experiment by its name
        options["name"] = f"{run}-{id_[:8]}"
    else:
        # Offline unless the user asks for the network.
        mode = os.environ.get(f"{name.upper()}_MODE", "offline")
        options |= {"name": run, "id": id_, "mode": mode}
        options["dir" if name == "wandb" else "log_dir"] = str(folder)
    package = importlib.import_module(name)
    experiment = package.init(**options)
    if name == "swanlab":
        return Tracker(experiment.log, experiment.finish)

    def show(rollouts: Sequence[Rollout]) -> object:
        if name == "trackio":
            facts = [{n: v for n, v in rollout.items() if n != "messages"} for rollout in rollouts]
            return [package.Trace(r["messages"], f) for r, f in zip(rollouts, facts, strict=True)]
        texts = [
            "\n\n".join(f"{m['role']}: {m['content']}" for m in r["messages"]) for r in rollouts
        ]
        rows = [{**r, "messages": text} for r, text in zip(rollouts, texts, strict=True)]
        return package.Table(columns=[*rows[0]], data=[[*row.values()] for row in rows])

    if name == "trackio":
        return Tracker(experiment.log, experiment.finish, show)
    # Several roles log the same steps one after another, but wandb's own step only grows.
    experiment.define_metric("*", step_metric="step")
    return Tracker(
        lambda metrics, n: experiment.log({**metrics, "step": n}), experiment.finish, show
    )


def check_tracker(name: TrackerName) -> None:
    """Raise ``UserError`` if the tracker's package is not installed."""
    if name != "none" and importlib.util.find_spec(name) is None:
        raise UserError(
            f"tracker={name} needs the package {name!r}, which is not installed",
            f"pip install -e '.[{name}]', or choose tracker=none",
        )
