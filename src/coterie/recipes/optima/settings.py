"""Every setting of the methods of ``optima``: ``isft``, ``idpo`` and ``isft_dpo``."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.recipes.settings import RecipeSettings
from coterie.rewards.dialogue_reward import RewardSettings
from coterie.rollout.search import SearchSettings
from coterie.selection.demonstrations import SelectSettings
from coterie.selection.pairs import PairSettings
from coterie.training.settings import DPOSettings, TrainingSettings

TrainingKind = Literal["sft", "dpo"]
"""What an iteration is: the best dialogues imitated, or pairs out of trees."""


class RolloutSettings(Settings):
    """How training dialogues are sampled."""

    tasks: int = key(
        256,
        "Training tasks of each iteration. Every iteration draws new ones until the data set is "
        "exhausted; then all are shuffled anew.",
        ge=1,
    )
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


class OptimaSettings(RecipeSettings):
    """Settings of ``optima/isft``: every iteration is one of SFT."""

    recipe: ClassVar[str] = "optima/isft"
    questions: ClassVar[str | None] = "debate"
    summary: ClassVar[str] = "Optima: SFT on the best dialogues of each iteration."

    model: str = key(
        "tiny-exchange",
        "Packaged checkpoint, local folder, run folder (its last policy) or Hugging Face name.",
    )
    iterations: int = key(
        3, "Rounds of rollout, reward, select, train; each ends in a new policy.",
        source="Optima: 6", ge=1,
    )  # fmt: skip
    from_initial: bool = key(
        False,
        "SFT trains from the base model instead of from the last policy.",
        source="Optima: off for information exchange, on for debate",
    )
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    select: SelectSettings = SelectSettings()
    train: TrainingSettings = TrainingSettings()

    @property
    def rounds(self) -> int:
        return self.iterations

    @property
    def max_tokens(self) -> int:
        return self.rollout.max_tokens

    def kinds(self) -> list[TrainingKind]:
        return ["sft"] * self.iterations

    def draws(self) -> list[int]:
        """How many training tasks each iteration draws."""
        return [self.rollout.tasks] * self.iterations

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.rollout.samples == 1 and self.select.rule == "best" and self.reward.lambda_token:
            raise ValueError(
                "rollout.samples=1 leaves nothing to choose from and makes every token term equal "
                "to -reward.lambda_token; use at least 2 samples, or reward.lambda_token=0"
            )
        if self.select.rule == "random" and len(self.select.counts) < self.iterations:
            raise ValueError(f"select.counts needs {self.iterations} numbers, one an iteration")
        if self.select.rule == "best" and self.select.threshold > self.reward.max_reward:
            raise ValueError(
                f"select.threshold={self.select.threshold:g} is above the highest reward that there can be, "
                f"{self.reward.max_reward:g} with these settings of reward; lower it"
            )
        return self


class TreeRewardSettings(RewardSettings):
    """Weights of the parts of the reward in tree search."""

    leak_penalty: float = key(
        0.0, "Taken off for each utterance that speaks for another agent.", ge=0
    )
    leaks_lose_task: bool = key(
        True,
        "A dialogue with such an utterance has a task term of 0.",
        source="Optima's code, in tree search",
    )


class RPOSettings(DPOSettings):
    """The numbers of the objective."""

    nll: float = key(
        1.0,
        "weight of the chosen side's mean -log p",
        source="Optima section 3.3: 1 (iDPO), 0 (iSFT-DPO)",
        ge=0,
    )


class PairTrainingSettings(TrainingSettings):
    """How a policy is trained on pairs."""

    learning_rate: float = key(5e-7, "peak learning rate", source="Optima's code", gt=0)
    warmup_ratio: float = key(
        0.1, "share of the steps in which the rate climbs", source="Optima's code", ge=0, lt=1
    )
    batch_rows: int = key(64, "pairs of one optimiser step", source="Optima's code", ge=1)


class DPORoundSettings(Settings):
    """An iteration of DPO: a tree of dialogues a task, sibling pairs, preference training."""

    tasks: int = key(64, "Training tasks of each iteration; each gets a tree.", ge=1)
    temperature: float = key(0.7, "Sampling temperature.", source="Optima's code (0.7)", gt=0, le=2)
    probe: int = key(
        100,
        "Dialogues played beforehand to learn how long dialogues are.",
        source="Optima's code: 100",
        ge=1,
    )
    percentile: float = key(
        85.0,
        "The token term is relative to this percentile of their tokens, plus 1.",
        source="Optima's code: 85 (iDPO), 80 (iSFT-DPO)",
        gt=0,
        le=100,
    )
    trees_in_flight: int = key(
        128, "Trees that grow at a time: enough to keep the engine's batch full.", ge=1
    )
    search: SearchSettings = SearchSettings()
    reward: TreeRewardSettings = TreeRewardSettings()
    select: PairSettings = PairSettings()
    objective: RPOSettings = RPOSettings()
    train: PairTrainingSettings = PairTrainingSettings()


class OptimaDPOSettings(OptimaSettings):
    """Settings of the methods that have iterations of DPO too."""

    dpo: DPORoundSettings = DPORoundSettings()

    def draws(self) -> list[int]:
        """How many training tasks each iteration draws."""
        counts = {"sft": self.rollout.tasks, "dpo": self.dpo.tasks}
        return [counts[kind] for kind in self.kinds()]

    @model_validator(mode="after")
    def _refuse_two_kinds_of_adapters(self) -> Self:
        one, other = self.train, self.dpo.train
        for name, mine, its in (
            ("method", one.method, other.method),
            ("lora_r", one.rank, other.rank),
            ("lora_alpha", one.alpha, other.alpha),
            ("lora_targets", one.lora_targets, other.lora_targets),
        ):
            if mine != its:
                raise ValueError(
                    f"train.{name}={mine} and dpo.train.{name}={its}: each training goes on from the one "
                    "before, so give both the same"
                )
        return self

    @model_validator(mode="after")
    def _refuse_no_pairs(self) -> Self:
        max_reward = self.dpo.reward.max_reward
        if self.dpo.select.theta_filter >= max_reward:
            raise ValueError(
                f"dpo.select.theta_filter={self.dpo.select.theta_filter:g} is not below the highest value that "
                f"there can be, {max_reward:g} with these settings of dpo.reward; lower it"
            )
        return self


class IDPOSettings(OptimaDPOSettings):
    """Settings of ``optima/idpo``: one iteration of SFT from the base, then DPO."""

    recipe: ClassVar[str] = "optima/idpo"
    summary: ClassVar[str] = "Optima: one iteration of SFT, then DPO on pairs of tree search."

    def kinds(self) -> list[TrainingKind]:
        """SFT once, to begin with."""
        return ["dpo" if i else "sft" for i in range(self.iterations)]

    @model_validator(mode="after")
    def _refuse_no_dpo(self) -> Self:
        if self.iterations < 2:
            raise ValueError("iterations=1 of optima/idpo has no DPO in it; use at least 2")
        return self


class ISFTDPOSettings(OptimaDPOSettings):
    """Settings of ``optima/isft_dpo``: SFT and DPO in turn."""

    recipe: ClassVar[str] = "optima/isft_dpo"
    summary: ClassVar[str] = "Optima: SFT and DPO in turn."

    def kinds(self) -> list[TrainingKind]:
        """SFT, DPO, SFT, ..."""
        return ["dpo" if i % 2 else "sft" for i in range(self.iterations)]
