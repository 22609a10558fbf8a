"""Settings of ``rl/grpo``, ``rl/dapo`` and ``rl/ppo``, which are presets of the same keys."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coterie.config.settings import key
from coterie.models.catalogue import ModelName
from coterie.recipes.settings import MODEL, RecipeSettings, methods
from coterie.runs.reinforce_settings import PolicyTrainingSettings, ReinforceSettings

CRITIC = "critic"
"""Role of the value function."""


class ReinforceRecipeSettings(ReinforceSettings, RecipeSettings):
    """Settings of a recipe with a stage of reinforcement learning."""

    @model_validator(mode="after")
    def _refuse_shared_weights(self) -> Self:
        training, engine = self.policy_training, self.engine
        # In one process, a step would change the weights while rollouts are sampled from them.
        on_ranks = training.processes is not None or training.launch is not None
        if self.rollout.max_staleness and engine.kind == "inprocess" and not on_ranks:
            raise ValueError(
                f"rollout.max_staleness={self.rollout.max_staleness} samples while a step trains, but both would use "
                "the same weights in one process; use engine.kind=vllm, train on ranks (train.processes), or set "
                "rollout.max_staleness=0"
            )
        if self.rollout.max_staleness and not engine.keep_servers:
            raise ValueError(
                "rollout.max_staleness samples while a step trains, so servers have to run all the time; remove "
                "engine.keep_servers=false"
            )
        return self


class RLSettings(ReinforceRecipeSettings):
    """Settings that all methods of ``rl`` share."""

    questions: ClassVar[str | None] = "question"
    model: ModelName = key("tiny-exchange", MODEL)
    train: PolicyTrainingSettings = PolicyTrainingSettings()
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


METHODS = methods(
    RLSettings,
    ("rl/grpo", "GRPO: advantages relative to a group of rollouts of the same task."),
    ("rl/dapo", "DAPO: GRPO with dynamic sampling, a higher upper clip and a token mean."),
    ("rl/ppo", "PPO: a critic estimates the value before each token."),
    ("rl/turns", "Each turn relative to the same turn of the other rollouts of its task."),
    ("rl/gigpo", "GiGPO: GRPO, plus advantages among turns after equal observations."),
    ("rl/vine", "Alternatives of each turn of a rollout, each played to the end (C3, VinePPO)."),
    ("rl/at_grpo", "AT-GRPO: alternatives of each turn, compared by the turn's own reward."),
    ("rl/magrpo", "MAGRPO: a full tree of joint actions; each agent has its own policy."),
    ("rl/rae", "RAE: rewards minus a running mean of each agent, for agents with opposite goals."),
)
