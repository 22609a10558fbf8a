"""Settings of ``optima``."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.models.catalogue import ModelName
from coterie.recipes.settings import MODEL, VALUES, RecipeSettings
from coterie.rewards.dialogue_reward import RewardSettings
from coterie.rollout.tree_search import SearchSettings
from coterie.selection import PairSettings, SelectSettings
from coterie.training.settings import DPOSettings, EpochSettings, TrainingSettings, combine

TrainingKind = Literal["sft", "dpo"]
"""Kind of an iteration: SFT on the best dialogues, or DPO on pairs from trees."""


class RolloutSettings(Settings):
    """Sampling of training dialogues."""

    tasks: int = key(
        256,
        "Training tasks per iteration. Every iteration draws new tasks until the data set is exhausted, then all are "
        "reshuffled.",
        ge=1,
    )
    rollouts_per_task: int = key(
        8, "Dialogues per task (N).", source="Optima section 3.2 (10)", ge=1
    )
    temperature: float = key(0.7, "Sampling temperature.", source="Optima section 3", gt=0, le=2)
    first_temperature: float = key(
        0.3,
        "Sampling temperature of iteration 0, where format prompts add diversity.",
        source="Optima section 3 (information exchange)",
        gt=0,
        le=2,
    )
    top_p: float = key(1.0, "Nucleus sampling: smallest probability mass to keep.", gt=0, le=1)
    max_tokens: int = key(96, "Maximum tokens per turn. A turn that reaches it ends the dialogue.",
                          source="Optima: 2000", ge=1)  # fmt: skip
    format_pool: bool = key(
        True,
        "Give each dialogue of iteration 0 a random format prompt of the environment. Training rows omit it.",
        source="Optima section 3.1",
    )


class OptimaSettings(RecipeSettings):
    """Optima: SFT on the best dialogues of each iteration."""

    recipe: ClassVar[str] = "optima/isft"
    questions: ClassVar[str | None] = "debate"
    model: ModelName = key("tiny-exchange", MODEL)
    iterations: int = key(
        3, "Iterations of rollout, reward, select and train.",
        source="Optima: 6", ge=1,
    )  # fmt: skip
    from_initial: bool = key(
        False,
        "Start each SFT from the base model instead of the last policy.",
        source="Optima: off for information exchange, on for debate",
    )
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    select: SelectSettings = SelectSettings()
    train: TrainingSettings = TrainingSettings()

    @property
    def trainings(self) -> dict[str, TrainingSettings]:
        return {"train": self.train}

    def kinds(self) -> list[TrainingKind]:
        return ["sft"] * self.iterations

    def task_counts(self) -> list[int]:
        return [self.rollout.tasks] * self.iterations

    @property
    def words(self) -> dict[str, str]:
        return {
            "task": "score of the dialogue",
            "tokens": "-reward.lambda_token times tokens over the maximum of the task's dialogues",
            "loss": "term for text that is likely under the base model",
            "leaks": "penalty for utterances that speak for another agent",
            "nll": "mean -log p of the turn under the base model, in nats a token",
            "selected": f"the best dialogue of its task, with a reward (sum of its terms) of {self.select.threshold:g} "
            "or more, and among the best of all tasks",
        }

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.rollout.rollouts_per_task == 1 and self.reward.lambda_token:
            raise ValueError(
                "rollout.rollouts_per_task=1 gives no choice and makes every token term equal to -reward.lambda_token; "
                "use at least 2, or reward.lambda_token=0"
            )
        if self.select.threshold > self.reward.max_reward:
            raise ValueError(
                f"select.threshold={self.select.threshold:g} is above the maximum reward "
                f"{self.reward.max_reward:g} of these reward settings; lower it"
            )
        return self


class TreeRewardSettings(RewardSettings):
    """Weights of the reward terms in tree search."""

    leak_penalty: float = key(0.0, "Penalty per utterance that speaks for another agent.", ge=0)
    leaks_lose_task: bool = key(
        True,
        "Set R_task to 0 if an utterance speaks for another agent.",
        source="Optima's code, in tree search",
    )


class RPOSettings(DPOSettings):
    """DPO objective with an NLL term (RPO)."""

    nll_coef: float = key(
        1.0,
        "weight of the mean negative log-likelihood of the chosen side",
        source="Optima section 3.3: 1 (iDPO), 0 (iSFT-DPO)",
        ge=0,
    )


class PairTrainingSettings(EpochSettings):
    """DPO training on pairs. `train` has the keys that it shares with SFT."""

    learning_rate: float = key(5e-7, "peak learning rate", source="Optima's code", gt=0)
    warmup_ratio: float = key(
        0.1, "share of steps with a rising learning rate", source="Optima's code", ge=0, lt=1
    )
    batch_size: int = key(64, "pairs per optimizer step", source="Optima's code", ge=1)


class DPORoundSettings(Settings):
    """DPO iteration: a tree of dialogues per task, sibling pairs, preference training."""

    tasks: int = key(64, "Training tasks per iteration, with one tree each.", ge=1)
    temperature: float = key(0.7, "Sampling temperature.", source="Optima's code (0.7)", gt=0, le=2)
    probe_dialogues: int = key(
        100,
        "Dialogues played first to measure the length of dialogues.",
        source="Optima's code: 100",
        ge=1,
    )
    length_percentile: float = key(
        85.0,
        "Percentile of their tokens that, plus 1, is the denominator of the token term.",
        source="Optima's code: 85 (iDPO), 80 (iSFT-DPO)",
        gt=0,
        le=100,
    )
    search: SearchSettings = SearchSettings()
    reward: TreeRewardSettings = TreeRewardSettings()
    select: PairSettings = PairSettings()
    objective: RPOSettings = RPOSettings()
    train: PairTrainingSettings = PairTrainingSettings()


class OptimaDPOSettings(OptimaSettings):
    """Settings of the methods with DPO iterations."""

    dpo: DPORoundSettings = DPORoundSettings()

    @property
    def trainings(self) -> dict[str, TrainingSettings]:
        return {**super().trainings, "dpo.train": combine(self.train, self.dpo.train)}

    @property
    def words(self) -> dict[str, str]:
        words, rule = super().words, self.dpo.select
        pairs = (
            f"a reply whose value is above {rule.theta_filter:g}, and by more than {rule.theta_diff:g} above that of "
            "another reply after the same turns"
        )
        return {**words, **VALUES, "selected": f"SFT: {words['selected']}. DPO: {pairs}"}

    def task_counts(self) -> list[int]:
        counts = {"sft": self.rollout.tasks, "dpo": self.dpo.tasks}
        return [counts[kind] for kind in self.kinds()]

    @model_validator(mode="after")
    def _refuse_no_pairs(self) -> Self:
        max_reward = self.dpo.reward.max_reward
        if self.dpo.select.theta_filter >= max_reward:
            raise ValueError(
                f"dpo.select.theta_filter={self.dpo.select.theta_filter:g} is not below the maximum value "
                f"{max_reward:g} of these dpo.reward settings; lower it"
            )
        return self


class IDPOSettings(OptimaDPOSettings):
    """Optima: one SFT iteration, then DPO on pairs from tree search."""

    recipe: ClassVar[str] = "optima/idpo"

    def kinds(self) -> list[TrainingKind]:
        """SFT, DPO, DPO, ..."""
        return ["dpo" if i else "sft" for i in range(self.iterations)]

    @model_validator(mode="after")
    def _refuse_no_dpo(self) -> Self:
        if self.iterations < 2:
            raise ValueError("optima/idpo with iterations=1 has no DPO iteration; use at least 2")
        return self


class ISFTDPOSettings(OptimaDPOSettings):
    """Optima: alternating SFT and DPO."""

    recipe: ClassVar[str] = "optima/isft_dpo"

    def kinds(self) -> list[TrainingKind]:
        """SFT, DPO, SFT, ..."""
        return ["dpo" if i % 2 else "sft" for i in range(self.iterations)]


METHODS = (OptimaSettings, IDPOSettings, ISFTDPOSettings)
