"""coterie: post-train language-model agents that work with others.

Names for scripts and notebooks (``docs/howto/python.md``), and the types that all plug-ins share::

    world, model = coterie.environment("exchange"), coterie.load("tiny-exchange")
    rollouts = coterie.play(world, model, 16, samples=8)
    coterie.train(model, [row for rollout in rollouts for row in rollout.rows()])

The other public modules are :mod:`coterie.environments`, :mod:`coterie.datasets`, :mod:`coterie.tools` and
:mod:`coterie.recipes` (``docs/howto/bring-your-own.md``). Everything else is internal and may change.
"""

import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

# Waiting threads that spin for long starve each other on shared cores: next to another process, sampling was 4 to
# 10 times slower. Threads that sleep at once lose a third of the speed on free cores. A spin count of 1000 is a few
# microseconds. OpenMP reads these variables when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__version__ = "0.1.0"


def lazy_exports(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose public names are imported on first use.

    The names are listed in ``__all__``. Their modules are read from the package's imports for type checkers.
    """
    module = sys.modules[package]

    @cache
    def modules() -> dict[str, str]:
        import ast  # only the first use of a name needs it

        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> object:
        if name not in module.__all__:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules()[name]), name)
        setattr(module, name, value)
        return value

    return load, lambda: sorted({*vars(module), *module.__all__})


if TYPE_CHECKING:
    from coterie.api import Played, by_task, demonstrate, environment, load, play, train
    from coterie.config.settings import key
    from coterie.engines.endpoint import Endpoint, EndpointSettings, Utterance
    from coterie.engines.inprocess import InProcessEngine
    from coterie.errors import UserError
    from coterie.evaluation import mean_interval
    from coterie.models.adapters import add_head
    from coterie.models.loading import LoadedModel
    from coterie.progress import Progress
    from coterie.record.rows import Pair, Row
    from coterie.record.tree import Credit, Ending, ItemKey, Metrics, Secret, Selection, Task, Tree
    from coterie.record.turn import Finish, Message, Part, Speaker, Tool, ToolCall, Turn
    from coterie.rewards.advantages import gae, group_advantages, with_advantage, with_advantages
    from coterie.training.chat_rows import pairs_from_messages, rows_from_messages
    from coterie.training.losses import DPO, SFT, Objective, ValueLoss
    from coterie.training.policy_gradient import PolicyGradient
    from coterie.training.reference import with_reference
    from coterie.training.settings import PolicyGradientSettings, TrainingSettings
    from coterie.training.trainer import Trainer

__all__ = [
    "Credit", "DPO", "Ending", "Endpoint", "EndpointSettings", "Finish", "InProcessEngine", "ItemKey", "LoadedModel",
    "Message", "Metrics", "Objective", "Pair", "Part", "Played", "PolicyGradient", "PolicyGradientSettings",
    "Progress", "Row", "SFT", "Secret", "Selection", "Speaker", "Task", "Tool", "ToolCall", "Trainer",
    "TrainingSettings", "Tree", "Turn", "UserError", "Utterance", "ValueLoss", "add_head", "by_task", "demonstrate",
    "environment", "gae", "group_advantages", "key", "load", "mean_interval", "pairs_from_messages", "play",
    "rows_from_messages", "train", "with_advantage", "with_advantages", "with_reference",
]  # fmt: skip
__getattr__, __dir__ = lazy_exports(__name__)
