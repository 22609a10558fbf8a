"""Reinforcement learning on the sampled tokens: PPO, GRPO, DAPO, and methods for several turns and agents.

    evaluate   the initial policy on held-out tasks
    reinforce  steps, each with the newest policy:
                 sample     G = ``rollout.rollouts_per_task`` rollouts for each of ``rollout.tasks`` tasks
                 reward     R_i of rollout i: the environment's rewards or score, plus the run's own terms
                 advantage  A_i = (R_i - mean R) / std R over the G rollouts of a task by an agent (std is unbiased)
                            (GRPO, arXiv 2402.03300; DAPO, arXiv 2503.14476), or GAE (PPO, arXiv 1707.06347):
                            delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lam A_{t+1}
                 update     with rho_t = pi(a_t | s_t) / pi_old(a_t | s_t), on the agents' own tokens:
                            L = mean_t max(-rho_t A_t, -clip(rho_t, 1 - eps_low, 1 + eps_high) A_t) + kl D(pi, pi_ref)
                            (where A_t < 0, the maximum is at most -c A_t with c = ``loss.dual_clip``)
    evaluate   the trained policy on the same held-out tasks

The methods differ only in their settings. GRPO divides advantages by the group's standard deviation and adds the
divergence D to the loss (``loss.aggregation`` selects the mean over tokens or over rollouts). DAPO has a higher upper
clip, a mean over all tokens, no divergence, dynamic sampling until enough groups have different rewards, and a soft
penalty for long answers. PPO has a critic V. The methods for several agents choose other groups in
:func:`group_batch`: turns instead of rollouts (``rl/turns``), turns after equal observations (``rl/gigpo``), siblings
of one state, each played to the end (``rl/vine``, ``rl/magrpo``), or stopped after the turn and compared by its reward
(``rl/at_grpo``), or a running mean for each agent (``rl/rae``).

:func:`train_step` is the algorithm: :func:`group_batch` or :func:`critic_batch` sets A (arithmetic:
:mod:`coterie.rewards.advantages`, :mod:`coterie.rewards.turn_advantages`), :func:`update` takes the steps on L (the
clip and kl D: :class:`~coterie.training.policy_gradient.PolicyGradient`). A divergence in the reward
(``reward.kl_coef``) is another one, see :func:`prepare`. :mod:`coterie.runs.reinforce` samples, saves and resumes.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle
from typing import TYPE_CHECKING

from coterie.engines.protocol import POLICY
from coterie.environments.protocol import agents_of
from coterie.environments.qa_metrics import TEACHER
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan
from coterie.recipes.rl_plan import check_roles, plan_reinforcement, teacher_secrets
from coterie.recipes.rl_settings import PRIVILEGED, PolicySettings, RLSettings, critic_roles
from coterie.record.rows import Row
from coterie.record.tree import LeftOut, Metrics
from coterie.reports.health import step_warnings
from coterie.rewards.advantages import (
    gae,
    group_advantages,
    trained_values,
    turn_ends,
    whiten,
    with_advantage,
    with_advantages,
)
from coterie.rewards.dialogue_reward import PathReward
from coterie.rewards.turn_advantages import (
    TurnPath,
    role_advantages,
    state_advantages,
    turn_advantages,
    with_turn_advantages,
)
from coterie.runs.joint_critic import critic_name
from coterie.runs.loop import REINFORCE, Role, Stage, stage
from coterie.runs.reinforce_batch import (
    MEAN,
    AgentPath,
    StepBatch,
    StepSamples,
    by_role,
    fresh_paths,
    group_counts,
    group_left_out,
    informative_tasks,
    left_out_paths,
    with_kl_cost,
    with_teacher_of,
)
from coterie.runs.reinforce_settings import AdvantageSettings, ReinforceSettings, StepSettings
from coterie.runs.run import Run
from coterie.training.settings import TrainingSettings

if TYPE_CHECKING:  # torch takes seconds to import
    from coterie.runs.roles import Learner

TOTALS = frozenset({"seconds_left", "step", "rows_dropped"})
"""Metrics of a whole training, which are not averaged over a step."""


def reinforce_uses(s: ReinforceSettings) -> list[str]:
    """Return the settings that the RL stage depends on."""
    uses = ["engine", "rollout", "reward", "advantage", "steps", "loss", "policy_training"]
    uses += ["critic.loss", "critic_training"] * s.has_critic
    uses += ["critic.view"] * (s.critic.view == "joint")
    uses += ["policies"] * isinstance(s, RLSettings)
    return uses + ["evaluate"] * (s.steps.keep == "best")


class Reinforce(Recipe):
    """The reinforcement learning recipe."""

    settings: RLSettings

    def stages(self) -> list[Stage]:
        training = self.make_stages(0, self.learn)
        return [self.evaluation(0), *training, self.evaluation(1, training)]

    def roles(self) -> tuple[Role, ...]:
        """Return the roles of all agents, trained and frozen ones, and the critics of PPO."""
        s, frozen = self.settings, self.settings.policies.frozen
        names = dict.fromkeys(self.players().values())
        policies = [Role(name, frozen.get(name, s.model)) for name in names]
        critics = [Role(name, s.model, head=True) for name in critic_roles(self.learning_roles, s)]
        teacher = s.policies.teacher
        # A privileged teacher is each role itself.
        models = [] if teacher in (None, PRIVILEGED) else [Role(TEACHER, str(teacher))]
        return (*policies, *critics, *models)

    @property
    def learning_roles(self) -> tuple[str, ...]:
        names = dict.fromkeys(self.players().values())
        return tuple(name for name in names if name not in self.settings.policies.frozen)

    def players(self) -> dict[str, str]:
        """Map each agent to the role that plays it."""
        agents, policies = agents_of(self.environment), self.settings.policies
        each = policies.weights == "each" and len(agents) > 1
        return {agent: policies.roles.get(agent, agent if each else POLICY) for agent in agents}

    def plan(self) -> Plan:
        # Errors in the user's rows show before torch is imported, which takes seconds.
        self.heldout_tasks()
        check_roles(self.environment, self.settings.policies, self.players(), self.renderers)
        policies = self.settings.policies
        untrained = {**policies.frozen, TEACHER: policies.teacher or ""}
        plan = plan_reinforcement(self.settings, super().plan, untrained)
        if policies.teacher == PRIVILEGED:
            names = teacher_secrets(self.environment, self.train_tasks())
            plan = replace(plan, details=(*plan.details, ("secrets of the teacher", names)))
        return plan

    def training_tasks(self) -> int:
        return self.settings.rollout.tasks_per_round * self.settings.steps.count

    def dialogues(self) -> int:
        return self.settings.rollouts(self.environment)

    @stage(
        REINFORCE,
        uses=lambda recipe, i: reinforce_uses(recipe.settings),
        trains=lambda recipe, i: recipe.learning_roles,
    )
    async def learn(self, run: Run, i: int, progress: Progress) -> Metrics:
        s, roles = self.settings, self.learning_roles
        return await reinforce(self, s, run, i, progress, roles=roles, policies=s.policies)


async def reinforce(
    recipe: Recipe,
    s: ReinforceSettings,
    run: Run,
    iteration: int,
    progress: Progress,
    *,
    roles: Sequence[str],
    policies: PolicySettings | None = None,
) -> Metrics:
    """Run the RL stage: train ``roles`` from their newest versions, while frozen roles only play."""
    from coterie.runs.reinforce import ReinforcementLoop  # torch takes seconds to import
    from coterie.runs.roles import LearnerConfig
    from coterie.training.losses import ValueLoss
    from coterie.training.policy_gradient import PolicyGradient

    players, updates = recipe.players(), s.steps.updates
    learners, critics = list[LearnerConfig](), list[LearnerConfig]()
    policies = policies or PolicySettings()
    # Log-probs are taken at the temperature of sampling, so that rho compares the same
    # distributions.
    training, loss = recipe.seeded(s.policy_training, iteration), s.loss.at(s.rollout.temperature)
    if policies.teacher is not None:
        loss = loss.model_copy(update={"distill_coef": policies.distill_coef})
    for role in roles:
        version = recipe.newest(run, role, iteration)
        agents = tuple(agent for agent, player in players.items() if player == role)
        rate = policies.learning_rates.get(role, training.learning_rate)
        of_role = training.model_copy(update={"learning_rate": rate})
        objective = PolicyGradient(loss)
        learners.append(LearnerConfig(role, version, agents, objective, of_role, updates))
    of_all = tuple(critic_name(agent) for learner in learners for agent in learner.agents)
    # A critic starts from the weights of its policy (a critic of the joint state, from the first policy),
    # with a new head, and trains on the same rows or on rows of its own.
    for name, learner in zip(critic_roles(roles, s), learners, strict=False):
        training, value_loss = recipe.seeded(s.critic_training, iteration), ValueLoss(s.critic.loss)
        agents = of_all if s.critic.view == "joint" else learner.agents
        start = (learner.version, agents, value_loss, training, updates, learner.role)
        critics.append(LearnerConfig(name, *start))
    async with recipe.actors(run) as actors:
        work = ReinforcementLoop(
            run,
            iteration,
            recipe.environment,
            actors,
            recipe.models(run),
            s,
            PathReward(s.reward),
            recipe.settings.seed,
            train_step,
            step_warnings,
            learners,
            critics,
            heldout=recipe.heldout_tasks() if s.steps.evaluate_every else (),
            heldout_temperature=recipe.settings.evaluate.temperature,
            frozen={a: player for a, player in players.items() if player in policies.frozen},
            teacher=TEACHER if policies.teacher not in (None, PRIVILEGED) else None,
            teacher_renderers={agent: recipe.renderer(agent) for agent in players}
            if policies.teacher == PRIVILEGED
            else {},
            alternate_steps=policies.alternate_steps,
        )
        return await work.learn(progress)


def train_step(
    samples: StepSamples,
    policies: "Sequence[Learner]",
    critics: "Sequence[Learner]",
    s: ReinforceSettings,
    seed: str,
    flat: Collection[str],
) -> tuple[StepBatch, dict[str, float]]:
    """Train on the rollouts of one step, whose paths have rewards: advantages, then updates.

    Args:
        samples: Paths of the step's groups with their rewards.
        policies: Learners of the policies, with their objective :class:`PolicyGradient`.
        critics: Learner of each policy's value function, for ``advantage.baseline=values``.
        s: Settings of the stage.
        seed: Seed of the order of minibatches.
        flat: Roles whose rewards were all equal so far.

    Returns:
        The batch, and the mean metrics of its optimizer steps.
    """
    # Rewards R_i are relative to their group, or to the critic's values: A_i or A_t on every token.
    batch = prepare(samples, policies, critics, s, flat=flat)
    # Minibatches of whole groups, `steps.epochs` times: each is an optimizer step on the loss L.
    # A critic learns in the steps of its role, and a critic of all agents in each step.
    always = critics if s.critic.view == "joint" else ()
    learners = [
        learner
        for learner in (*policies, *critics)
        if learner in always or (learner.config.init_from or learner.role) in samples.trained_roles
    ]
    paths = [*batch.paths, *batch.critic_paths]
    # Each epoch comes to each row once.
    left_out = (*batch.left_out, *_long_rows(paths, learners) * s.steps.epochs)
    return replace(batch, left_out=left_out), update(paths, learners, s, seed)


def prepare(
    samples: StepSamples,
    policies: "Sequence[Learner]",
    critics: "Sequence[Learner]",
    s: ReinforceSettings,
    *,
    flat: Collection[str] = (),
) -> StepBatch:
    """Return the batch of a step, with everything that the objectives read.

    Paths sampled with other weights than the current ones are dropped and counted, unless ``samples`` has dropped the
    too old ones. Advantages are computed before any other path is left out. A group is informative if its rewards
    differ, before the cost of the divergence. ``flat`` are the roles whose rewards were all equal so far.
    """
    fresh = samples.paths if s.rollout.max_staleness else fresh_paths(samples.paths, policies)
    left_out = [path.left_out("paths_stale") for path in samples.stale]
    left_out += left_out_paths(samples.paths, fresh, "paths_stale")
    counts = {"paths_stale": len(left_out)}
    # DAPO trains on groups with different rewards only, and on at most ``tasks`` of them.
    if s.rollout.rounds > 1:
        counts |= group_counts(group_advantages([path.sampled for path in fresh], "mean"))
        left_out += group_left_out(fresh)
        informative = informative_tasks(fresh)
        tasks, surplus = set(informative[: s.rollout.tasks]), informative[s.rollout.tasks :]
        left_out += [LeftOut(task, "", "groups_surplus") for task in surplus]
        fresh = [path for path in fresh if path.task in tasks]
    temperature = s.rollout.temperature
    # Log-probs of the start of the stage, for a KL term in the loss or in the reward.
    if s.loss.kl_coef or s.reward.kl_coef:
        fresh = by_role(fresh, policies, lambda role, rows: role.with_reference(rows, temperature))
    # On-policy distillation: log p_teacher - log p_old is added to each token's advantage.
    if samples.teacher is not None or any(path.teacher_rows for path in fresh):
        from coterie.training.reference import with_teacher

        def distill(role: "Learner", rows: Sequence[Row]) -> Sequence[Row]:
            # Without a model of its own the teacher is the role, which reads other prompts.
            teacher = role.scorer if samples.teacher is None else samples.teacher
            return with_teacher(teacher, rows, role.config.settings, temperature=temperature)

        taught = [replace(path, rows=path.teacher_rows or path.rows) for path in fresh]
        scored = by_role(taught, policies, distill)
        fresh = [with_teacher_of(*both) for both in zip(fresh, scored, strict=True)]
    # Before its first update a policy equals its reference, so the divergence costs nothing.
    moved = {agent for role in policies if role.is_trained for agent in role.config.agents}
    before_kl = fresh
    if weight := s.reward.kl_coef:
        fresh = [with_kl_cost(path, weight) if path.agent in moved else path for path in fresh]
    if critics:
        # With a divergence cost returns differ even if all rewards are equal.
        costs = {policy.role for policy in policies if s.reward.kl_coef and policy.is_trained}
        batch = critics_batch(fresh, policies, critics, s.advantage, {*flat} - costs)
    else:
        batch = group_batch(fresh, s.advantage, samples.means)
        if s.reward.kl_coef:  # the costs differ, but they are not rewards
            without_kl = group_batch(before_kl, s.advantage, samples.means)
            batch = replace(without_kl, paths=batch.paths)
    # DAPO, section 3.4: cut off paths count for the baseline, but are not trained on.
    chosen = [path for path in batch.paths if not _masked(path, s.advantage)]
    counts["paths_masked"] = len(batch.paths) - len(chosen)
    # Groups of all samples of the step come before those of the batch, in both.
    left_out += [entry for entry in batch.left_out if entry.reason not in counts]
    left_out += left_out_paths(batch.paths, chosen, "paths_masked")
    # By default the importance ratio uses the engine's log-probs, which differ slightly from the
    # trainer's.
    if s.loss.old_logprobs == "recomputed":
        from coterie.training.reference import with_old

        def recompute(role: "Learner", rows: Sequence[Row]) -> Sequence[Row]:
            return with_old(role.scorer, rows, role.config.settings, temperature=temperature)

        chosen = by_role(chosen, policies, recompute)
    critic_paths = [path for path in batch.critic_paths if not _masked(path, s.advantage)]
    all_counts = {**batch.counts, **counts}
    result = (tuple(chosen), batch.informative, all_counts, tuple(critic_paths))
    return StepBatch(*result, tuple(left_out))


def group_batch(
    paths: Sequence[AgentPath],
    settings: AdvantageSettings,
    means: Mapping[str, float] | None = None,
) -> StepBatch:
    """Set the advantages A of each path's turns, relative to a group (``advantage.group``).

    ``path``: A_i = R_i - baseline over the paths i of the same task and agent, for all turns (GRPO). ``baseline=mean``:
    the group's mean reward. ``mean_std``: also divide by its standard deviation. ``leave_one_out``: the mean of the
    other paths. ``best``: A_i = 1 for the highest reward, else 0 (expert iteration). ``turn``: A_ik = G_ik - baseline
    over the returns to go G of the k-th turns, 0 for ended paths. ``state``: A_i + w (G_ik - baseline over the turns
    after an equal observation) (GiGPO). ``role``: A_i = R_i - a running mean of the agent's rewards, which begins with
    ``means`` (RAE). ``sibling``: as ``path``, where each path is one turn of a tree, and its reward the return of that
    turn.
    """
    assert settings.baseline != "values", "values need a critic"
    s, immediate = settings, settings.returns == "immediate"
    compared = group_advantages([path.sampled for path in paths], settings.baseline)
    counts: dict[str, float] = {**group_counts(compared)}
    left_out = group_left_out(paths)
    if s.group in ("turn", "state"):
        turn_paths = [
            TurnPath(path.sampled, tuple(turn_ends(path.rows).values()), path.states)
            for path in paths
        ]
        if s.group == "turn":
            of_turns = turn_advantages(turn_paths, settings.baseline, s.turn_gamma, immediate)
            # Paths of equal rewards may have turns of different returns, and are not compared.
            left_out = [entry for entry in left_out if entry.reason != "groups_equal"]
        else:
            weights = (s.turn_gamma, s.state_weight, immediate)
            of_turns = state_advantages(turn_paths, settings.baseline, *weights)
        turns = of_turns.values
        for index, number, value in of_turns.equal:
            node = [*turn_ends(paths[index].rows)][number]
            entry = paths[index].left_out("groups_equal", value)
            left_out.append(replace(entry, node=node))
        equal = sum(entry.reason == "groups_equal" for entry in left_out)
        counts |= {"groups": of_turns.groups, "groups_equal": equal}
    elif s.group == "role":
        values, after = role_advantages([path.sampled for path in paths], means or {}, s.role_decay)
        turns = [None if value is None else [value] for value in values]
        counts = {f"{MEAN}{agent}": mean for agent, mean in after.items()}
        counts["paths_failed"] = compared.failed
        left_out = [entry for entry in left_out if entry.reason in counts]
    else:
        turns = [None if value is None else [value] for value in compared.values]
    trainable, informative = list[AgentPath](), set[str]()
    for path, advantages in zip(paths, turns, strict=True):
        # Paths that failed or have no other path in their group have no advantage.
        if advantages is None:
            continue
        informative |= {path.task} if any(advantages) else set()
        if len(advantages) == 1:
            rows = with_advantage(path.rows, advantages[0])
        else:
            by_turn = dict(zip(turn_ends(path.rows), advantages, strict=True))
            rows = with_turn_advantages(path.rows, by_turn)
        trainable.append(replace(path, rows=tuple(rows)))
    return StepBatch(tuple(trainable), frozenset(informative), counts, left_out=tuple(left_out))


def critics_batch(
    paths: Sequence[AgentPath],
    policies: "Sequence[Learner]",
    critics: "Sequence[Learner]",
    settings: AdvantageSettings,
    flat: Collection[str] = (),
) -> StepBatch:
    """Set the advantages of each policy's paths from the values of its own critic (IPPO, arXiv 2011.09533).

    The critic of the joint state (MAPPO, arXiv 2103.01955) is one for all policies. Roles are normalized separately,
    since their rewards may differ in scale. ``flat`` are roles with equal rewards.
    """
    batches, counts = list[StepBatch](), Counter[str]()
    for policy, critic in zip(policies, cycle(critics), strict=False):
        role_paths = [path for path in paths if path.agent in policy.config.agents]
        training, is_flat = critic.config.settings, policy.role in flat
        batches.append(critic_batch(role_paths, critic.scorer, training, settings, is_flat))
        counts.update({name: int(count) for name, count in batches[-1].counts.items()})
    return StepBatch(
        tuple(path for batch in batches for path in batch.paths),
        frozenset(task for batch in batches for task in batch.informative),
        counts,
        tuple(path for batch in batches for path in batch.critic_paths),
        tuple(entry for batch in batches for entry in batch.left_out),
    )


def critic_batch(
    paths: Sequence[AgentPath],
    critic: object,
    training: TrainingSettings,
    settings: AdvantageSettings,
    flat: bool = False,
) -> StepBatch:
    """Set the GAE advantage of each token (Schulman et al. 2016): A_t = delta_t + gamma lam A_{t+1}.

    ``delta_t = r_t + gamma V_{t+1} - V_t`` with V from the critic, a model with a value head. A path that a limit cut
    off is bootstrapped with the value after its last token. Rows also get the values and returns that the critic is
    trained on. Paths with rows longer than the training allows are left out. With ``flat`` rewards, all advantages are
    errors of the critic and are set to 0.

    A critic of the joint state has a value V_t before each turn t of any agent, so r_t are the agent's rewards by turn,
    and all tokens of a turn have its advantage. Such a critic is trained on rows of its own, which no policy reads.
    """
    from coterie.training.reference import with_values

    graded = [path for path in paths if path.sampled.total is not None and path.trained]
    # Score the rows of all paths together, then split the results by path.
    scored = [(path.joint.row,) if path.joint else path.rows for path in graded]
    rows_with_values, next_values = with_values(critic, list(chain(*scored)), training)
    trainable, estimates = list[AgentPath](), list[tuple[list[float], list[float]]]()
    critic_paths, stop = list[AgentPath](), 0
    for path, rows in zip(graded, scored, strict=True):
        start, stop = stop, stop + len(rows)
        path_rows, path_ends = rows_with_values[start:stop], next_values[start:stop]
        # Rows that are too long for the critic have no values.
        if any(row.values is None for row in path_rows if row.predicted):
            continue
        ends, values = [end for end in path_ends if end is not None], trained_values(path_rows)
        if path.joint:
            rewards = path.joint.rewards_of(path.sampled)
            # After a cut there is one more state than turns.
            values, ends = values[: len(rewards)], values[len(rewards) :]
        else:
            rewards = path.sampled.token_rewards(path.trained)
        # A path that a limit cut off would have continued, so V after its last token stands for the
        # rest.
        bootstrap = ends[-1] if path.outcome.ending.truncated else 0.0
        of_path, returns = gae(rewards, values, settings.gamma, settings.gae_lambda, bootstrap)
        if path.joint:
            row, targets = path.joint.row, path.joint.row.targets[: len(values)]
            row = replace(row, targets=targets, values=tuple(values), returns=tuple(returns))
            critic_paths.append(replace(path, agent=critic_name(path.agent), rows=(row,)))
            of_path, returns = (
                path.joint.by_token(path.rows, turns) for turns in (of_path, returns)
            )
            path_rows = [*path.rows]
        estimates.append((of_path, returns))
        trainable.append(replace(path, rows=tuple(path_rows)))
    advantages = [of_path for of_path, _ in estimates]
    if flat:
        advantages = [[0.0] * len(of_path) for of_path in advantages]
    elif settings.normalize:
        # Mean and deviation are taken over all tokens of the step.
        advantages = whiten(advantages)
    batch, informative = list[AgentPath](), set[str]()
    for path, of_path, (_, returns) in zip(trainable, advantages, estimates, strict=True):
        batch.append(replace(path, rows=tuple(with_advantages(path.rows, of_path, returns))))
        informative |= {path.task} if any(of_path) else set()
    failed, too_long = len(paths) - len(graded), len(graded) - len(trainable)
    counts = {"paths_failed": failed, "paths_too_long": too_long}
    left_out = left_out_paths(paths, graded, "paths_failed")
    left_out += left_out_paths(graded, trainable, "paths_too_long")
    result = (tuple(batch), frozenset(informative), counts, tuple(critic_paths))
    return StepBatch(*result, tuple(left_out))


def _masked(path: AgentPath, settings: AdvantageSettings) -> bool:
    return settings.truncated == "mask" and path.outcome.ending.truncated


def update(
    paths: Sequence[AgentPath], learners: "Sequence[Learner]", s: ReinforceSettings, seed: str
) -> dict[str, float]:
    """Train each role on the paths of its agents, and return the mean metrics of the optimizer steps.

    Rows that are too long are left out and counted. Skips optimizer steps without a gradient, because Adam would scale
    up rounding errors. Raises :class:`UserError` if all rows are too long.
    """
    sums: dict[str, list[float]] = {}
    too_long = trained = 0
    fits = False
    for tasks in minibatches([path.task for path in paths], s.steps, seed):
        for learner in learners:
            # All rows of a group are in one minibatch, since their advantages are relative to it.
            every = _rows(paths, learner.config.agents, tasks)
            rows = [row for row in every if len(row.ids) <= learner.trainer.longest]
            # The teacher's prompt may be too long where the policy's is not.
            if "teacher" in learner.config.objective.needs:
                rows = [row for row in rows if row.teacher is not None]
            too_long += len(every) - len(rows)
            learner.trainer.leave_out(len(every) - len(rows), 0)
            fits = fits or bool(rows)
            if rows and _has_gradient(learner, rows, s):
                if learner.config.init_from is None:  # not a critic
                    trained += sum(row.target_count for row in rows)
                metrics = learner.step(rows)
                for name, value in metrics.items():
                    if name not in TOTALS:
                        sums.setdefault(f"{learner.role}/{name}", []).append(value)
                # The weights are the sampler's only before the first optimizer step.
                sampler_kl = metrics.get("engine_kl", metrics.get("policy_kl"))
                if sampler_kl is not None:
                    sums.setdefault(f"{learner.role}/sampler_kl", [sampler_kl])
    if too_long and not fits:
        longest = max(learner.trainer.longest for learner in learners)
        raise UserError(
            f"all {too_long} rows of a step are longer than the training's maximum of {longest} tokens",
            f"raise {s.policy_group}.max_length, or shorten dialogues (rollout.max_tokens, fewer turns)",
        )
    means = {name: sum(values) / len(values) for name, values in sums.items()}
    return {"rows_too_long": too_long, "trained_tokens": trained, **means}


def _long_rows(paths: Sequence[AgentPath], learners: "Sequence[Learner]") -> list[LeftOut]:
    """Return the rows that :func:`update` leaves out of an epoch, by learner."""
    return [
        path.left_out("rows_too_long", len(row.ids))
        for learner in learners
        for path in paths
        if path.agent in learner.config.agents
        for row in path.rows
        if len(row.ids) > learner.trainer.longest
    ]


def minibatches(
    tasks: Sequence[str], settings: StepSettings, seed: str
) -> Iterator[frozenset[str]]:
    """Yield the tasks of each minibatch. Every epoch has each task once; sizes differ by at most one."""
    for epoch in range(settings.epochs):
        # Sorted first, so that the order depends on the tasks and the seed alone.
        order = sorted(set(tasks))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        parts = min(settings.minibatches_per_step, len(order))
        for part in range(parts):
            yield frozenset(order[part::parts])


def _has_gradient(learner: "Learner", rows: Sequence[Row], s: ReinforceSettings) -> bool:
    """Return True for a critic, and for a policy with an advantage, an entropy bonus, or a divergence."""
    # A policy that has not moved equals its reference, so a KL term has no gradient yet.
    is_regularized = s.loss.entropy_coef or (s.loss.kl_coef and learner.is_trained)
    is_distilled = any(row.teacher is not None for row in rows)
    if learner.config.init_from is not None or is_regularized or is_distilled:
        return True
    return any(any(row.advantages or ()) for row in rows)


def _rows(paths: Sequence[AgentPath], agents: Sequence[str], tasks: frozenset[str]) -> list[Row]:
    agent_paths = (path for path in paths if path.task in tasks and path.agent in agents)
    return [row for path in agent_paths for row in path.rows]
