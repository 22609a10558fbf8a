"""Reinforcement learning as a stage of a recipe: its settings, whom it trains, what its results depend on.

What a step does is in :mod:`coterie.runs.reinforce`; a recipe composes it by :func:`reinforce`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.engines.settings import EngineSettings
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.plan import (
    MOMENTS,
    Plan,
    check_memory,
    check_room,
    check_served,
    check_training,
)
from coterie.recipes.settings import RecipeSettings
from coterie.rewards.path_reward import PathReward, PathRewardSettings
from coterie.runs.folder import Run
from coterie.runs.reinforce.learner import Learning
from coterie.runs.reinforce.loop import Reinforcement
from coterie.runs.reinforce.preparing import Rules
from coterie.runs.reinforce.sampling import Groups, sampling_of
from coterie.runs.reinforce.settings import AdvantageSettings, GroupSettings, StepSettings
from coterie.training.launch import launches
from coterie.training.policy_gradient import PolicyGradient, PolicyLossSettings
from coterie.training.settings import Schedule, TrainingSettings, weight_dtype
from coterie.training.value_loss import ValueLoss, ValueLossSettings
from coterie.trajectories.item import Metrics

CRITIC = "critic"
"""The role that says what is to be expected."""
STAGE = "reinforce"
UNUSED = ("epochs", "max_steps", "batch_rows", "save_every_seconds", "save_every_steps")


class UpdateSettings(TrainingSettings):
    """How weights are changed in an optimiser step; how many there are is said by ``steps``."""

    learning_rate: float = key(1e-6, "peak learning rate", source="GAP: 1e-6", gt=0)
    schedule: Schedule = key(
        "constant",
        "how the learning rate goes from its peak to zero, or stays",
        source="GAP's scripts",
    )
    warmup_ratio: float = key(0.0, "share of the steps in which the rate climbs", ge=0, le=1)

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        fields = type(self).model_fields
        if changed := [name for name in UNUSED if getattr(self, name) != fields[name].default]:
            raise ValueError(
                f"{', '.join(changed)} mean nothing in reinforcement learning; steps.minibatches, steps.epochs and "
                "steps.save_every say how often what is trained on and kept"
            )
        return self


class CriticSettings(Settings):
    """The critic of advantage.baseline=values; it begins as the policy, with a fresh value head."""

    train: UpdateSettings = UpdateSettings(learning_rate=1e-5, warmup_ratio=0.05)
    loss: ValueLossSettings = ValueLossSettings()


class ReinforceSettings(Settings):
    """All of a reinforcement learning. A mixin: recipes derive their settings from it beside their own."""

    rollout: GroupSettings = GroupSettings()
    reward: PathRewardSettings = PathRewardSettings()
    advantage: AdvantageSettings = AdvantageSettings()
    steps: StepSettings = StepSettings()
    loss: PolicyLossSettings = PolicyLossSettings()
    update: UpdateSettings = UpdateSettings()
    critic: CriticSettings = CriticSettings()

    @property
    def has_critic(self) -> bool:
        return self.advantage.baseline == "values"

    @property
    def paths(self) -> int:
        return self.steps.count * self.rollout.rounds * self.rollout.tasks * self.rollout.samples

    @model_validator(mode="after")
    def _refuse_lone_paths(self) -> Self:
        if not self.has_critic and self.rollout.samples < 2:
            raise ValueError(
                f"rollout.samples={self.rollout.samples}: a path is compared with the others of its task; use 2 "
                "or more, or advantage.baseline=values"
            )
        return self


def depends(s: ReinforceSettings, engine: EngineSettings) -> tuple[object, ...]:
    own: list[object] = [
        *engine.identity(),
        *(s.rollout.fingerprint(), s.reward.identity(), s.advantage.fingerprint()),
        *(s.steps.identity(), s.loss.fingerprint(), s.update.identity()),
    ]
    if s.has_critic:
        own += [s.critic.train.identity(), s.critic.loss.fingerprint()]
    return tuple(own)


def reinforced_plan(
    s: ReinforceSettings, whole: RecipeSettings, plan: Callable[[], Plan], prefix: str = ""
) -> Plan:
    """The ``plan`` of a run with this stage. Refuses (``UserError``) what can't work, before anything is sampled.

    ``whole`` are the run's settings, ``prefix`` is what the names of these begin with.
    """
    PathReward(s.reward)
    if s.steps.minibatches > s.rollout.tasks:
        raise UserError(
            f"{prefix}steps.minibatches={s.steps.minibatches} is more than {prefix}rollout.tasks={s.rollout.tasks}, "
            "and the groups of a task stay together",
            "use at most as many minibatches as tasks",
        )
    for name, training in (
        (f"{prefix}update", s.update),
        (f"{prefix}critic.train", s.critic.train),
    ):
        if launches(training):
            raise UserError(
                f"{name}.processes and {name}.launch start ranks for a training whose rows are all there; here the "
                "engine and the trainer share a model",
                f"leave out {name}.processes and {name}.launch",
            )
    check_served(whole.engine, {f"{prefix}update": s.update})
    check_training(f"{prefix}update", s.update, whole, whole.model)
    if s.has_critic:
        check_training(f"{prefix}critic.train", s.critic.train, whole, whole.model)
    found = plan()
    check_room(f"{prefix}update", s.update, found.context, found.shortest_prompt)
    if s.has_critic:
        check_room(f"{prefix}critic.train", s.critic.train, found.context, found.shortest_prompt)
    memory = max(found.memory, _trained_bytes(s, whole, found.weights))
    check_memory(memory, whole)
    return replace(found, memory=memory)


def _trained_bytes(s: ReinforceSettings, whole: RecipeSettings, weights: Mapping[str, int]) -> int:
    """Return the bytes of weights, gradients and moments of all models that train fully, which are held at once."""
    each = 2 * weight_dtype(whole).itemsize + MOMENTS
    trainings = {role: s.critic.train if role == CRITIC else s.update for role in weights}
    return sum(each * count for role, count in weights.items() if trainings[role].method == "full")


async def reinforce(
    recipe: Recipe,
    s: ReinforceSettings,
    run: Run,
    iteration: int,
    progress: Progress,
    *,
    roles: Sequence[str],
) -> Metrics:
    """Take the steps of the stage, training ``roles``; each begins as its newest version."""
    models, players = recipe.models(run), recipe.players()
    policies = [
        Learning(
            role,
            recipe.newest(run, role, iteration),
            tuple(agent for agent, player in players.items() if player == role),
            PolicyGradient(s.loss.at(s.rollout.temperature)),
            recipe.seeded(s.update, iteration),
            s.steps.updates,
        )
        for role in roles
    ]
    agents = [agent for one in policies for agent in one.agents]
    critic = None
    if s.has_critic:
        training = recipe.seeded(s.critic.train, iteration)
        (like,) = policies
        critic = Learning(
            *(CRITIC, like.version, tuple(agents), ValueLoss(s.critic.loss), training),
            updates=s.steps.updates,
            like=like.role,
        )
    async with recipe.cast(run) as cast:
        groups = Groups(
            *(run, iteration, STAGE, recipe.environment, cast, s.rollout),
            reward=PathReward(s.reward),
            agents=agents,
            seed=recipe.settings.seed,
        )
        sampling = sampling_of(s.rollout, recipe.settings.engine.timeout)
        rules = Rules(
            s.advantage,
            recomputed=s.loss.old == "recomputed",
            reference=bool(s.loss.kl),
            kl=s.reward.kl,
            entropy=bool(s.loss.entropy),
        )
        work = Reinforcement(run, models, groups, s.steps, rules, sampling, policies, critic)
        return await work.learn(progress)
