"""Settings of ``rl``, whose methods are presets of the same keys."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.models.catalogue import ModelName
from coterie.recipes.settings import MODEL, RecipeSettings, methods
from coterie.runs.reinforce_settings import CRITIC, PolicyTrainingSettings, ReinforceSettings

PRIVILEGED = "privileged"
"""Teacher that is the policy itself, under prompts with the task's secrets."""


def critic_roles(roles: Sequence[str], settings: ReinforceSettings) -> list[str]:
    """Return the role of each trained role's critic, or of the critic of the joint state; none without critics."""
    if not settings.has_critic:
        return []
    if len(roles) == 1 or settings.critic.view == "joint":
        return [CRITIC]
    return [f"{CRITIC}-{role}" for role in roles]


RULES = {
    "mean": "{return} - mean of the group",
    "mean_std": "({return} - mean of the group) / standard deviation of the group",
    "leave_one_out": "{return} - mean of the others of the group",
    "best": "1 for the highest {return} of the group, 0 for the others",
    "values": "estimated for each token by the critic",
}
"""Advantages by ``advantage.baseline``."""
COMPARED = {
    "path": "reward",
    "turn": "return to go of a turn",
    "state": "reward, plus the same of the returns to go of turns after equal observations,",
    "sibling": "return of the turn",
}
"""What the advantage is computed from, by ``advantage.group``."""
RUNNING = "reward - running mean of the agent's rewards over all steps"


class ReinforceRecipeSettings(ReinforceSettings, RecipeSettings):
    """Settings of a recipe with a stage of reinforcement learning."""

    @property
    def words(self) -> dict[str, str]:
        baseline, group = self.advantage.baseline, self.advantage.group
        rule = RUNNING
        if group != "role":
            rule = RULES[baseline].replace("{return}", COMPARED[group])
        return {
            "total": "reward of an agent, the sum of its terms",
            "term": "term of the reward, with its sign and weight",
            "return": "return of the turn",
            "advantage": f"{rule}. Positive makes the tokens more likely, negative less likely, and 0 teaches nothing",
        }

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


class PolicySettings(Settings):
    """The model of each agent, and the models that are trained."""

    weights: Literal["one", "each"] = key(
        "one",
        "`one` set of weights plays all agents of the environment, or `each` agent has its own, trained on its own "
        "turns.",
    )
    roles: dict[str, str] = key(
        {},
        "Role of each agent, such as {solver: solver, checker: checker, judge: checker}. A role has its own weights. "
        "Default: see weights.",
    )
    frozen: dict[str, ModelName] = key(
        {},
        "Roles that play and are not trained, with their models, such as {checker: Qwen/Qwen2.5-7B-Instruct}.",
    )
    teacher: Literal["privileged"] | ModelName | None = key(
        None,
        "Model with the same tokenizer whose log-probs the trained roles distill on the tokens that they sample. "
        "`privileged`: each role itself, with the weights of the step, under prompts that also show the task's secrets "
        "for the reader `teacher`.",
        source="on-policy distillation",
    )
    distill_coef: float = key(
        1.0, "Weight of log p_teacher - log p_old in the advantage of a token (teacher).", ge=0
    )
    learning_rates: dict[str, float] = key(
        {}, "Learning rates of single roles. Default: train.learning_rate.", source="Dr. MAS"
    )
    alternate_steps: int | None = key(
        None,
        "Steps for which one role trains while the others only play, in turn. Default: all train in each step.",
        source="ReMA: 10",
        ge=1,
    )


class RLSettings(ReinforceRecipeSettings):
    """Settings that all methods of ``rl`` share."""

    questions: ClassVar[str | None] = "question"
    model: ModelName = key("tiny-exchange", MODEL)
    train: PolicyTrainingSettings = PolicyTrainingSettings()
    policies: PolicySettings = PolicySettings()

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.policies.weights == "each" and self.policies.roles:
            raise ValueError("policies.weights=each gives each agent a role; remove policies.roles")
        if bad := [name for name, rate in self.policies.learning_rates.items() if rate <= 0]:
            raise ValueError(f"policies.learning_rates has {bad[0]}, whose rate is not above 0")
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
