"""Settings that all recipes share, and presets of a method by data set or micro-world.

A file of presets has the keys::

    common:                     values for all data sets below and for plug-ins
    datasets: {NAME: {...}}     values of single data sets, which override the common values
    open: true                  also use the common values for data sets and micro-worlds without values
    micro_world: {...}          values of the micro-world, without the common values
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any, ClassVar, Literal, Self, TypeVar

import yaml
from pydantic import create_model, model_validator

from coterie.config.resolve import overlaid
from coterie.config.settings import MOST_SEED, Settings, key
from coterie.datasets.load import DatasetSettings
from coterie.engines.settings import EngineSettings
from coterie.environments.registry import TaskSettings
from coterie.environments.settings import EnvironmentSettings
from coterie.environments.user_simulator import UserSimulatorSettings
from coterie.models.catalogue import ModelName
from coterie.runs.run import RunSettings
from coterie.training.settings import TrainingSettings

MODEL = "Packaged checkpoint, local folder, run folder (its last policy) or Hugging Face name."


GPUType = Literal["A100", "L40S", "H100", "H200", "B200"]


GPU_MEMORY: Mapping[GPUType, int] = {
    "A100": 80 * 10**9, "L40S": 48 * 10**9, "H100": 80 * 10**9, "H200": 141 * 10**9, "B200": 180 * 10**9
}  # fmt: skip
"""Bytes of memory of a GPU, from its data sheet."""


class EvaluateSettings(Settings):
    """Evaluation of a policy."""

    tasks: int = key(500, "Held-out tasks.", source="Optima: 1000; SWEET-RL: 1000", ge=1)
    temperature: float = key(0.0, "0 is greedy.", source="Optima section 6", ge=0, le=2)


class RecipeSettings(RunSettings, TaskSettings):
    """Base class of the settings of recipes. `coterie list` shows the first line of a subclass's docstring."""

    recipe: ClassVar[str]
    questions: ClassVar[str | None] = None
    """Environment for data sets of plain questions: ``question`` (one agent) or ``debate``. Default: from the set."""

    model: ModelName = key(..., MODEL)
    seed: int = key(0, "Seed of tasks, sampling, selection and training.", ge=0, le=MOST_SEED)
    evaluate: EvaluateSettings = EvaluateSettings()
    engine: EngineSettings = EngineSettings()
    user_simulator: UserSimulatorSettings = UserSimulatorSettings()
    gpu: GPUType | None = key(
        None, "Type of GPU that the plan assumes. Default: the devices of this machine."
    )

    @model_validator(mode="after")
    def _refuse_memory_of_one_machine(self) -> Self:
        if self.cluster != "none" and self.engine.vllm.transfer in ("shm", "ipc"):
            raise ValueError(
                f"engine.vllm.transfer={self.engine.vllm.transfer} needs servers on this machine, unlike "
                f"cluster={self.cluster}; use disk or nccl"
            )
        return self

    @property
    def iteration_count(self) -> int:
        """Number of iterations; 1 for recipes without the key ``iterations``."""
        return int(getattr(self, "iterations", 1))

    @property
    def trainings(self) -> dict[str, TrainingSettings]:
        """Settings of trainings on rows or pairs by key."""
        return {}

    @property
    def words(self) -> dict[str, str]:
        """Meanings of the recipe's credit by name, and the rule by which it selects (``selected``), for the viewer."""
        return {}

    @property
    def turn_tokens(self) -> int:
        """Maximum sampled tokens per turn: ``rollout.max_tokens``, or the recipe's own key ``max_tokens``."""
        max_tokens: int = getattr(self, "max_tokens", 256)
        return getattr(getattr(self, "rollout", None), "max_tokens", max_tokens)


VALUES: Mapping[str, str] = {
    "value": "mean reward of the rollouts through a turn",
    "visits": "number of rollouts through a turn",
}
"""Meanings of the credit of tree searches."""
S = TypeVar("S", bound=RecipeSettings)


def methods(base: type[S], *rows: tuple[str, ...]) -> tuple[type[S], ...]:
    """Derive a settings class for each method of a recipe.

    A row has the method's name, its meaning (the docstring), and optionally a default data set with its environment.
    """
    return tuple(_method(base, *row) for row in rows)


def _method(
    base: type[S], name: str, meaning: str, dataset: str = "", environment: str = ""
) -> type[S]:
    defaults: dict[str, Any] = {}
    if dataset:
        # Only the names; the command line may replace them, and `registry.settings` adds the keys of the environment.
        defaults["dataset"] = (DatasetSettings, DatasetSettings(name=dataset))
        defaults["environment"] = (EnvironmentSettings, EnvironmentSettings(name=environment))
    method_settings: type[S] = create_model(
        base.__name__, __base__=base, __module__=base.__module__, __doc__=meaning, **defaults
    )
    # In `create_model` the name would become a field, and it is a variable of the class.
    method_settings.recipe = name
    return method_settings


@dataclass(frozen=True, slots=True)
class Presets:
    """Preset values of a method by data set or environment."""

    common: Mapping[str, Any]
    values: Mapping[str, Mapping[str, Any]]
    """Values of the micro-world (if there is one), then of data sets by name."""

    open: bool = False
    """True if data sets and environments without values use the common values."""


NONE = Presets({}, {})
"""Presets of a method without a file; the defaults of its settings apply."""


def read_presets(file: Traversable) -> Presets:
    table: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    common, rows = table.pop("common", {}), table.pop("datasets", {})
    micro_world, is_open = table.pop("micro_world", None), table.pop("open", False)
    assert not table, f"{file} has unknown parts: {', '.join(table)}"
    return Presets(
        common,
        {
            # The micro-world comes first, because the first entry is the default of a method.
            **({micro_world["environment"]["name"]: micro_world} if micro_world else {}),
            **{name: overlaid(common, rows[name]) for name in sorted(rows)},
        },
        is_open,
    )
