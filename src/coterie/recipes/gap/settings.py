"""Every setting of the methods of ``gap``: ``mhqa``, ``web``, ``code`` and ``tiny``."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.datasets.load import DatasetSettings
from coterie.environments.settings import EnvironmentSettings
from coterie.environments.workflow.trace import TraceForm
from coterie.recipes.settings import RecipeSettings
from coterie.runs.reinforce.settings import ReinforceSettings
from coterie.training.settings import TrainingSettings
from coterie.trajectories.turn import digest

EXPERT = "expert"


class TracesSettings(Settings):
    """The trajectories that are learned from."""

    main: ClassVar[str] = "source"

    source: str = key(
        EXPERT,
        "`expert`: written from the gold facts of the training rows, with the run's own tools in the loop; or a file "
        "of GAP's SFT JSON (also .jsonl, .parquet).",
        source="GAP: AFM's traces, rewritten by GPT-4o",
    )
    form: TraceForm = key(
        "parallel",
        "How the expert works: by a plan, all calls that are ready in one message (`parallel`); one call after the "
        "other without a plan (`sequential`, the baseline); or not at all: only answers are learned, also those of a "
        "file (`closed`, a control without tools, with environment.prompt=closed tools=[]).",
    )
    tasks: int = key(
        7000, "Training tasks, or rows of the file, at most.", source="GAP: 7000", ge=1
    )
    min_calls: int = key(1, "Fewest calls of a trace.", source="GAP's paper: 3", ge=0)
    max_truncated: float = key(
        0.1,
        "Share of traces longer than train.max_length above which the training is refused.",
        ge=0,
        le=1,
    )


class MessageSettings(Settings):
    """What the agent says at a time."""

    max_tokens: int = key(1024, "Most tokens of one message.", ge=1)


class ImitationSettings(TrainingSettings):
    """How the policy is trained on traces."""

    learning_rate: float = key(1e-5, "peak learning rate", source="GAP: 1e-5", gt=0)
    epochs: int = key(4, "how often every row is seen", source="GAP: 4", ge=1)
    batch_rows: int = key(32, "rows of one optimiser step", source="GAP: 32", ge=1)
    max_length: int = key(5120, "tokens of a row at most", source="GAP: 5120", ge=2)
    tokens_per_microbatch: int = key(
        8192, "padded tokens of one forward and backward pass; changes memory, not results", ge=2
    )
    target_tokens: int | None = key(
        None,
        "instead of `epochs`: as many steps as bring the targets that are trained closest to this number of tokens, "
        "for controls that are trained on as much",
        ge=1,
    )

    @property
    def plain(self) -> TrainingSettings:
        return TrainingSettings.model_validate(self.model_dump(exclude={"target_tokens"}))

    def identity(self) -> str:
        """As of the plain settings, where these say how long the training is."""
        own = self.plain.identity()
        return own if self.target_tokens is None else digest(own, self.target_tokens)


class GapSettings(RecipeSettings):
    """What all methods of ``gap`` are told."""

    model: str = key(
        "smollm2", "Packaged checkpoint, folder, run folder (its last policy) or Hugging Face name."
    )
    method: Literal["sft", "rl", "sft_rl"] = key(
        "sft",
        "`sft`: supervised fine-tuning on traces. `rl`: reinforcement learning from the model as it is. `sft_rl`: the "
        "one, then the other.",
    )
    traces: TracesSettings = TracesSettings()
    rollout: MessageSettings = MessageSettings()
    train: ImitationSettings = ImitationSettings()
    rl: ReinforceSettings = ReinforceSettings()

    @property
    def imitates(self) -> bool:
        return self.method != "rl"

    @property
    def reinforces(self) -> bool:
        return self.method != "sft"

    @property
    def rounds(self) -> int:
        return self.imitates + self.reinforces

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.method == "sft_rl" and self.train.method != self.rl.update.method:
            raise ValueError(
                f"train.method={self.train.method} and rl.update.method={self.rl.update.method}: reinforcement "
                "learning goes on from what fine-tuning left; give both the same method"
            )
        return self

    @property
    def max_tokens(self) -> int:
        return self.rollout.max_tokens


class MhqaSettings(GapSettings):
    """Settings of ``gap/mhqa``."""

    recipe: ClassVar[str] = "gap/mhqa"
    summary: ClassVar[str] = "GAP: parallel tool calls for multi-hop questions, SFT then RL."

    dataset: DatasetSettings = DatasetSettings(name="hotpot_qa")
    environment: EnvironmentSettings = EnvironmentSettings(name="mhqa")


class WebSettings(GapSettings):
    """Settings of ``gap/web``."""

    recipe: ClassVar[str] = "gap/web"
    summary: ClassVar[str] = "GAP: parallel tool calls for questions of the web."

    dataset: DatasetSettings = DatasetSettings(name="qa")
    environment: EnvironmentSettings = EnvironmentSettings(name="web")


class CodeSettings(GapSettings):
    """Settings of ``gap/code``. Nobody writes traces for it: they come from a file."""

    recipe: ClassVar[str] = "gap/code"
    summary: ClassVar[str] = "GAP: programs for contests and mathematics."

    dataset: DatasetSettings = DatasetSettings(name="livecodebench")
    environment: EnvironmentSettings = EnvironmentSettings(name="code")


class TinySettings(GapSettings):
    """Settings of ``gap/tiny``: the packaged model in the encyclopedia that it knows."""

    recipe: ClassVar[str] = "gap/tiny"
    summary: ClassVar[str] = "GAP on the packaged encyclopedia and model."
