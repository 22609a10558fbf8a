"""Reinforcement learning as a stage of a recipe: its settings, whom it trains, what its results depend on.

What a step does is in :mod:`coterie.runs.reinforce`; a recipe composes it by :func:`reinforce`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from coterie.engines.settings import EngineSettings
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan, check_room, check_served, check_training, grown
from coterie.recipes.settings import RecipeSettings
from coterie.rewards.path_reward import PathReward
from coterie.runs.folder import Run
from coterie.runs.reinforce.learner import Learning
from coterie.runs.reinforce.loop import Reinforcement
from coterie.runs.reinforce.preparing import Rules
from coterie.runs.reinforce.sampling import Groups, sampling_of
from coterie.runs.reinforce.settings import ReinforceSettings
from coterie.training.launch import launches
from coterie.training.memory import MemoryPlan, TrainedModel, cache_memory, training_memory
from coterie.training.objective import Reads
from coterie.training.policy_gradient import PolicyGradient
from coterie.training.settings import weight_dtype
from coterie.training.value_loss import ValueLoss
from coterie.trajectories.item import Metrics

CRITIC = "critic"
"""The role that says what is to be expected."""
STAGE = "reinforce"


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
    memory = _training_memory(s, whole, found, f"{prefix}update")
    memory.check(found.available, found.device, whole.model)
    return replace(found, memory=(*found.memory, memory))


def _training_memory(
    s: ReinforceSettings, whole: RecipeSettings, plan: Plan, key: str
) -> MemoryPlan:
    """Plan the memory of the update, in which all models and the cache of the engine are held."""
    length = min(
        plan.context, grown(plan.longest_prompt, plan.turns or plan.context, s.rollout.max_tokens)
    )
    attention = whole.engine.attention or "sdpa"
    reads: Reads = "entropies" if s.loss.entropy else "shown entropies"
    policies, critics, sampling = [], [], Counter[str]()
    for role, shape in plan.shapes.items():
        if role == CRITIC:
            critics.append(TrainedModel(shape, s.critic.train, length, 1, "states", attention))
            continue
        policies.append(TrainedModel(shape, s.update, length, 1, reads, attention))
        if whole.engine.kind == "inprocess":
            size = weight_dtype(whole).itemsize
            dialogues = max(plan.heldout, s.rollout.drawn * s.rollout.samples)
            sampling.update(cache_memory(shape, whole.engine, size, dialogues, length))
    # An adapter's base is its reference.
    copied = (s.loss.kl or s.reward.kl) and s.update.method == "full"
    return training_memory(
        key,
        [*policies, *critics],
        device=whole.engine.device_name,
        references=len(policies) if copied else 0,
        sampling=sampling,
    )


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
