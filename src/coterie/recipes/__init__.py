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
    from coterie.recipes.trainings import imitate
    from coterie.rewards.dialogue_reward import DialogueSample
    from coterie.rollout.episodes import Episode
    from coterie.runs.loop import Role, Stage
    from coterie.runs.run import Run, Step
    from coterie.runs.work_items import Done, on_trees

__all__ = [
    "DialogueSample", "Done", "Episode", "Recipe", "RecipeDescription", "RecipeSettings", "Role", "Run", "Stage",
    "Step", "imitate", "on_trees",
]  # fmt: skip
__getattr__, __dir__ = lazy_exports(__name__)
