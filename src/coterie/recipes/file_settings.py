"""Settings of ``sft`` and ``dpo``: training on a file of conversations or preferences."""

from pathlib import Path
from typing import ClassVar, Literal

from coterie.config.settings import key
from coterie.datasets.conversations import FileSettings, Targets
from coterie.recipes.settings import EvaluateSettings, RecipeSettings
from coterie.training.settings import DPOSettings, TrainingSettings


class SampleSettings(EvaluateSettings):
    """Replies to held-out prompts, before and after training."""

    tasks: int = key(16, "Held-out prompts that the models reply to.", ge=1)
    max_tokens: int = key(256, "Most tokens of a reply.", ge=1)
    rows: int = key(500, "Held-out rows of which the loss is measured.", ge=1)


class FileTrainingSettings(RecipeSettings):
    """Settings of training on a file."""

    model: str = key(
        "smollm2",
        "Packaged checkpoint, local folder, run folder (its last policy) or Hugging Face name.",
    )
    dataset: FileSettings = FileSettings()
    evaluate: SampleSettings = SampleSettings()
    train: TrainingSettings = TrainingSettings()
    rows: int = key(1_000_000, "Most training rows of the file.", ge=1)
    long_rows: Literal["refuse", "drop"] = key(
        "refuse", "Rows longer than train.max_length or the model's context."
    )

    @property
    def max_tokens(self) -> int:
        return self.evaluate.max_tokens

    @property
    def played(self) -> str:
        """Name of the file, for titles."""
        source = getattr(self.dataset, "source", "")
        return Path(source).name if source else super().played


class SFTFileSettings(FileTrainingSettings):
    """Settings of ``sft``."""

    recipe: ClassVar[str] = "sft"
    summary: ClassVar[str] = "Supervised fine-tuning on conversations of a file."

    dataset: FileSettings = FileSettings(name="conversations")
    targets: Targets = key(
        "all", "Train on all of the assistant's messages of a conversation, or on the last one."
    )


class PairTrainingSettings(TrainingSettings):
    """Settings of the training on pairs."""

    learning_rate: float = key(5e-7, "peak learning rate", source="DPO: 1e-6 to 5e-7", gt=0)


class DPOFileSettings(FileTrainingSettings):
    """Settings of ``dpo``."""

    recipe: ClassVar[str] = "dpo"
    summary: ClassVar[str] = "Direct preference optimization on preferences of a file."

    dataset: FileSettings = FileSettings(name="preferences")
    objective: DPOSettings = DPOSettings()
    train: TrainingSettings = PairTrainingSettings()
