"""Every setting of ``sweet_rl/backend``: the method itself, its baselines and its ablations."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.engines.chat_model import ChatModelSettings
from coterie.environments.user_simulator import UserSimulatorSettings
from coterie.recipes.settings import RecipeSettings
from coterie.selection.ranked_pairs import RankedPairSettings
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.training.settings import DPOSettings, TrainingSettings

SweetMethod = Literal["sweet", "rejection_ft", "multi_turn_dpo"]
CriticKind = Literal["likelihood", "regression", "classifier", "judge"]
POLICY = "policy"
"""As a judge: the base model."""


class RepeatSettings(Settings):
    """How the offline dialogues are sampled."""

    tasks: int = key(
        1000, "Training tasks.", source="SWEET-RL section 5.1: 5000 (15k dialogues)", ge=1
    )
    repeats: int = key(3, "Dialogues of each task (k).", source="SWEET-RL section 5.1", ge=1)
    temperature: float = key(1.0, "Sampling temperature.", source="SWEET-RL's code", gt=0, le=2)
    top_p: float = key(1.0, "Nucleus sampling: smallest probability mass to keep.", gt=0, le=1)
    max_tokens: int = key(1024, "Most tokens of one turn.", source="SWEET-RL's code", ge=1)


class PairObjective(DPOSettings):
    """The numbers of the policy's objective."""

    nll: float = key(
        0.01, "weight of the chosen side's mean -log p", source="SWEET-RL table 5", ge=0
    )


class CriticObjective(PairObjective):
    """The numbers of the critic's objective: Bradley-Terry over whole dialogues."""

    normalise: Literal["none", "tokens", "turns"] = key(
        "turns",
        "`turns`: a turn's advantage is the mean log-ratio of its tokens, a dialogue's the sum over its turns; "
        "`tokens`: the mean over all of a dialogue's tokens, as the released code has it; `none`: the "
        "ablation without normalisation, sums.",
        source="SWEET-RL equations 2 and 3",
    )


class JudgeSettings(ChatModelSettings):
    """Who compares candidates, for ``critic.kind=judge``."""

    model: str = key(
        POLICY,
        "`policy` (the base model), a model that coterie loads, or, with a `url`, the name of a model there.",
        source="SWEET-RL: Llama-3.1-8B-Instruct, the base",
        min_length=1,
    )
    max_tokens: int = key(8, "Most tokens of a verdict.", ge=1)


class CriticSettings(Settings):
    """The judge of single turns: who it is, what it sees, how it is trained."""

    kind: CriticKind = key(
        "likelihood",
        "`likelihood`: log-ratios of a language model; ablations: `regression` (a scalar head, over pooled "
        "states), `classifier` (a value head that foretells success), `judge` (a chat model compares).",
        source="SWEET-RL section 4.2; table 3, figure 3",
    )
    privileged: bool = key(
        True,
        "The critic reads the reference, which the policy never does; false is the ablation.",
        source="SWEET-RL section 4.2; table 3",
    )
    objective: CriticObjective = CriticObjective()
    train: TrainingSettings = TrainingSettings()
    judge: JudgeSettings = JudgeSettings()

    @property
    def has_head(self) -> bool:
        return self.kind in ("regression", "classifier")

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.kind != "judge" and self.judge.model != POLICY:
            raise ValueError("critic.judge is for critic.kind=judge")
        return self


class CandidateSettings(Settings):
    """What else the policy might have said."""

    share: float = key(
        0.1,
        "Share of the dialogues whose turns get candidates.",
        source="SWEET-RL's commands: 0.1",
        gt=0,
        le=1,
    )
    count: int = key(16, "Candidates of each turn.", source="SWEET-RL section 5.1", ge=2)
    temperature: float = key(1.0, "Sampling temperature.", source="SWEET-RL's code", gt=0, le=2)
    in_flight: int = key(64, "Dialogues whose turns are branched at a time.", ge=1)


class PolicySettings(Settings):
    """A training of the policy on pairs."""

    objective: PairObjective = PairObjective()
    train: TrainingSettings = TrainingSettings()


class ImitationSettings(Settings):
    """A training of the policy on what succeeded."""

    train: TrainingSettings = TrainingSettings()


class SweetSettings(RecipeSettings):
    """Settings of ``sweet_rl/backend``."""

    recipe: ClassVar[str] = "sweet_rl/backend"
    summary: ClassVar[str] = (
        "SWEET-RL: a turn-level critic that sees the reference, then DPO on turns."
    )

    model: str = key(
        "tiny-persona",
        "Packaged checkpoint, local folder, run folder (its last policy) or Hugging Face name.",
    )
    method: SweetMethod = key(
        "sweet",
        "`sweet`; baselines on the same dialogues: `rejection_ft` (imitate what succeeded), "
        "`multi_turn_dpo` (pairs of whole dialogues train the policy itself).",
        source="SWEET-RL table 2",
    )
    user_simulator: UserSimulatorSettings = UserSimulatorSettings()
    sandbox: SandboxSettings = SandboxSettings()
    rollout: RepeatSettings = RepeatSettings()
    offline: str | None = key(
        None,
        "File of SWEET-RL's offline trajectories (JSONL) instead of sampled dialogues: at most rollout.tasks tasks "
        "and rollout.repeats dialogues of each.",
        source="SWEET-RL: colbench_code_offline_15k_llama8b.jsonl",
        min_length=1,
    )
    min_reward: float = key(
        1.0,
        "Least share of tests that a dialogue passes which is preferred to others or imitated; below 1 for models "
        "that never pass all.",
        source="SWEET-RL's code: 1",
        gt=0,
        le=1,
    )
    critic: CriticSettings = CriticSettings()
    candidates: CandidateSettings = CandidateSettings()
    pairs: RankedPairSettings = RankedPairSettings()
    policy: PolicySettings = PolicySettings()
    rejection_ft: ImitationSettings = ImitationSettings()
    multi_turn_dpo: PolicySettings = PolicySettings()

    @property
    def rounds(self) -> int:
        """``sweet`` trains a critic, then the policy; the baselines only the policy."""
        return 2 if self.method == "sweet" else 1

    @property
    def max_tokens(self) -> int:
        return self.rollout.max_tokens

    @property
    def trainings(self) -> dict[str, TrainingSettings]:
        """The trainings that a run has, by their keys, in their order."""
        if self.method == "rejection_ft":
            return {"rejection_ft.train": self.rejection_ft.train}
        if self.method == "multi_turn_dpo":
            return {"multi_turn_dpo.train": self.multi_turn_dpo.train}
        critic = {} if self.critic.kind == "judge" else {"critic.train": self.critic.train}
        return {**critic, "policy.train": self.policy.train}

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        pairs = self.method == "multi_turn_dpo" or (
            self.method == "sweet" and self.critic.kind in ("likelihood", "regression")
        )
        if pairs and self.rollout.repeats < 2:
            raise ValueError(
                "rollout.repeats=1 leaves no pair of a success and a failure; use at least 2"
            )
        return self
