"""coterie: post-train language-model agents that work with others.

One loop (rollout, reward, select, train, evaluate, again) over one record of trees of turns.
Packages, from the bottom layer: ``config``, ``record``, ``datasets``, ``models``, ``engines``, ``environments``,
``rollout``, ``rewards``, ``selection``, ``training``, ``evaluation``, ``runs``, ``recipes``,
``reports``, ``cli``. See ``docs/architecture.md``.

The names below are for custom loops (``docs/howto/python.md``). They are imported on first use.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

# Waiting threads that spin for long starve each other on shared cores: next to another process, sampling was 4 to
# 10 times slower. Threads that sleep at once lose a third of the speed on free cores. A spin count of 1000 is a few
# microseconds. OpenMP reads these variables when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from coterie.api import Played, by_task, demonstrate, environment, load, play, train
    from coterie.config.settings import key
    from coterie.datasets.rows import QuestionRow
    from coterie.engines.inprocess import InProcessEngine
    from coterie.environments.protocol import (
        Environment,
        Grade,
        Observation,
        OneAgent,
        Pure,
        State,
        Transition,
    )
    from coterie.environments.settings import EnvironmentSettings
    from coterie.errors import UserError
    from coterie.evaluation import mean_interval
    from coterie.models.loading import LoadedModel
    from coterie.recipes.base import Recipe
    from coterie.recipes.settings import RecipeSettings
    from coterie.record.rows import Pair, Row
    from coterie.record.tree import Ending, Secret, Task
    from coterie.record.turn import Message, Part, Tool, Turn
    from coterie.rollout.recorded_turns import pairs_from_messages, rows_from_messages
    from coterie.runs.loop import Role, Stage
    from coterie.training.losses import DPO, SFT
    from coterie.training.policy_gradient import PolicyGradient
    from coterie.training.reference import with_reference
    from coterie.training.settings import TrainingSettings
    from coterie.training.trainer import Trainer

_MODULES = {
    "api": "Played by_task demonstrate environment load play train",
    "config.settings": "key",
    "datasets.rows": "QuestionRow",
    "engines.inprocess": "InProcessEngine",
    "environments.protocol": "Environment Grade Observation OneAgent Pure State Transition",
    "environments.settings": "EnvironmentSettings",
    "errors": "UserError",
    "evaluation": "mean_interval",
    "models.loading": "LoadedModel",
    "recipes.base": "Recipe",
    "recipes.settings": "RecipeSettings",
    "record.rows": "Pair Row",
    "record.tree": "Ending Secret Task",
    "record.turn": "Message Part Tool Turn",
    "rollout.recorded_turns": "pairs_from_messages rows_from_messages",
    "runs.loop": "Role Stage",
    "training.losses": "DPO SFT",
    "training.policy_gradient": "PolicyGradient",
    "training.reference": "with_reference",
    "training.settings": "TrainingSettings",
    "training.trainer": "Trainer",
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = [
    "DPO", "Ending", "Environment", "EnvironmentSettings", "Grade", "InProcessEngine", "LoadedModel", "Message",
    "Observation", "OneAgent", "Pair", "Part", "Played", "PolicyGradient", "Pure", "QuestionRow", "Recipe",
    "RecipeSettings", "Role", "Row", "SFT", "Secret", "Stage", "State", "Task", "Tool", "Trainer", "TrainingSettings",
    "Transition", "Turn", "UserError", "by_task", "demonstrate", "environment", "key", "load", "mean_interval",
    "pairs_from_messages", "play", "rows_from_messages", "train", "with_reference",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
