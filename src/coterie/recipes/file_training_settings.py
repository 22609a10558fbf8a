"""Settings of ``sft`` and ``dpo``, which train on conversations or preferences of a file."""

from pathlib import Path
from typing import ClassVar, Literal

from coterie.config.settings import key
from coterie.datasets.conversations import Targets
from coterie.datasets.question_files import FileSettings
from coterie.models.catalogue import ModelName
from coterie.recipes.settings import MODEL, EvaluateSettings, RecipeSettings
from coterie.training.settings import DPOSettings, TrainingSettings


class SampleSettings(EvaluateSettings):
    """Replies to held-out prompts, before and after training."""

    tasks: int = key(16, "Held-out prompts that the models reply to.", ge=1)
    max_tokens: int = key(256, "Maximum tokens of a reply.", ge=1)
    rows: int = key(500, "Held-out rows whose loss is measured.", ge=1)
    every: int | None = key(
        None,
        "Optimizer steps between two measurements of the held-out loss; none: after each epoch.",
        ge=1,
    )

    def identity(self) -> str:
        """Hash the settings that replies depend on, without ``every``."""
        return self.model_copy(update={"every": None}).fingerprint()


class FileTrainingSettings(RecipeSettings):
    """Settings of training on the rows of a file."""

    questions: ClassVar[str | None] = "conversation"

    model: ModelName = key("smollm2", MODEL)
    dataset: FileSettings = FileSettings()
    evaluate: SampleSettings = SampleSettings()
    train: TrainingSettings = TrainingSettings()
    rows: int = key(1_000_000, "Maximum number of training rows.", ge=1)
    long_rows: Literal["refuse", "drop"] = key(
        "refuse", "Rows longer than train.max_length or the model's context."
    )

    @property
    def turn_tokens(self) -> int:
        return self.evaluate.max_tokens

    @property
    def benchmark(self) -> str:
        """Name of the file or data set, for titles."""
        source = self.dataset.source if isinstance(self.dataset, FileSettings) else ""
        return Path(source).name if source else super().benchmark


class SFTFileSettings(FileTrainingSettings):
    """Supervised fine-tuning on conversations of a file or data set."""

    recipe: ClassVar[str] = "sft"
    dataset: FileSettings = FileSettings(name="conversations")
    targets: Targets = key(
        "all", "Train on all messages of the assistant, or only on the last one."
    )


class PairTrainingSettings(TrainingSettings):
    """Training settings with DPO's learning rate."""

    learning_rate: float = key(5e-7, "peak learning rate", source="DPO: 1e-6 to 5e-7", gt=0)


class DPOFileSettings(FileTrainingSettings):
    """Direct preference optimization on preferences of a file or data set."""

    recipe: ClassVar[str] = "dpo"
    dataset: FileSettings = FileSettings(name="preferences")
    objective: DPOSettings = DPOSettings()
    train: TrainingSettings = PairTrainingSettings()


METHODS = (SFTFileSettings, DPOFileSettings)
