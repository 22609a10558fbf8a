"""Every setting of the ``optima`` recipe."""

from typing import Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.engines.settings import EngineSettings
from coterie.environments.registry import DataSettings
from coterie.rewards.combined import RewardSettings
from coterie.selection.demonstrations import SelectSettings
from coterie.training.settings import TrainingSettings


class RolloutSettings(Settings):
    """How training dialogues are sampled."""

    tasks: int = key(256, "Training tasks of each iteration; every iteration draws new ones.", ge=1)
    samples: int = key(
        8, "Dialogues sampled for each task (N).", source="Optima section 3.2 (10)", ge=1
    )
    temperature: float = key(0.7, "Sampling temperature.", source="Optima section 3", gt=0, le=2)
    first_temperature: float = key(
        0.3,
        "Sampling temperature of iteration 0, where the format prompts give diversity.",
        source="Optima section 3 (information exchange)",
        gt=0,
        le=2,
    )
    top_p: float = key(1.0, "Nucleus sampling: smallest probability mass to keep.", gt=0, le=1)
    max_tokens: int = key(96, "Most tokens of one turn; a turn that reaches it ends the dialogue.",
                          source="Optima: 2000", ge=1)  # fmt: skip
    format_pool: bool = key(
        True,
        "In iteration 0 each dialogue draws a format prompt from the environment's pool; it is "
        "dropped from the training rows.",
        source="Optima section 3.1",
    )


class EvaluateSettings(Settings):
    """How a policy is evaluated."""

    tasks: int = key(500, "Held-out tasks.", source="Optima: 1000", ge=1)
    temperature: float = key(0.0, "0 is greedy.", source="Optima section 6", ge=0, le=2)


class OptimaSettings(Settings):
    """Settings of ``optima/isft``."""

    model: str = key("tiny-exchange", "Packaged checkpoint, local folder or Hugging Face name.")
    dataset: str = key("exchange", "The tasks: the micro-world `exchange`, `hotpot_qa`, `gsm8k`.")
    data: DataSettings = DataSettings()
    iterations: int = key(3, "Rounds of rollout, reward, select, train.", source="Optima: 6", ge=1)
    seed: int = key(0, "Seed of tasks, sampling, selection and training.", ge=0)
    from_initial: bool = key(
        False,
        "Train each iteration from the base model instead of from the last one.",
        source="Optima: off for information exchange, on for debate",
    )
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    select: SelectSettings = SelectSettings()
    train: TrainingSettings = TrainingSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    engine: EngineSettings = EngineSettings()

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.rollout.samples == 1 and self.select.rule == "best" and self.reward.lambda_token:
            raise ValueError(
                "rollout.samples=1 leaves nothing to choose from and makes every token term equal "
                "to -reward.lambda_token; use at least 2 samples, or reward.lambda_token=0"
            )
        if self.train.method == "lora" and self.from_initial is False and self.iterations > 1:
            raise ValueError(
                "train.method=lora with from_initial=false would stack an adapter on an adapter; "
                "use from_initial=true, or iterations=1"
            )
        if (
            self.engine.kind == "vllm"
            and self.train.method == "lora"
            and self.engine.vllm.lora_rank < (self.train.lora_r or 0)
        ):
            raise ValueError(
                f"adapters of rank {self.train.lora_r} need engine.vllm.lora_rank of at least that"
            )
        if (
            self.engine.kind == "vllm"
            and self.train.method == "lora"
            and (other := set(self.train.lora_targets) - set(self.engine.vllm.lora_modules))
        ):
            raise ValueError(
                f"engine.vllm.lora_modules must name all of train.lora_targets, also {sorted(other)}"
            )
        if self.select.rule == "random" and len(self.select.counts) < self.iterations:
            raise ValueError(f"select.counts needs {self.iterations} numbers, one an iteration")
        return self
