"""Settings of ``rl/grpo``, ``rl/dapo`` and ``rl/ppo``, which are presets of the same keys."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coterie.config.settings import key
from coterie.recipes.settings import MODEL, RecipeSettings
from coterie.runs.reinforce_settings import ReinforceSettings


class ReinforceRecipeSettings(ReinforceSettings, RecipeSettings):
    """Settings of a recipe with a stage of reinforcement learning."""


class RLSettings(ReinforceRecipeSettings):
    """GRPO: advantages relative to a group of rollouts of the same task."""

    recipe: ClassVar[str] = "rl/grpo"
    questions: ClassVar[str | None] = "question"
    model: str = key("tiny-exchange", MODEL)
    policies: Literal["one", "each"] = key(
        "one",
        "`one` policy plays all agents of the environment, or `each` agent has its own policy, trained on its own "
        "turns.",
    )

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.policies == "each" and self.has_critic:
            raise ValueError(
                "policies=each does not support a critic; use advantage.baseline=mean, or policies=one"
            )
        return self


class DapoSettings(RLSettings):
    """DAPO: GRPO with dynamic sampling, a higher upper clip and a token mean."""

    recipe: ClassVar[str] = "rl/dapo"


class PpoSettings(RLSettings):
    """PPO: a critic estimates the value before each token."""

    recipe: ClassVar[str] = "rl/ppo"
