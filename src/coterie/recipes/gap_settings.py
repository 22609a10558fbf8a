"""Settings of ``gap``."""

from typing import ClassVar, Literal

from coterie.config.settings import PathText, Settings, key
from coterie.environments.workflow.plan_graph import TraceForm
from coterie.models.catalogue import ModelName
from coterie.recipes.rl_settings import ReinforceRecipeSettings
from coterie.recipes.settings import MODEL, methods
from coterie.record.turn import digest
from coterie.runs.reinforce_settings import GroupSettings, UpdateSettings
from coterie.training.settings import TrainingSettings, combine

EXPERT = "expert"


class TracesSettings(Settings):
    """Traces for supervised fine-tuning."""

    main: ClassVar[str] = "source"

    source: PathText = key(
        EXPERT,
        "`expert` writes traces from the gold facts of the training rows and calls the run's tools. Or a file in the "
        "format of GAP's SFT data (.json, .jsonl, .parquet), or a published one (gap_traces, afm_web_traces, ...).",
        source="GAP: AFM's traces, rewritten by GPT-4o",
    )
    form: TraceForm = key(
        "parallel",
        "`parallel`: a plan, then all independent calls in one message. `sequential`: one call at a time without a "
        "plan (baseline). `closed`: train only on answers (control without tools, with environment.prompt=closed "
        "tools=[]).",
    )
    tasks: int = key(7000, "Maximum training tasks, or rows of the file.", source="GAP: 7000", ge=1)
    min_calls: int = key(1, "Minimum calls per trace.", source="GAP's paper: 3", ge=0)
    max_truncated: float = key(
        0.1,
        "Maximum share of traces longer than train.max_length. Training is refused above it.",
        ge=0,
        le=1,
    )


class RolloutSettings(GroupSettings):
    """Sampling of rollouts, for reinforcement learning and evaluation."""

    max_tokens: int = key(1024, "Maximum tokens per message.", ge=1)


class ImitationSettings(TrainingSettings):
    """Supervised fine-tuning on traces."""

    learning_rate: float = key(1e-5, "peak learning rate", source="GAP: 1e-5", gt=0)
    epochs: int = key(4, "passes over all rows", source="GAP: 4", ge=1)
    batch_size: int = key(32, "rows per optimizer step", source="GAP: 32", ge=1)
    max_length: int = key(5120, "maximum tokens per row", source="GAP: 5120", ge=2)
    tokens_per_microbatch: int = key(
        8192, "padded tokens per forward and backward pass; changes memory, not results", ge=2
    )
    target_tokens: int | None = key(
        None,
        "total number of target tokens to train on, instead of `epochs`; for controls with an equal training budget",
        ge=1,
    )

    @property
    def plain(self) -> TrainingSettings:
        # The trainer only knows the usual settings; `target_tokens` becomes steps before.
        return TrainingSettings.model_validate(self.model_dump(exclude={"target_tokens"}))

    def identity(self) -> str:
        """Hash of the settings that change results."""
        # Without `target_tokens` the hash is the same as of the usual settings.
        plain_identity = self.plain.identity()
        return (
            plain_identity
            if self.target_tokens is None
            else digest(plain_identity, self.target_tokens)
        )


class RLPhaseSettings(Settings):
    """Training of the policy by reinforcement learning. `train` has the keys that it shares with SFT."""

    train: UpdateSettings = UpdateSettings()


class GapSettings(ReinforceRecipeSettings):
    """Settings that all methods of ``gap`` share."""

    policy_group: ClassVar[str] = "rl.train"
    model: ModelName = key("smollm2", MODEL)
    method: Literal["sft", "rl", "sft_rl"] = key(
        "sft",
        "`sft`: supervised fine-tuning on traces. `rl`: reinforcement learning of the initial model. `sft_rl`: both, "
        "in this order.",
    )
    traces: TracesSettings = TracesSettings()
    rollout: RolloutSettings = RolloutSettings()
    train: ImitationSettings = ImitationSettings()
    rl: RLPhaseSettings = RLPhaseSettings()

    @property
    def policy_training(self) -> TrainingSettings:
        return combine(self.train, self.rl.train)

    @property
    def words(self) -> dict[str, str]:
        rule = "whose answer is right (a file of traces has no right answers)"
        if self.traces.form != "closed":
            rule = f"with {self.traces.min_calls} calls or more, whose results have the supporting facts, and {rule}"
        return super().words | {"selected": f"a trace {rule}"}

    @property
    def imitates(self) -> bool:
        return self.method != "rl"

    @property
    def reinforces(self) -> bool:
        return self.method != "sft"

    @property
    def trainings(self) -> dict[str, TrainingSettings]:
        return {"train": self.train} if self.imitates else {}

    @property
    def iteration_count(self) -> int:
        return self.imitates + self.reinforces


QUESTIONS = "GAP: parallel tool calls for"
METHODS = methods(
    GapSettings,
    ("gap/tiny", "GAP on the packaged encyclopedia and model."),
    ("gap/mhqa", f"{QUESTIONS} multi-hop questions, SFT then RL.", "hotpot_qa", "mhqa"),
    ("gap/web", f"{QUESTIONS} questions about the web.", "qa", "web"),
    ("gap/all_tools", f"{QUESTIONS} questions, with all tools.", "qa", "all_tools"),
    ("gap/code", "GAP: programs for coding contests and mathematics.", "livecodebench", "code"),
)
