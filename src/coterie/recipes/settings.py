"""Settings that all recipes share."""

from typing import ClassVar

from coterie.config.settings import MOST_SEED, Settings, key
from coterie.engines.settings import EngineSettings
from coterie.environments.registry import PlayedSettings
from coterie.runs.folder import RunSettings


class EvaluateSettings(Settings):
    """Evaluation of a policy."""

    tasks: int = key(500, "Held-out tasks.", source="Optima: 1000; SWEET-RL: 1000", ge=1)
    temperature: float = key(0.0, "0 is greedy.", source="Optima section 6", ge=0, le=2)


class RecipeSettings(RunSettings, PlayedSettings):
    """Base class of the settings of recipes."""

    recipe: ClassVar[str]
    questions: ClassVar[str | None] = None
    """Environment for data sets of plain questions: ``question`` (one agent) or ``debate``. Default: from the set."""
    summary: ClassVar[str] = ""
    """One line for ``coterie list``."""

    model: str = key(
        ..., "Packaged checkpoint, local folder, run folder (its last policy) or Hugging Face name."
    )
    seed: int = key(0, "Seed of tasks, sampling, selection and training.", ge=0, le=MOST_SEED)
    evaluate: EvaluateSettings = EvaluateSettings()
    engine: EngineSettings = EngineSettings()

    @property
    def rounds(self) -> int:
        return 1

    @property
    def max_tokens(self) -> int:
        return 256
