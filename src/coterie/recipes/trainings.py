"""SFT, DPO and reinforcement learning of a role, as functions of stages.

The loop of reinforcement learning is in :mod:`coterie.runs.reinforce`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from peft import PeftModel

from coterie.engines.settings import EngineSettings
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan, check_room, check_served, check_training, max_dialogue_tokens
from coterie.recipes.settings import RecipeSettings
from coterie.record.rows import Pair, View, rows, view
from coterie.record.tree import Metrics, Selection, Tree
from coterie.rewards.path_reward import PathReward
from coterie.runs.folder import Run
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce.learner import LearnerConfig
from coterie.runs.reinforce.loop import Reinforcement
from coterie.runs.reinforce.sampling import BatchRules, GroupSampler, sampling_of
from coterie.runs.reinforce.settings import ReinforceSettings
from coterie.runs.roles import load_selections
from coterie.training.checkpoint import TrainingReport, weight_hash
from coterie.training.distributed import launches, train_on_ranks
from coterie.training.losses import DPO, SFT, Objective, Reads, ValueLoss
from coterie.training.memory import MemoryPlan, TrainedModel, cache_memory, training_memory
from coterie.training.policy_gradient import PolicyGradient
from coterie.training.reference import with_reference
from coterie.training.settings import DPOSettings, TrainingSettings, weight_dtype
from coterie.training.trainer import train


def train_role(
    run: Run,
    iteration: int,
    model: LoadedModel,
    items: Sequence[Any],
    settings: TrainingSettings,
    progress: Progress,
    *,
    objective: Objective[Any] | None = None,
    role: str,
    heldout: Sequence[Any] = (),
    measure_every: int | None = None,
) -> Metrics:
    """Train a role's model on items, by default with SFT on rows. ``heldout`` items are measured during training."""
    folder, tracker = run.training_folder(iteration, role), run.tracker.of(role)
    if launches(settings):
        report = train_on_ranks(
            *(model, items, settings, folder, objective or SFT(), progress, tracker),
            heldout=heldout,
            measure_every=measure_every,
        )
    else:
        report = train(
            *(model.model, items, settings, folder),
            objective=objective,
            progress=progress,
            tracker=tracker,
            heldout=heldout,
            measure_every=measure_every,
        )
    return training_metrics(report, len(items))


def imitate(
    recipe: Recipe,
    run: Run,
    iteration: int,
    settings: TrainingSettings,
    progress: Progress,
    *,
    role: str | None = None,
    make_view: Callable[[Tree, Selection], View] | None = None,
) -> Metrics:
    """Train a role's newest version by SFT on its own turns of the selected trajectories.

    ``role`` defaults to the recipe's main role, and ``make_view`` to the view of sampling. Raises ``UserError`` if
    nothing was selected.
    """
    role = role or recipe.main_role
    agents = {agent for agent, player in recipe.players().items() if player == role}
    training_rows = [
        row
        for tree, selection in load_selections(run, iteration)
        if selection.agent in agents
        for row in rows(
            make_view(tree, selection)
            if make_view
            else view(tree, selection.leaf, selection.agent),
            selection.weight,
        )
        if row.targets
    ]
    if not training_rows:
        raise UserError(
            f"iteration {iteration} selected no turns of {role} to train on",
            "`coterie report` shows the scores; sample more dialogues, or select by another rule",
        )
    model = recipe.models(run).load_to_train(role, recipe.newest(run, role, iteration))
    seeded = recipe.seeded(settings, iteration)
    return train_role(run, iteration, model, training_rows, seeded, progress, role=role)


def prefer(
    run: Run,
    iteration: int,
    model: LoadedModel,
    pairs: Sequence[Pair],
    objective: DPOSettings,
    settings: TrainingSettings,
    progress: Progress,
    *,
    role: str,
    heldout: Sequence[Pair] = (),
    measure_every: int | None = None,
) -> Metrics:
    """Train a role by DPO on pairs. The reference is the model before this training.

    ``L = -log sigmoid(beta [log pi(w) / pi_ref(w) - log pi(l) / pi_ref(l)])`` for the chosen side w and the rejected
    side l. Log-probs of the reference are stored next to the training.
    """
    adapter = model.model.active_adapter if isinstance(model.model, PeftModel) else None
    pairs_with_reference, measured = (
        with_reference(
            *(model.model, some, settings, run.training_folder(iteration, role) / name),
            adapter=adapter,
            normalise=objective.normalise,
            progress=progress,
        )
        if some
        else []
        for name, some in (("reference", pairs), ("reference-heldout", heldout))
    )
    return train_role(
        *(run, iteration, model, pairs_with_reference, settings, progress),
        objective=DPO(objective),
        role=role,
        heldout=measured,
        measure_every=measure_every,
    )


def training_metrics(report: TrainingReport, items: int) -> Metrics:
    dropped = report.dropped_too_long + report.dropped_empty
    return {
        "rows": items - dropped,
        "dropped": dropped,
        "trained_tokens": report.targets,
        "steps": report.steps,
        "loss": report.last_loss,
        "weights": weight_hash(report.final),
    }


CRITIC = "critic"
"""Role of the value function."""
STAGE = REINFORCE


def reinforcement_settings(s: ReinforceSettings, engine: EngineSettings) -> tuple[object, ...]:
    depends: list[object] = [
        *engine.identity(),
        *(s.rollout.fingerprint(), s.reward.identity(), s.advantage.fingerprint()),
        *(s.steps.identity(), s.loss.fingerprint(), s.update.identity()),
    ]
    if s.has_critic:
        depends += [s.critic.train.identity(), s.critic.loss.fingerprint()]
    return tuple(depends)


def plan_reinforcement(
    s: ReinforceSettings, run_settings: RecipeSettings, plan: Callable[[], Plan], prefix: str = ""
) -> Plan:
    """Check the settings of the stage and add its memory to the ``plan`` of a run.

    Args:
        s: Settings of the stage, whose keys start with ``prefix``.
        run_settings: Settings of the run.
        plan: Function that makes the plan of the run without the stage.
        prefix: Start of the settings keys of the stage.

    Raises:
        UserError: If the settings cannot work.
    """
    PathReward(s.reward)
    if s.steps.minibatches > s.rollout.tasks:
        raise UserError(
            f"{prefix}steps.minibatches={s.steps.minibatches} is more than {prefix}rollout.tasks={s.rollout.tasks}, "
            "and the group of a task is not split",
            f"use at most {s.rollout.tasks} minibatches",
        )
    for name, training in (
        (f"{prefix}update", s.update),
        (f"{prefix}critic.train", s.critic.train),
    ):
        if launches(training):
            raise UserError(
                f"{name}.processes and {name}.launch do not work in reinforcement learning, where the engine and the "
                "trainer share a model",
                f"remove {name}.processes and {name}.launch",
            )
    check_served(run_settings.engine, {f"{prefix}update": s.update})
    check_training(f"{prefix}update", s.update, run_settings, run_settings.model)
    if s.has_critic:
        check_training(f"{prefix}critic.train", s.critic.train, run_settings, run_settings.model)
    result = plan()
    check_room(f"{prefix}update", s.update, result.context, result.shortest_prompt)
    if s.has_critic:
        check_room(f"{prefix}critic.train", s.critic.train, result.context, result.shortest_prompt)
    memory = _training_memory(s, run_settings, result, f"{prefix}update")
    memory.check(result.available, result.device, run_settings.model)
    return replace(result, memory=(*result.memory, memory))


def _training_memory(
    s: ReinforceSettings, run_settings: RecipeSettings, plan: Plan, key: str
) -> MemoryPlan:
    """Plan the memory of the update, with all models and the cache of the engine."""
    length = min(
        plan.context,
        max_dialogue_tokens(plan.longest_prompt, plan.turns or plan.context, s.rollout.max_tokens),
    )
    attention = run_settings.engine.attention or "sdpa"
    reads: Reads = "entropies" if s.loss.entropy else "shown entropies"
    policies, critics, sampling = [], [], Counter[str]()
    for role, shape in plan.shapes.items():
        if role == CRITIC:
            critics.append(TrainedModel(shape, s.critic.train, length, 1, "states", attention))
            continue
        policies.append(TrainedModel(shape, s.update, length, 1, reads, attention))
        if run_settings.engine.kind == "inprocess":
            size = weight_dtype(run_settings).itemsize
            dialogues = max(plan.heldout, s.rollout.draw_count * s.rollout.samples)
            sampling.update(cache_memory(shape, run_settings.engine, size, dialogues, length))
    # An adapter's base is its reference.
    copied = (s.loss.kl or s.reward.kl) and s.update.method == "full"
    return training_memory(
        key,
        [*policies, *critics],
        device=run_settings.engine.device_name,
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
    """Run the RL stage: train ``roles`` from their newest versions."""
    models, players = recipe.models(run), recipe.players()
    policies = [
        LearnerConfig(
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
        critic = LearnerConfig(
            *(CRITIC, like.version, tuple(agents), ValueLoss(s.critic.loss), training),
            updates=s.steps.updates,
            like=like.role,
        )
    async with recipe.actors(run) as actors:
        groups = GroupSampler(
            *(run, iteration, STAGE, recipe.environment, actors, s.rollout),
            reward=PathReward(s.reward),
            agents=agents,
            seed=recipe.settings.seed,
        )
        sampling = sampling_of(s.rollout, recipe.settings.engine.timeout)
        rules = BatchRules(
            s.advantage,
            recomputed=s.loss.old == "recomputed",
            reference=bool(s.loss.kl),
            kl=s.reward.kl,
            entropy=bool(s.loss.entropy),
        )
        work = Reinforcement(run, models, groups, s.steps, rules, sampling, policies, critic)
        return await work.learn(progress)
