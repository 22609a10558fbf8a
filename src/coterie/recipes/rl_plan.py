"""Checks and memory of a stage of reinforcement learning, before it starts."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from coterie.environments.protocol import Environment, agents_of
from coterie.environments.qa_metrics import TEACHER
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.recipes.plan import (
    Plan,
    check_ranks,
    check_room,
    check_served,
    check_training,
    max_dialogue_tokens,
    planned,
    rank_count,
)
from coterie.recipes.rl_settings import PRIVILEGED, PolicySettings, ReinforceRecipeSettings
from coterie.record.tree import Task
from coterie.rewards.dialogue_reward import PathReward
from coterie.training.distributed import launches
from coterie.training.memory import MemoryPlan, TrainedModel, cache_memory, training_memory
from coterie.training.settings import Reads, weight_dtype


def plan_reinforcement(
    s: ReinforceRecipeSettings, plan: Callable[[], Plan], frozen: Mapping[str, str]
) -> Plan:
    """Check the settings of the stage, and add its memory to a run's plan.

    ``frozen`` has the models of roles that are not trained. Raises ``UserError`` if the settings cannot work.
    """
    # Imports the user's own reward functions, so that errors in them show first.
    PathReward(s.reward)
    s = planned(s)
    if (minibatches := s.steps.minibatches_per_step) > s.rollout.tasks:
        problem = f"steps.minibatches_per_step={minibatches} is more than rollout.tasks"
        fix = f"use at most {s.rollout.tasks}, because the group of a task is not split"
        raise UserError(f"{problem}={s.rollout.tasks}", fix)
    trainings = {s.policy_group: s.policy_training}
    check_served(s, {"train": s.policy_training})
    if s.has_critic:
        trainings["critic.train"] = s.critic_training
    for training in trainings.values():
        check_training("train", training, s, s.model)
    check_ranks(s, s.policy_training, "train")
    result = plan()
    for name, training in trainings.items():
        check_room(name, training, result.context, result.shortest_prompt)
    memory = _training_memory(s, result, frozen)
    memory.check(result.available, result.device, s.model)
    # One evaluation every `evaluate_every` steps, rounded up.
    during = -(-s.steps.count // s.steps.evaluate_every) if s.steps.evaluate_every else 0
    evaluations = result.evaluations + during * result.heldout
    return replace(result, memory=(*result.memory, memory), evaluations=evaluations)


def check_roles(
    environment: Environment,
    policies: PolicySettings,
    players: Mapping[str, str],
    renderers: Mapping[str, ChatRenderer],
) -> None:
    """Raise ``UserError`` for settings of unknown agents or roles, or a teacher with other tokens.

    ``players`` has the role of each agent, ``renderers`` the renderer of each role.
    """
    agents, roles = agents_of(environment), {*players.values()}
    if unknown := [agent for agent in policies.roles if agent not in agents]:
        raise UserError(
            f"policies.roles has {unknown[0]}, which is no agent of {environment.name}",
            f"its agents are {', '.join(agents)}",
        )
    frozen, rates = policies.frozen, policies.learning_rates
    if unknown := [role for role in (*frozen, *rates) if role not in roles]:
        raise UserError(
            f"policies has settings of the role {unknown[0]}, which plays no agent",
            f"the roles are {', '.join(sorted(roles))}; map agents to roles with policies.roles",
        )
    if policies.teacher not in (None, PRIVILEGED):
        teacher, *others = (renderers[role].tokenizer.get_vocab() for role in (TEACHER, *roles))
        if any(vocabulary != teacher for vocabulary in others):
            raise UserError(
                f"the teacher {policies.teacher} has another vocabulary than the policies",
                "use a teacher of the same family of models",
            )
    if roles <= frozen.keys():
        raise UserError("policies.frozen has all roles, so nothing is trained", "remove a role")


def teacher_secrets(environment: Environment, tasks: Iterable[Task]) -> str:
    """Return the names of the secrets that a privileged teacher reads; raise ``UserError`` if there are none."""
    secrets = (item for task in tasks for item in task.secrets.items())
    names = sorted({name for name, secret in secrets if TEACHER in secret.readers})
    if not names:
        raise UserError(
            f"policies.teacher={PRIVILEGED} shows the task's secrets, and {environment.name} has none for the reader "
            f"`{TEACHER}`",
            f"add `{TEACHER}` to the readers of a Secret of its tasks, or give a model as the teacher",
        )
    return ", ".join(names)


def _training_memory(
    s: ReinforceRecipeSettings, plan: Plan, frozen: Mapping[str, str]
) -> MemoryPlan:
    # Without a limit of turns, only the context bounds a dialogue.
    turns = plan.turns or plan.context
    longest = max_dialogue_tokens(plan.longest_prompt, turns, s.rollout.max_tokens)
    length, engine = min(plan.context, longest), s.engine
    attention = engine.attention or "sdpa"
    # The entropy bonus needs gradients of the entropies; without it they are only shown.
    reads: Reads = "entropies" if s.loss.entropy_coef else "entropies_no_grad"
    policies, critics = list[TrainedModel](), list[TrainedModel]()
    sampling = Counter[str]()
    # Adapters in this process have one base in memory; each rank loads one for each role.
    on_ranks = launches(s.policy_training)
    one_base = s.train.method == "lora" and not on_ranks
    bases = {s.model} if one_base else set[str]()
    for role, shape in plan.shapes.items():
        if role in plan.critics:
            training = s.critic_training
            critics.append(TrainedModel(shape, training, length, 1, None, "states", attention))
            continue
        if (model := frozen.get(role)) is not None:
            if model not in bases:
                sampling["frozen models"] += shape.weights * weight_dtype(s).itemsize
            bases.add(model)
            continue
        training, is_shared = s.policy_training, one_base and bool(policies)
        policies.append(TrainedModel(shape, training, length, 1, None, reads, attention, is_shared))
        # A sampler in this process keeps its cache while the policy trains.
        if engine.kind == "inprocess":
            dialogues = max(plan.heldout, s.rollout.tasks_per_round * s.rollout.rollouts_per_task)
            size = weight_dtype(s).itemsize
            sampling.update(cache_memory(shape, engine, size, dialogues, length))
    # An adapter's base is its reference. In this process, roles share the copy of their initial weights.
    copied = (s.loss.kl_coef or s.reward.kl_coef) and s.train.method == "full"
    ranks, sharded = rank_count(s.policy_training, "train")
    return training_memory(
        s.policy_group,
        [*policies, *critics],
        shared="train",
        device=engine.device_name,
        ranks=ranks,
        sharded=sharded,
        references=(len(policies) if on_ranks else 1) if copied else 0,
        sampling=sampling,
    )
