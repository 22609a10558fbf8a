"""Settings of ``sweet_rl/backend`` and ``sweet_rl/frontend``, their baselines and ablations."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coterie.config.settings import OptionalPath, Settings, key
from coterie.engines.chat_model import ChatModelSettings
from coterie.models.catalogue import ModelName
from coterie.recipes.settings import MODEL, RecipeSettings
from coterie.selection import RankedPairSettings
from coterie.tools.sandbox.worker import SandboxSettings
from coterie.training.settings import (
    DPOSettings,
    EpochSettings,
    SharedTrainingSettings,
    TrainingSettings,
    combine,
)

SweetMethod = Literal["sweet", "rejection_ft", "multi_turn_dpo"]
CriticKind = Literal["likelihood", "regression", "classifier", "judge"]
POLICY = "policy"
"""Name of the base model as the judge."""
FIRST, SECOND = 0, 1
"""Rounds: of the dialogues and the critic, and of the candidates and the policy."""


class RepeatSettings(Settings):
    """Sampling of the offline dialogues."""

    tasks: int = key(
        1000, "Training tasks.", source="SWEET-RL section 5.1: 5000 (15k dialogues)", ge=1
    )
    rollouts_per_task: int = key(3, "Dialogues per task (k).", source="SWEET-RL section 5.1", ge=1)
    temperature: float = key(1.0, "Sampling temperature.", source="SWEET-RL's code", gt=0, le=2)
    top_p: float = key(1.0, "Nucleus sampling: smallest probability mass to keep.", gt=0, le=1)
    max_tokens: int = key(1024, "Maximum tokens per turn.", source="SWEET-RL's code", ge=1)


class PairObjective(DPOSettings):
    """Objective of the policy: DPO with an NLL term (equation 4)."""

    nll_coef: float = key(
        0.01,
        "weight of the mean negative log-likelihood of the chosen side",
        source="SWEET-RL table 5",
        ge=0,
    )


class CriticObjective(PairObjective):
    """Objective of the critic: Bradley-Terry over whole dialogues (equation 2)."""

    # The critic's advantages are log-ratios, which only this loss trains.
    kind: Literal["dpo"] = key("dpo", "loss of a pair of dialogues")
    reduction: Literal["none", "tokens", "turns"] = key(
        "turns",
        "`turns`: sum over turns of each turn's mean log-ratio. `tokens`: mean over all tokens of a dialogue, as in "
        "the released code. `none`: sum over all tokens (ablation without normalization).",
        source="SWEET-RL equations 2 and 3",
    )


class JudgeSettings(ChatModelSettings):
    """Judge that compares candidates with ``critic.kind=judge``."""

    model: str = key(
        POLICY,
        "`policy` (the base model), a model for coterie to load, or, with a `url`, the name of a model on that server.",
        source="SWEET-RL: Llama-3.1-8B-Instruct, the base",
        min_length=1,
    )
    max_tokens: int = key(8, "Maximum tokens of a verdict.", ge=1)


class CriticSettings(Settings):
    """Critic of single turns."""

    kind: CriticKind = key(
        "likelihood",
        "`likelihood`: log-ratios of a language model. Ablations: `regression` (a scalar head on pooled hidden "
        "states), `classifier` (a value head that predicts success), `judge` (a chat model that compares).",
        source="SWEET-RL section 4.2; table 3, figure 3",
    )
    privileged: bool = key(
        True,
        "The critic's prompt contains the reference, which the policy never reads. false is the ablation.",
        source="SWEET-RL section 4.2; table 3",
    )
    objective: CriticObjective = CriticObjective()
    train: EpochSettings = EpochSettings()
    judge: JudgeSettings = JudgeSettings()

    @property
    def has_head(self) -> bool:
        return self.kind in ("regression", "classifier")

    @model_validator(mode="after")
    def _check_judge(self) -> Self:
        if self.kind != "judge" and self.judge.model != POLICY:
            raise ValueError("critic.judge needs critic.kind=judge; set it, or remove critic.judge")
        return self


class CandidateSettings(Settings):
    """Sampling of candidates for the turns of recorded dialogues."""

    share: float = key(
        0.1,
        "Share of the dialogues whose turns get candidates.",
        source="SWEET-RL's commands: 0.1",
        gt=0,
        le=1,
    )
    count: int = key(16, "Candidates per turn (n).", source="SWEET-RL section 5.1", ge=2)
    temperature: float = key(1.0, "Sampling temperature.", source="SWEET-RL's code", gt=0, le=2)


class PolicySettings(Settings):
    """Training of the policy on pairs."""

    objective: PairObjective = PairObjective()
    train: EpochSettings = EpochSettings()


class ImitationSettings(Settings):
    """Training of the policy on successful dialogues."""

    train: EpochSettings = EpochSettings()


class SweetSettings(RecipeSettings):
    """SWEET-RL: a turn-level critic that sees the reference, then DPO on turns."""

    recipe: ClassVar[str] = "sweet_rl/backend"

    model: ModelName = key("tiny-persona", MODEL)
    method: SweetMethod = key(
        "sweet",
        "`sweet`. Baselines on the same dialogues: `rejection_ft` (SFT on successful dialogues), `multi_turn_dpo` "
        "(DPO of the policy on pairs of whole dialogues).",
        source="SWEET-RL table 2",
    )
    sandbox: SandboxSettings = SandboxSettings()
    rollout: RepeatSettings = RepeatSettings()
    offline: OptionalPath = key(
        None,
        "File of SWEET-RL's offline trajectories (JSONL), or the published one (colbench_offline), instead of sampled "
        "dialogues. Reads at most rollout.tasks tasks and rollout.rollouts_per_task dialogues per task.",
        source="SWEET-RL: colbench_code_offline_15k_llama8b.jsonl",
        min_length=1,
    )
    min_reward: float = key(
        1.0,
        "Minimum share of passed tests for a dialogue to count as a success. Lower it for models that never pass all "
        "tests.",
        source="SWEET-RL's code: 1",
        gt=0,
        le=1,
    )
    train: SharedTrainingSettings = SharedTrainingSettings()
    critic: CriticSettings = CriticSettings()
    candidates: CandidateSettings = CandidateSettings()
    pairs: RankedPairSettings = RankedPairSettings()
    policy: PolicySettings = PolicySettings()
    rejection_ft: ImitationSettings = ImitationSettings()
    multi_turn_dpo: PolicySettings = PolicySettings()

    @property
    def iteration_count(self) -> int:
        """Number of iterations: ``sweet`` trains a critic, then the policy; the baselines only the policy."""
        return 2 if self.method == "sweet" else 1

    @property
    def trainings(self) -> dict[str, TrainingSettings]:
        if self.method == "rejection_ft":
            phases = {"rejection_ft.train": self.rejection_ft.train}
        elif self.method == "multi_turn_dpo":
            phases = {"multi_turn_dpo.train": self.multi_turn_dpo.train}
        else:
            critic = {} if self.critic.kind == "judge" else {"critic.train": self.critic.train}
            phases = {**critic, "policy.train": self.policy.train}
        return {name: combine(self.train, phase) for name, phase in phases.items()}

    @property
    def success(self) -> str:
        """When a dialogue is a success, in words."""
        return f"whose answer passes a share of {self.min_reward:g} or more of the tests"

    @property
    def dialogue_pair(self) -> str:
        """Which two dialogues of a task make a pair, in words."""
        return f"a dialogue {self.success} over one whose answer does not"

    @property
    def words(self) -> dict[str, str]:
        turns = "a reply of the upper part of the critic's advantages over one of the lower part"
        by_method = {
            "sweet": f"for the critic, {self.dialogue_pair}; for the policy, {turns}",
            "rejection_ft": f"a dialogue {self.success}",
            "multi_turn_dpo": self.dialogue_pair,
        }
        advantage = "score of the critic, by which it ranks the replies after the same turns"
        return {"advantage": advantage, "selected": by_method[self.method]}

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        pairs = self.method == "multi_turn_dpo" or (
            self.method == "sweet" and self.critic.kind in ("likelihood", "regression")
        )
        if pairs and self.rollout.rollouts_per_task < 2:
            raise ValueError(
                "rollout.rollouts_per_task=1 gives no pair of a success and a failure; use at least 2"
            )
        return self


class SweetFrontendSettings(SweetSettings):
    """SWEET-RL on web pages: dialogues with a user who has a page in mind, compared by its picture."""

    recipe: ClassVar[str] = "sweet_rl/frontend"

    model: ModelName = key("tiny-pages", MODEL)
    min_reward: float = key(
        0.8,
        "Minimum score for a dialogue to count as a success, for `rejection_ft` and `critic.kind=classifier`.",
        gt=0,
        le=1,
    )
    min_difference: float = key(
        0.1,
        "Minimum difference between the scores (rescaled similarities) of two dialogues on one task that make a pair.",
        source="SWEET-RL's code: 0.1 of the cosine, which is not rescaled",
        gt=0,
        le=1,
    )

    @property
    def success(self) -> str:
        return f"whose page has a score of {self.min_reward:g} or more"

    @property
    def dialogue_pair(self) -> str:
        return f"a dialogue whose page has a score higher by {self.min_difference:g} or more than another one's"


METHODS = (SweetSettings, SweetFrontendSettings)
