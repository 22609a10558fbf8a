"""The settings of one training; combinations that can't work are refused when they are read."""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from coterie.config.settings import MOST_SEED, Settings, key

if TYPE_CHECKING:
    import torch

Method = Literal["full", "lora"]
Schedule = Literal["cosine", "linear", "constant"]
Packing = Literal["auto", "flat"]
Precision = Literal["no", "bf16", "auto"]
DType = Literal["float32", "bfloat16"]
Normalise = Literal["none", "tokens", "turns"]
"""``none``: the sum over tokens. ``tokens``: their mean. ``turns``: the sum over turns of the mean over
a turn's tokens."""
Mean = Literal["token", "sequence", "constant"]
Divergence = Literal["k2", "k3", "k3_forward"]
Old = Literal["behaviour", "recomputed"]
Importance = Literal["off", "truncate", "mask"]

_WITHOUT_EFFECT = ("save_every_seconds", "save_every_steps", "processes", "launch")
"""Keys that change no weight beyond rounding, so that a training may be resumed under other values of them."""


class TrainingSettings(Settings):
    """How a model is trained on rows.

    ``mixed_precision=auto`` is bfloat16 on a CUDA device that supports it and float32 elsewhere. With
    ``dtype=bfloat16`` a whole model is bfloat16 already; an adapter stays float32, on a base of bfloat16.
    Measured on ``tiny`` on a CPU with AVX512-BF16 (no AMX), per thread: 4,800 tokens/s in float32,
    5,400 in bfloat16. A gain of an eighth is not worth exact resumption and exact log-probs.
    """

    method: Method = key("full", "train all weights, or a low-rank adapter on frozen ones")
    lora_r: int | None = key(None, "rank of the adapter (lora only; 16 if not given)", ge=1)
    lora_alpha: int | None = key(None, "scale of the adapter (lora only; 2r if not given)", gt=0)
    lora_targets: tuple[str, ...] = key(
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        "names of the layers that get an adapter; all-linear: all linear layers but the output layer",
        min_length=1,
    )
    learning_rate: float = key(2e-5, "peak learning rate", gt=0)
    schedule: Schedule = key("cosine", "how the learning rate goes from its peak to zero, or stays")
    warmup_ratio: float = key(0.03, "share of the steps in which the rate climbs", ge=0, le=1)
    epochs: int = key(1, "how often every row is seen", ge=1)
    max_steps: int | None = key(None, "stop after this many optimiser steps", ge=1)
    batch_rows: int = key(32, "rows (or pairs) of one optimiser step", ge=1)
    tokens_per_microbatch: int = key(
        4096, "padded tokens of one forward and backward pass; changes memory, not results", ge=2
    )
    max_length: int = key(
        1024,
        "longest row in tokens; a longer one, or one longer than the model's positions, is dropped "
        "and counted, never cut",
        ge=2,
    )
    packing: Packing = key(
        "auto",
        "auto: beginnings that rows share are computed once where that is cheaper; flat: never",
    )
    weight_decay: float = key(0.0, "AdamW's decay of weight matrices (not of norms, biases)", ge=0)
    betas: tuple[float, float] = key((0.9, 0.999), "AdamW's decay of its two moments")
    max_grad_norm: float = key(1.0, "gradients are scaled down to this norm", gt=0)
    gradient_checkpointing: bool = key(False, "recompute activations: less memory, more time")
    dtype: DType = key(
        "float32",
        "of the model's weights, for all models of the run in this process if one of its trainings says bfloat16: less "
        "memory, with updates that are rounded at random so that small ones count",
    )
    mixed_precision: Precision = key("auto", "bfloat16 autocast; auto uses it where it pays (CUDA)")
    seed: int = key(0, "seed of the order of rows and of a fresh adapter", ge=0, le=MOST_SEED)
    save_every_seconds: float | None = key(300.0, "time between checkpoints; none for never", gt=0)
    save_every_steps: int | None = key(None, "optimiser steps between checkpoints", ge=1)
    processes: int | None = key(
        None,
        "ranks of a training, each a process that coterie starts and ends; none for a training in the run's own "
        "process, or for as many as the launch file says",
        ge=1,
    )
    launch: str | None = key(
        None,
        "a configuration file of Accelerate for the ranks, such as configs/accelerate/fsdp2.yaml; none: a copy of the "
        "model on each",
    )
    threads: int | None = key(None, "CPU threads of torch; none leaves them as they are", ge=1)

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.method == "full" and (self.lora_r is not None or self.lora_alpha is not None):
            raise ValueError(
                "lora_r and lora_alpha mean nothing with method=full; use method=lora, or give both as none"
            )
        if self.max_length > self.tokens_per_microbatch:
            raise ValueError(
                f"a row of max_length={self.max_length} tokens does not fit "
                f"tokens_per_microbatch={self.tokens_per_microbatch}; raise the one, lower the other"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)}: both must be at least 0 and less than 1")
        return self

    def autocast(self, *, on_gpu: bool) -> bool:
        """Return True if the training computes in bfloat16 autocast; ``on_gpu``: on a GPU that has bfloat16."""
        if self.mixed_precision != "auto":
            return self.mixed_precision == "bf16"
        return on_gpu and not (self.dtype == "bfloat16" and self.method == "full")

    @property
    def rank(self) -> int:
        """Rank of the adapter: as given, or 16."""
        return self.lora_r or 16

    @property
    def alpha(self) -> int:
        """Scale of the adapter: as given, or twice its rank."""
        return self.lora_alpha or 2 * self.rank

    def identity(self) -> str:
        """Hash of all that can change the trained weights."""
        fields = type(self).model_fields
        same = {name: fields[name].default for name in _WITHOUT_EFFECT}
        if self.method == "lora":
            same |= {"lora_r": self.rank, "lora_alpha": self.alpha}
        return self.model_copy(update=same).fingerprint()


class DPOSettings(Settings):
    """The numbers of the objective."""

    beta: float = key(0.1, "how strongly the policy is held to the reference", gt=0)
    label_smoothing: float = key(0.0, "assumed share of pairs that are the wrong way", ge=0, lt=0.5)
    normalise: Normalise = key(
        "none",
        "how a side's log-ratios are reduced: none (the sum over tokens), tokens (the mean over all "
        "its tokens), turns (the sum over its turns of the mean over a turn's tokens)",
        source="SWEET-RL equations 2 and 3: turns; its released code: tokens",
    )
    nll: float = key(0.0, "weight of the chosen side's mean -log p (iterative RPO: 1)", ge=0)


class PolicyLossSettings(Settings):
    """The numbers of the loss, whatever distribution was sampled from."""

    clip_low: float = key(0.2, "how far below 1 a ratio still counts", ge=0, lt=1)
    clip_high: float = key(
        0.2, "how far above 1 a ratio still counts", source="PPO: 0.2; DAPO: 0.28", ge=0
    )
    dual_clip: float | None = key(
        None, "of a token with a negative advantage, the ratio counts as this at most", gt=1
    )
    mean: Mean = key(
        "token",
        "which mean: over the step's tokens; over its paths, of each path's mean; or over its paths, of each "
        "path's sum divided by a constant",
    )
    constant: int | None = key(None, "tokens that mean=constant divides a path's sum by", ge=1)
    kl: float = key(0.0, "weight of the divergence from the reference in the loss", ge=0)
    divergence: Divergence = key(
        "k3",
        "its estimate: k2, or k3 times the ratio, have the gradient of KL(policy, reference); k3_forward, GRPO's, "
        "that of KL(reference, policy)",
    )
    entropy: float = key(0.0, "weight of the entropy bonus", ge=0)
    old: Old = key(
        "behaviour",
        "log-probs that ratios are against: the engine's, or the trainer's own under the weights that sampled",
    )
    importance: Importance = key(
        "off",
        "how the trainer's ratio to the engine weighs a token: cut at importance_cap, or 0 above it",
    )
    importance_cap: float = key(2.0, "greatest ratio of trainer to engine", gt=0)

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.importance != "off" and self.old == "behaviour":
            raise ValueError(
                f"importance={self.importance} weighs the trainer's log-probs under the sampling weights against "
                "the engine's; set old=recomputed"
            )
        if (self.mean == "constant") != (self.constant is not None):
            raise ValueError(
                "mean=constant needs constant, by how many tokens a path's sum is divided, and no other mean reads it; "
                "give both or neither"
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"dual_clip={self.dual_clip} has to be more than 1 + clip_high={1 + self.clip_high:g}"
            )
        return self

    def at(self, temperature: float) -> "PolicyGradientSettings":
        """The objective's numbers, where tokens are sampled at a temperature."""
        return PolicyGradientSettings.model_validate(
            {**self.model_dump(), "temperature": temperature}
        )


class PolicyGradientSettings(PolicyLossSettings):
    """The numbers of the objective: those of the loss, and of the distribution that was sampled from."""

    temperature: float = key(1.0, "temperature of sampling, by which logits are divided", gt=0)


class ValueLossSettings(Settings):
    """The numbers of the objective."""

    clip: float = key(
        0.5,
        "how far a value moves from what it was before it stops counting",
        source="GAP: 0.5; PPO: 0.2",
        gt=0,
    )


def weight_dtype(settings: Settings) -> "torch.dtype":
    """Return bfloat16 if a training among all of a run's settings has it, else float32."""
    import torch

    low = isinstance(settings, TrainingSettings) and settings.dtype == "bfloat16"
    inside = (getattr(settings, name) for name in type(settings).model_fields)
    groups = (one for one in inside if isinstance(one, Settings))
    if low or any(weight_dtype(one) == torch.bfloat16 for one in groups):
        return torch.bfloat16
    return torch.float32
