"""Settings of reinforcement learning."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.rewards.advantages import Baseline
from coterie.rewards.dialogue_reward import PathRewardSettings
from coterie.training.settings import (
    PhaseSettings,
    PolicyLossSettings,
    Schedule,
    TrainerSettings,
    TrainingSettings,
    ValueLossSettings,
    combine,
)


class GroupSettings(Settings):
    """Sampling of a step: a group of paths for each task."""

    tasks: int = key(32, "Tasks per step. Each has one group.", source="GAP: 32", ge=1)
    rollouts_per_task: int = key(8, "Rollouts per task (the group size).", source="GAP: 8", ge=1)
    oversample_tasks: int | None = key(
        None,
        "Tasks per round of dynamic sampling. Default: tasks per step.",
        source="GAP, DAPO: twice the tasks of a step",
        ge=1,
    )
    rounds: int = key(
        1,
        "Maximum rounds of dynamic sampling: draw tasks until enough groups have different rewards, and train only on "
        "these. 1: train on all groups of one draw.",
        source="DAPO section 3.2: unbounded",
        ge=1,
    )
    max_staleness: int = key(
        0,
        "Sample while a step trains, and train on tokens that are at most this number of steps old. Older groups are "
        "dropped. 0: sampling and training take turns.",
        ge=0,
    )
    temperature: float = key(1.0, "Sampling temperature.", source="GAP: 1", gt=0, le=2)
    max_tokens: int = key(256, "Maximum tokens per turn.", ge=1)

    def identity(self) -> dict[str, object]:
        """Return the settings that results depend on; runs from before ``max_staleness`` stay the same."""
        names = [name for name in type(self).model_fields if name != "max_staleness"]
        names += ["max_staleness"] if self.max_staleness else []
        return {name: getattr(self, name) for name in names}

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.rounds > 1 and self.rollouts_per_task < 2:
            raise ValueError(
                f"rounds={self.rounds} needs groups with different rewards, and "
                f"rollouts_per_task={self.rollouts_per_task} gives each task one path; raise it, or use rounds=1"
            )
        return self

    @property
    def tasks_per_round(self) -> int:
        return self.oversample_tasks or self.tasks if self.rounds > 1 else self.tasks


class AdvantageSettings(Settings):
    """Advantages of paths or tokens."""

    baseline: Baseline | Literal["values"] = key(
        "mean",
        "`mean`: reward minus the mean of the group. `mean_std`: also divided by the group's standard deviation. "
        "`leave_one_out`: minus the mean of the other paths. `values`: GAE with a critic (PPO).",
    )
    gamma: float = key(1.0, "Discount per token (baseline=values).", source="GAP: 1", gt=0, le=1)
    gae_lambda: float = key(1.0, "GAE lambda (baseline=values).", source="GAP: 1", ge=0, le=1)
    normalize: bool = key(
        True,
        "Normalize the advantages of all tokens of a step to mean 0 and deviation 1 (baseline=values).",
    )
    truncated: Literal["train", "mask"] = key(
        "train",
        "`mask` leaves paths that a limit cut off out of the training. They count for the group's baseline either way.",
        source="DAPO section 3.4: mask, or a length penalty",
    )

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        fields = type(self).model_fields
        # One number per path leaves nothing to discount, and groups have their own normalization.
        gae_keys = ("gamma", "gae_lambda", "normalize")
        changed = [name for name in gae_keys if getattr(self, name) != fields[name].default]
        if changed and self.baseline != "values":
            raise ValueError(
                f"{', '.join(changed)} have no effect with baseline={self.baseline}, where a path has one advantage; "
                "remove them, or use baseline=values"
            )
        return self


class StepSettings(Settings):
    """Number of steps and updates per step."""

    count: int = key(50, "Steps. Each samples from the newest policy.", source="GAP: 200", ge=1)
    minibatches_per_step: int = key(
        1, "Minibatches per step and epoch, with one optimizer step each.", source="GAP: 1", ge=1
    )
    epochs: int = key(1, "Epochs over the groups of a step.", source="GAP: 1", ge=1)
    patience: int = key(
        10, "Stop after this number of consecutive steps without a non-zero advantage.", ge=1
    )
    save_every: int = key(5, "Steps between checkpoints.", ge=1)
    keep_last: int = key(
        2,
        "Newest checkpoints to keep. Each is a model (`RUN@STEP`) and the start of a fork (`--from-step`).",
        ge=1,
    )
    evaluate_every: int | None = key(
        None,
        "Steps between evaluations on the held-out tasks, with the settings of `evaluate`. The last step is evaluated, "
        "too.",
        ge=1,
    )
    keep: Literal["last", "best"] = key(
        "last",
        "Result of the stage: the policy after the last step, or the one with the highest held-out score.",
    )

    @property
    def updates(self) -> int:
        return self.count * self.minibatches_per_step * self.epochs

    def identity(self) -> dict[str, object]:
        """Return the settings that results depend on."""
        # How often checkpoints are saved changes no result. Evaluations do if they choose the
        # weights.
        names = ["count", "minibatches_per_step", "epochs"]
        names += ["keep", "evaluate_every"] if self.keep == "best" else []
        return self.model_dump(include={*names})

    @model_validator(mode="after")
    def _refuse_unmeasured(self) -> Self:
        if self.keep == "best" and self.evaluate_every is None:
            raise ValueError("keep=best needs held-out scores; set evaluate_every, such as 10")
        return self


class UpdateSettings(PhaseSettings):
    """Optimizer settings of reinforcement learning. ``steps`` has the number of optimizer steps."""

    learning_rate: float = key(1e-6, "peak learning rate", source="GAP: 1e-6", gt=0)
    schedule: Schedule = key(
        "constant", "learning rate schedule after warmup", source="GAP's scripts"
    )
    warmup_ratio: float = key(0.0, "share of steps with a rising learning rate", ge=0, le=1)
    weight_decay: float = key(0.0, "AdamW's weight decay of matrices (not norms, biases)", ge=0)


class PolicyTrainingSettings(TrainerSettings, UpdateSettings):
    """Training of the policies, and the settings that the critic's training shares."""


class CriticSettings(Settings):
    """Critic for advantage.baseline=values. Starts from the policy's weights with a new value head."""

    train: UpdateSettings = UpdateSettings(learning_rate=1e-5, warmup_ratio=0.05)
    loss: ValueLossSettings = ValueLossSettings()


class ReinforceSettings(Settings):
    """Settings of reinforcement learning, also used as a mixin for settings of recipes."""

    policy_group: ClassVar[str] = "train"
    """Group of the policies' learning rate and row length."""

    rollout: GroupSettings = GroupSettings()
    reward: PathRewardSettings = PathRewardSettings()
    advantage: AdvantageSettings = AdvantageSettings()
    steps: StepSettings = StepSettings()
    loss: PolicyLossSettings = PolicyLossSettings()
    critic: CriticSettings = CriticSettings()
    train: TrainerSettings = TrainerSettings()

    @property
    def policy_training(self) -> TrainingSettings:
        return TrainingSettings.model_validate(self.train.model_dump())

    @property
    def critic_training(self) -> TrainingSettings:
        return combine(self.train, self.critic.train)

    @property
    def has_critic(self) -> bool:
        return self.advantage.baseline == "values"

    @property
    def paths(self) -> int:
        rollout = self.rollout
        return self.steps.count * rollout.rounds * rollout.tasks * rollout.rollouts_per_task

    @model_validator(mode="after")
    def _refuse_lone_paths(self) -> Self:
        if not self.has_critic and self.rollout.rollouts_per_task < 2:
            raise ValueError(
                "rollout.rollouts_per_task=1 gives no other path of a task to compare with; use 2 or more, or "
                "advantage.baseline=values"
            )
        return self
