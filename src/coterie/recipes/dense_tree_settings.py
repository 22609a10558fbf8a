"""Settings of ``dense_tree``."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from coterie.config.settings import Settings, key
from coterie.datasets.published_preferences import MixedPreferences
from coterie.errors import UserError
from coterie.models.catalogue import ModelName
from coterie.recipes.settings import MODEL, VALUES, RecipeSettings, methods
from coterie.rollout.dense_search import DenseSearchSettings
from coterie.selection import BudgetSettings, DensePairSettings
from coterie.tools.sandbox.worker import SandboxSettings
from coterie.training.settings import DPOSettings, TrainingSettings


class TreesSettings(Settings):
    """Trees of an iteration."""

    tasks: int = key(64, "Training tasks per iteration, with one tree each.", ge=1)
    max_tokens: int = key(1024, "Maximum tokens per message.", source="DensePolicy: 1024", ge=1)
    shard: tuple[int, int] = key(
        (0, 1),
        "Shard of the tasks for this run: [i, n] is part i of n, counted from 0. `coterie merge` merges the runs of "
        "all parts.",
    )

    @model_validator(mode="after")
    def _check_shard(self) -> Self:
        part, parts = self.shard
        if not 0 <= part < parts:
            raise ValueError(f"there is no part {part} of {parts}; parts are counted from 0")
        return self


class PairTrainingSettings(TrainingSettings):
    """DPO training on pairs."""

    learning_rate: float = key(7.2e-8, "peak learning rate", source="DensePolicy: 7.2e-8", gt=0)
    batch_size: int = key(32, "pairs per optimizer step", source="DensePolicy: 32", ge=1)
    max_length: int = key(4096, "maximum tokens per row", source="DensePolicy: 4096", ge=2)


class MixSettings(Settings):
    """Outside preference sets, mixed with the pairs of the trees."""

    main: ClassVar[str] = "sets"

    sets: dict[str, Annotated[int, Field(ge=1)]] = key(
        {},
        "Pairs to draw from each set, for example {ultra_interact: 14000, path/pairs.jsonl: 500}. A set is "
        "ultra_interact or ultra_feedback (Hugging Face Hub), or a file of preferences as `coterie run dpo FILE` reads "
        "it. Drawn by seed without replacement; a smaller set is used whole.",
        source="DensePolicy: 14000 of UltraInteract, 14000 of UltraFeedback",
    )

    @field_validator("sets")
    @classmethod
    def _check_names(cls, value: dict[str, int]) -> dict[str, int]:
        # Metrics name a set by its file name, so two sets must not have the same one.
        names: dict[str, str] = {}
        for source in value:
            try:
                name = MixedPreferences(source).name
            except UserError as error:
                raise ValueError(f"{error.what}: {error.todo}") from None
            if name in names:
                raise ValueError(
                    f"{names[name]} and {source} have the same name {name}; rename one of them"
                )
            names[name] = source
        return value


class DenseTreeSettings(RecipeSettings):
    """Settings that all methods of ``dense_tree`` share."""

    model: ModelName = key("smollm2", MODEL)
    iterations: int = key(
        1, "Iterations of growing trees and training on them.", source="DensePolicy: 1", ge=1
    )
    rollout: TreesSettings = TreesSettings()
    search: DenseSearchSettings = DenseSearchSettings()
    pairs: DensePairSettings = DensePairSettings()
    budget: BudgetSettings = BudgetSettings()
    mix: MixSettings = MixSettings()
    objective: DPOSettings = DPOSettings()
    train: PairTrainingSettings = PairTrainingSettings()
    sandbox: SandboxSettings = SandboxSettings()

    @property
    def trainings(self) -> dict[str, TrainingSettings]:
        return {"train": self.train}

    @property
    def words(self) -> dict[str, str]:
        return {
            **VALUES,
            "distance": "mean number of turns to the ends of these rollouts",
            "selected": "replies after the same turns whose values differ by "
            f"{self.pairs.margin:g} or more, within the budget",
        }

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.pairs.margin > 1:
            raise ValueError(f"pairs.margin={self.pairs.margin:g}; values differ by at most 1")
        if self.search.children == "sampling" or any(self.search.temperatures):
            return self
        raise ValueError("search.temperatures are all 0, so all children would be equal; raise one")


SEARCH = "DensePolicy: preference pairs from dense tree search"
METHODS = methods(
    DenseTreeSettings,
    ("dense_tree/tiny", "DensePolicy on the packaged games and model."),
    ("dense_tree/gsm8k", f"{SEARCH} on GSM8K.", "gsm8k", "python_maths"),
    ("dense_tree/math", f"{SEARCH} on MATH.", "math", "python_maths"),
    ("dense_tree/babyai", f"{SEARCH} in BabyAI."),
    ("dense_tree/alfworld", f"{SEARCH} in ALFWorld."),
    ("dense_tree/agentgym", f"{SEARCH} in a world of AgentGym."),
    ("dense_tree/textworld", f"{SEARCH} in TextWorld."),
)
