"""Recipes: a module for each published method, which reads like its paper's algorithm.

A recipe that only evaluates::

    class Evaluate(Recipe):
        def stages(self):
            return [self.evaluation(0)]
"""

from typing import TYPE_CHECKING

from coterie import lazy_exports

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe
    from coterie.recipes.registry import RecipeDescription
    from coterie.recipes.settings import RecipeSettings
    from coterie.recipes.trainings import train_sft
    from coterie.rewards.dialogue_reward import DialogueSample
    from coterie.rollout.episodes import Episode
    from coterie.runs.loop import Role, Stage, stage
    from coterie.runs.run import Run, StageKey
    from coterie.runs.work_items import ItemResult, on_trees

__all__ = [
    "DialogueSample", "Episode", "ItemResult", "Recipe", "RecipeDescription", "RecipeSettings", "Role", "Run", "Stage",
    "StageKey", "on_trees", "stage", "train_sft",
]  # fmt: skip
__getattr__, __dir__ = lazy_exports(__name__)
