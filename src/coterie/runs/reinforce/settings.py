"""How the steps of a reinforcement learning are made up; refused when they are read if they can't work."""

from typing import Literal, Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.rewards.advantages import Baseline
from coterie.rewards.path_reward import PathRewardSettings
from coterie.training.settings import (
    PolicyLossSettings,
    Schedule,
    TrainingSettings,
    ValueLossSettings,
)

UNUSED = ("epochs", "max_steps", "batch_rows", "save_every_seconds", "save_every_steps")
"""Settings of a training that reinforcement learning does not read."""


class GroupSettings(Settings):
    """What a step samples: groups of paths, each of one task."""

    tasks: int = key(32, "Tasks of a step: so many groups.", source="GAP: 32", ge=1)
    samples: int = key(8, "Paths of each task (the group).", source="GAP: 8", ge=1)
    draw: int | None = key(
        None,
        "Tasks of one round of dynamic sampling; default: as many as a step has.",
        source="GAP, DAPO: twice the tasks of a step",
        ge=1,
    )
    rounds: int = key(
        1,
        "Dynamic sampling: further tasks are drawn, at most so many times in all, until enough groups have paths of "
        "different rewards; only these are trained on. 1: all groups of one draw are trained on.",
        source="DAPO section 3.2, where it has no bound",
        ge=1,
    )
    temperature: float = key(1.0, "Sampling temperature.", source="GAP: 1", gt=0, le=2)
    top_p: float = key(
        1.0,
        "Nucleus sampling. Below 1 it is refused: log-probs of what was left out of a draw are not those that the "
        "trainer computes.",
        gt=0,
        le=1,
    )
    max_tokens: int = key(256, "Most tokens of one turn.", ge=1)

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.top_p < 1:
            raise ValueError(
                f"top_p={self.top_p} samples from a part of the distribution, and ratios would be to all of it; "
                "use top_p=1"
            )
        if self.rounds > 1 and self.samples < 2:
            raise ValueError(
                f"rounds={self.rounds} looks for groups of different rewards, and samples={self.samples} gives each "
                "task one path; raise samples, or use rounds=1"
            )
        return self

    @property
    def drawn(self) -> int:
        return self.draw or self.tasks if self.rounds > 1 else self.tasks


class AdvantageSettings(Settings):
    """How much better than expected a path, or a token of it, was."""

    baseline: Baseline | Literal["values"] = key(
        "mean",
        "What is expected: the mean of the group (`mean`; `mean_std` divides by its standard deviation; "
        "`leave_one_out` is the mean of the others), or what a critic says before each token (`values`, PPO).",
    )
    gamma: float = key(1.0, "Discount of a token (baseline=values).", source="GAP: 1", gt=0, le=1)
    lam: float = key(
        1.0,
        "Weight of later tokens in the estimate (baseline=values).",
        source="GAP: 1",
        ge=0,
        le=1,
    )
    whiten: bool = key(
        True, "Advantages of all tokens of a step get mean 0 and deviation 1 (baseline=values)."
    )
    truncated: Literal["train", "mask"] = key(
        "train",
        "Whether a path that a limit cut off is trained on; it is compared with the others either way.",
        source="DAPO section 3.4: mask, or punish its length",
    )

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        fields = type(self).model_fields
        own = ("gamma", "lam", "whiten")
        changed = [name for name in own if getattr(self, name) != fields[name].default]
        if changed and self.baseline != "values":
            raise ValueError(
                f"{', '.join(changed)} mean nothing with baseline={self.baseline}: a path that is compared with others "
                "has one advantage; leave them out, or use baseline=values"
            )
        return self


class StepSettings(Settings):
    """How many steps there are, and what each makes of its paths."""

    count: int = key(
        50, "Steps: each samples anew from the newest policy.", source="GAP: 200", ge=1
    )
    minibatches: int = key(
        1,
        "Optimiser steps in which a step's groups are trained on, once each.",
        source="GAP: 1",
        ge=1,
    )
    epochs: int = key(1, "How often a step's groups are trained on.", source="GAP: 1", ge=1)
    patience: int = key(
        10, "After so many steps in a row in which no group has an advantage the run stops.", ge=1
    )
    save_every: int = key(5, "Steps between checkpoints.", ge=1)

    @property
    def updates(self) -> int:
        return self.count * self.minibatches * self.epochs

    def identity(self) -> str:
        """Hash of all that changes results."""
        fields = type(self).model_fields
        same = {name: fields[name].default for name in ("patience", "save_every")}
        return self.model_copy(update=same).fingerprint()


class UpdateSettings(TrainingSettings):
    """How weights are changed in an optimiser step; how many there are is said by ``steps``."""

    learning_rate: float = key(1e-6, "peak learning rate", source="GAP: 1e-6", gt=0)
    schedule: Schedule = key(
        "constant",
        "how the learning rate goes from its peak to zero, or stays",
        source="GAP's scripts",
    )
    warmup_ratio: float = key(0.0, "share of the steps in which the rate climbs", ge=0, le=1)

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        fields = type(self).model_fields
        if changed := [name for name in UNUSED if getattr(self, name) != fields[name].default]:
            raise ValueError(
                f"{', '.join(changed)} mean nothing in reinforcement learning; steps.minibatches, steps.epochs and "
                "steps.save_every say how often what is trained on and kept"
            )
        return self


class CriticSettings(Settings):
    """The critic of advantage.baseline=values; it begins as the policy, with a fresh value head."""

    train: UpdateSettings = UpdateSettings(learning_rate=1e-5, warmup_ratio=0.05)
    loss: ValueLossSettings = ValueLossSettings()


class ReinforceSettings(Settings):
    """All of a reinforcement learning. A mixin: recipes derive their settings from it beside their own."""

    rollout: GroupSettings = GroupSettings()
    reward: PathRewardSettings = PathRewardSettings()
    advantage: AdvantageSettings = AdvantageSettings()
    steps: StepSettings = StepSettings()
    loss: PolicyLossSettings = PolicyLossSettings()
    update: UpdateSettings = UpdateSettings()
    critic: CriticSettings = CriticSettings()

    @property
    def has_critic(self) -> bool:
        return self.advantage.baseline == "values"

    @property
    def paths(self) -> int:
        return self.steps.count * self.rollout.rounds * self.rollout.tasks * self.rollout.samples

    @model_validator(mode="after")
    def _refuse_lone_paths(self) -> Self:
        if not self.has_critic and self.rollout.samples < 2:
            raise ValueError(
                f"rollout.samples={self.rollout.samples}: a path is compared with the others of its task; use 2 "
                "or more, or advantage.baseline=values"
            )
        return self
