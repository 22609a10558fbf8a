"""Settings of ``moat``."""

from typing import Literal, Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.engines.chat_model import ChatModelSettings
from coterie.models.catalogue import ModelName, OptionalModelName
from coterie.recipes.settings import RecipeSettings, methods
from coterie.tools.sandbox.worker import SandboxSettings
from coterie.training.settings import (
    DPOSettings,
    EpochSettings,
    SharedTrainingSettings,
    TrainingSettings,
    combine,
)

Parts = Literal["joint", "planner", "grounder", "sft"]
"""Halves of an iteration that are done; ``sft`` replaces both."""
SCRIPT = "script"
"""Name of the critic that compares results with the right answer."""


class PlanSettings(Settings):
    """Sampling of plans and actions."""

    tasks: int = key(1000, "Training tasks per iteration.", ge=1)
    rollouts_per_task: int = key(15, "Plans per task (K).", source="MOAT's code: 15", ge=1)
    temperature: float = key(
        1.0, "Sampling temperature of plans.", source="MOAT's code", gt=0, le=2
    )
    top_p: float = key(0.95, "Nucleus sampling.", source="MOAT's code", gt=0, le=1)
    ground_temperature: float = key(
        0.1, "Sampling temperature of actions; 0 is greedy.", source="MOAT's code", ge=0, le=2
    )
    max_tokens: int = key(512, "Maximum tokens per turn.", source="MOAT's code", ge=1)


class PlanRewardSettings(Settings):
    """Reward of a plan."""

    success: float = key(
        0.0,
        "Weight of the score of the grounder's own actions, added to the log-likelihood of the gold actions.",
        source="MOAT: 0",
        ge=0,
    )
    leak_guard: bool = key(
        True,
        "Leave out plans that quote the gold actions: they raise the likelihood by doing the grounder's work.",
        source="MOAT: no such guard",
    )


class PlanPairSettings(Settings):
    """Pairing of a task's plans."""

    rule: Literal["best_worst", "all"] = key(
        "best_worst",
        "Pair the best plan with the worst, or all pairs.",
        source="MOAT's code: best_worst",
    )
    margin: float = key(
        0.1,
        "Minimum difference of the two rewards, in nats per token.",
        source="MOAT's code: 0.1",
        ge=0,
    )


class CriticSettings(ChatModelSettings):
    """Critic that corrects the grounder's actions."""

    model: str = key(
        SCRIPT,
        "`script` (accepts actions that give the right answer and rejects others), a model for coterie to load, or, "
        "with a `url`, the name of a model on that server.",
        source="MOAT: DeepSeek-R1-Distill-Qwen-32B, GPT-4",
        min_length=1,
    )
    temperature: float = key(0.1, "Sampling temperature.", source="MOAT's code", ge=0, le=2)
    max_tokens: int = key(
        2048,
        "Maximum tokens of a reply, including thoughts.",
        source="MOAT's code: vLLM's default, 16",
        ge=1,
    )


class CorrectionSettings(Settings):
    """Correction of the grounder's actions."""

    candidates: Literal["best", "all"] = key(
        "best",
        "Review the actions for each task's best plan, or for all plans.",
        source="MOAT's code: the best of the first five",
    )
    critic: CriticSettings = CriticSettings()
    subgoals: Literal["sampled", "corrected"] = key(
        "sampled",
        "Subgoals in the prompt of corrected actions: sampled by the planner, or corrected by the critic.",
        source="MOAT: corrected",
    )
    rejected: Literal["drop", "keep", "gold"] = key(
        "gold",
        "Training row if the critic rejects the actions, or its reply cannot be parsed: none, the actions as they "
        "are, or the gold actions.",
        source="MOAT's code: keep",
    )
    gold: bool = key(True, "Also train on gold plans with gold actions.", source="MOAT's code")


class AlignmentSettings(Settings):
    """DPO of the planner."""

    objective: DPOSettings = DPOSettings(beta=0.2)
    train: EpochSettings = EpochSettings()


class ImprovementSettings(Settings):
    """SFT of the grounder."""

    train: EpochSettings = EpochSettings()


class StartSettings(Settings):
    """SFT of both agents before the first iteration."""

    enabled: bool = key(
        True,
        "Train both agents on gold plans and gold actions first. Set false if the models already are a planner and a "
        "grounder.",
        source="MOAT: false, from Lumos' agents",
    )
    tasks: int = key(1000, "Training tasks.", ge=1)
    train: EpochSettings = EpochSettings()


class MeasureSettings(Settings):
    """Measurement of J, the mean log-likelihood of gold actions given sampled plans of held-out tasks."""

    tasks: int = key(200, "Held-out tasks.", ge=1)
    rollouts_per_task: int = key(4, "Plans per held-out task.", ge=1)


class MoatSettings(RecipeSettings):
    """Settings that all methods of ``moat`` share."""

    model: ModelName = key(
        "smollm2",
        "Initial planner: packaged checkpoint, folder, run folder (its last policy) or Hugging Face name.",
    )
    parts: Parts = key(
        "joint",
        "`joint` trains both agents. Ablations: align only the `planner`, or improve only the `grounder`. Control: "
        "`sft` continues supervised training of both agents on each iteration's tasks.",
        source="MOAT's ablations",
    )
    iterations: int = key(2, "Iterations of alternating alignment.", source="MOAT's code: 2", ge=1)
    grounder: OptionalModelName = key(None, "Initial grounder. Default: `model`, like the planner.")
    share_base: bool = key(
        False, "Keep both agents as adapters of one base in memory. Requires train.method=lora."
    )
    sandbox: SandboxSettings = SandboxSettings()
    rollout: PlanSettings = PlanSettings()
    reward: PlanRewardSettings = PlanRewardSettings()
    pairs: PlanPairSettings = PlanPairSettings()
    align: AlignmentSettings = AlignmentSettings()
    correct: CorrectionSettings = CorrectionSettings()
    improve: ImprovementSettings = ImprovementSettings()
    start: StartSettings = StartSettings()
    train: SharedTrainingSettings = SharedTrainingSettings()
    measure: MeasureSettings = MeasureSettings()

    @property
    def iteration_count(self) -> int:
        """Number of iterations, including the supervised start."""
        return self.iterations + self.start.enabled

    @property
    def trainings(self) -> dict[str, TrainingSettings]:
        phases = {"start.train": self.start.train} if self.start.enabled else {}
        if self.parts in ("joint", "planner"):
            phases["align.train"] = self.align.train
        # The control trains the planner too, with the settings of the grounder's training.
        if self.parts != "planner":
            phases["improve.train"] = self.improve.train
        return {name: combine(self.train, phase) for name, phase in phases.items()}

    @property
    def words(self) -> dict[str, str]:
        plans = {
            "best_worst": "the best and the worst plan of a task",
            "all": "two plans of a task",
        }
        return {
            "reward": "mean log-probability of the right actions under the grounder, in nats a token",
            "perplexity": "exp(-reward)",
            "selected": f"{plans[self.pairs.rule]}, if their rewards differ by more than {self.pairs.margin:g}. A plan "
            "without a reward is empty, cut off, an earlier one again, or quotes a right action",
        }

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.parts in ("joint", "planner") and self.rollout.rollouts_per_task < 2:
            raise ValueError("rollout.rollouts_per_task=1 gives no pair of plans; use at least 2")
        if self.share_base and self.train.method != "lora":
            raise ValueError("share_base=true trains adapters: add train.method=lora")
        if self.share_base and self.grounder is not None:
            raise ValueError("share_base=true uses one base for both agents; remove grounder")
        return self


ALIGNMENT = "MOAT: joint alignment of a planner and a grounder on"
METHODS = methods(
    MoatSettings,
    ("moat/maths", f"{ALIGNMENT} mathematics."),
    ("moat/complex_qa", f"{ALIGNMENT} multi-hop questions."),
    ("moat/web", f"{ALIGNMENT} web pages."),
)
