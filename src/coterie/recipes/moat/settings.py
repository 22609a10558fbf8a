"""Every setting of ``moat``: joint alignment, each half of it alone, and the control."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.engines.chat_model import ChatModelSettings
from coterie.recipes.settings import RecipeSettings
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.training.settings import DPOSettings, TrainingSettings

Parts = Literal["joint", "planner", "grounder", "sft"]
SCRIPT = "script"
"""As a critic: a comparison of what actions give with the right answer."""


class PlanSettings(Settings):
    """How plans are sampled, and what the grounder makes of them."""

    tasks: int = key(1000, "Training tasks of an iteration.", ge=1)
    samples: int = key(15, "Plans of each task (K).", source="MOAT's code: 15", ge=1)
    temperature: float = key(
        1.0, "Sampling temperature of plans.", source="MOAT's code", gt=0, le=2
    )
    top_p: float = key(0.95, "Nucleus sampling.", source="MOAT's code", gt=0, le=1)
    ground_temperature: float = key(
        0.1, "Sampling temperature of actions; 0 is greedy.", source="MOAT's code", ge=0, le=2
    )
    max_tokens: int = key(512, "Most tokens of one turn.", source="MOAT's code", ge=1)


class PlanRewardSettings(Settings):
    """What a plan is worth."""

    success: float = key(
        0.0,
        "Weight of success: what the grounder's own actions gave, beside the likelihood of the right ones.",
        source="MOAT: 0",
        ge=0,
    )
    leak_guard: bool = key(
        True,
        "Plans that quote the right actions are left out: they make them likely by writing the grounder's part.",
        source="MOAT: no such guard",
    )


class PlanPairSettings(Settings):
    """Which plans of a task make a pair."""

    rule: Literal["best_worst", "all"] = key(
        "best_worst", "The best with the worst, or any two.", source="MOAT's code: best_worst"
    )
    margin: float = key(
        0.1,
        "Least difference of the two rewards, which are mean log-likelihoods (nats a token).",
        source="MOAT's code: 0.1",
        ge=0,
    )


class CriticSettings(ChatModelSettings):
    """Who corrects the grounder's actions."""

    model: str = key(
        SCRIPT,
        "`script` (actions are right if they give the right answer, else the right actions take their place), a model "
        "that coterie loads, or, with a `url`, the name of a model there.",
        source="MOAT: DeepSeek-R1-Distill-Qwen-32B, GPT-4",
        min_length=1,
    )
    temperature: float = key(0.1, "Sampling temperature.", source="MOAT's code", ge=0, le=2)
    max_tokens: int = key(
        2048,
        "Most tokens of a reply, thoughts included.",
        source="MOAT's code: vLLM's default, 16",
        ge=1,
    )


class CorrectionSettings(Settings):
    """Which of the grounder's actions are looked at, and what becomes of them."""

    candidates: Literal["best", "top", "all"] = key(
        "best",
        "The actions for each task's best plan, for its `top` best, or for all.",
        source="MOAT's code: the best of the first five",
    )
    top: int = key(3, "How many plans, for candidates=top.", ge=1)
    critic: CriticSettings = CriticSettings()
    subgoals: Literal["sampled", "corrected"] = key(
        "sampled",
        "Under which subgoals corrected actions are learned: those that the planner writes, or the critic's.",
        source="MOAT: corrected",
    )
    unreadable: Literal["drop", "keep", "gold"] = key(
        "gold",
        "What is learned where the critic says nothing readable: nothing, the actions as they are, or the right ones.",
        source="MOAT's code: keep",
    )
    gold: bool = key(True, "Right plans with right actions are learned too.", source="MOAT's code")


class AlignmentSettings(Settings):
    """The planner's training on pairs of plans."""

    objective: DPOSettings = DPOSettings(beta=0.2)
    train: TrainingSettings = TrainingSettings()


class ImprovementSettings(Settings):
    """A training on rows."""

    train: TrainingSettings = TrainingSettings()


class StartSettings(Settings):
    """Supervised training of both before the first iteration."""

    enabled: bool = key(
        True,
        "Both are trained on right plans and right actions first; false for models that are already a planner and a "
        "grounder.",
        source="MOAT: false, from Lumos' agents",
    )
    tasks: int = key(1000, "Training tasks.", ge=1)
    train: TrainingSettings = TrainingSettings()


class MeasureSettings(Settings):
    """J: how likely right actions are under the plans that the planner writes, on held-out tasks."""

    tasks: int = key(200, "Held-out tasks.", ge=1)
    samples: int = key(4, "Plans of each.", ge=1)


class MoatSettings(RecipeSettings):
    """What all methods of ``moat`` are told."""

    model: str = key(
        "smollm2",
        "What the planner begins as: packaged checkpoint, folder, run folder (its last policy) or Hugging Face name.",
    )
    parts: Parts = key(
        "joint",
        "`joint`; ablations: only the `planner` is aligned, only the `grounder` is improved; control: `sft`, in which "
        "both go on with supervised training on each iteration's tasks.",
        source="MOAT's ablations",
    )
    iterations: int = key(2, "How often both are aligned in turn.", source="MOAT's code: 2", ge=1)
    grounder: str | None = key(
        None, "What the grounder begins as, if it is not `model`, which the planner begins as."
    )
    share: bool = key(
        False, "Both are adapters of one base in memory; their trainings then have method=lora."
    )
    sandbox: SandboxSettings = SandboxSettings()
    rollout: PlanSettings = PlanSettings()
    reward: PlanRewardSettings = PlanRewardSettings()
    pairs: PlanPairSettings = PlanPairSettings()
    align: AlignmentSettings = AlignmentSettings()
    correct: CorrectionSettings = CorrectionSettings()
    improve: ImprovementSettings = ImprovementSettings()
    start: StartSettings = StartSettings()
    measure: MeasureSettings = MeasureSettings()

    @property
    def rounds(self) -> int:
        """Iterations, the supervised start included."""
        return self.iterations + self.start.enabled

    @property
    def max_tokens(self) -> int:
        return self.rollout.max_tokens

    @property
    def trainings(self) -> dict[str, TrainingSettings]:
        found = {"start.train": self.start.train} if self.start.enabled else {}
        if self.parts in ("joint", "planner"):
            found["align.train"] = self.align.train
        if self.parts != "planner":
            found["improve.train"] = self.improve.train
        return found

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.parts in ("joint", "planner") and self.rollout.samples < 2:
            raise ValueError("rollout.samples=1 leaves no pair of plans; use at least 2")
        whole = [name for name, one in self.trainings.items() if one.method != "lora"]
        if self.share and whole:
            raise ValueError(f"share=true trains adapters: add {whole[0]}.method=lora")
        if self.share and self.grounder is not None:
            raise ValueError("share=true has one base for both: leave out grounder")
        return self


class MathsSettings(MoatSettings):
    """Settings of ``moat/maths``."""

    recipe: ClassVar[str] = "moat/maths"
    summary: ClassVar[str] = "MOAT: planner and grounder aligned jointly, on mathematics."


class ComplexQASettings(MoatSettings):
    """Settings of ``moat/complex_qa``."""

    recipe: ClassVar[str] = "moat/complex_qa"
    summary: ClassVar[str] = "MOAT: planner and grounder, on multi-hop questions."


class WebSettings(MoatSettings):
    """Settings of ``moat/web``."""

    recipe: ClassVar[str] = "moat/web"
    summary: ClassVar[str] = "MOAT: planner and grounder, on web pages."
