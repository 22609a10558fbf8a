"""Settings of ``rl/grpo``, ``rl/dapo`` and ``rl/ppo``, which are presets of the same keys."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coterie.config.settings import key
from coterie.recipes.settings import MODEL, RecipeSettings
from coterie.runs.reinforce_settings import ReinforceSettings


class ReinforceRecipeSettings(ReinforceSettings, RecipeSettings):
    """Settings of a recipe with a stage of reinforcement learning."""


class RLSettings(ReinforceRecipeSettings):
    """Settings of ``rl/grpo``, ``rl/dapo`` and ``rl/ppo``. Their values are in ``presets/rl``."""

    recipe: ClassVar[str] = "rl/grpo"
    questions: ClassVar[str | None] = "question"
    summary: ClassVar[str] = "GRPO: advantages relative to a group of rollouts of the same task."

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
    """Settings of ``rl/dapo``."""

    recipe: ClassVar[str] = "rl/dapo"
    summary: ClassVar[str] = (
        "DAPO: GRPO with dynamic sampling, a higher upper clip and a token mean."
    )


class PpoSettings(RLSettings):
    """Settings of ``rl/ppo``."""

    recipe: ClassVar[str] = "rl/ppo"
    summary: ClassVar[str] = "PPO: a critic estimates the value before each token."
