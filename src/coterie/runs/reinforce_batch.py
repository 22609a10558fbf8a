"""Batch of a reinforcement step: the paths of its groups, with their rewards, advantages and rows to train on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from coterie.record.rows import Row, rows, view
from coterie.record.store import Store
from coterie.record.tree import Metrics, Outcome, Tree
from coterie.record.turn import Turn
from coterie.rewards.advantages import (
    GroupAdvantages,
    SampledPath,
    gae,
    group_advantages,
    kl_rewards,
    trained_values,
    turn_ends,
    whiten,
    with_advantage,
    with_advantages,
)
from coterie.rewards.dialogue_reward import GradedPath, PathReward, PathRewardSettings, add_terms
from coterie.rollout.episodes import ENVIRONMENT, FINAL_REWARD, REWARD
from coterie.runs.reinforce_record import REWARDED, TERM
from coterie.runs.reinforce_settings import AdvantageSettings, ReinforceSettings
from coterie.training.settings import TrainingSettings

if TYPE_CHECKING:  # torch takes seconds to import
    from coterie.runs.roles import Learner, LearnerConfig


@dataclass(frozen=True, slots=True)
class AgentPath:
    """Trajectory of one agent in one sampled episode of a task."""

    task: str
    agent: str
    outcome: Outcome
    turns: int
    rows: tuple[Row, ...]
    """Sampled turns of the agent with their prompts, one row per segment."""
    sampled: SampledPath
    thought_tokens: int = 0
    terms: Mapping[str, float] = field(default_factory=dict)
    """Terms of the reward, without the rewards of acts."""

    @property
    def tokens(self) -> int:
        return sum(row.target_count for row in self.rows)

    @property
    def all_terms(self) -> dict[str, float]:
        """Terms of the reward by name, with the sum of the rewards of acts."""
        return {**self.terms, "acts": sum(reward for _, reward in self.sampled.steps)}

    @property
    def trained(self) -> int:
        """Number of trainable tokens, which have a token before them."""
        return sum(len(turn) for row in self.rows for turn in row.predicted)


def paths_of(
    store: Store,
    iteration: int,
    stage: str,
    tasks: Sequence[str],
    agents: Sequence[str],
    reward: PathReward,
) -> list[AgentPath]:
    """Return the path of each agent with sampled turns, in the order of tasks and samples, without failed ones."""
    paths: list[AgentPath] = []
    for task in tasks:
        items = store.items(iteration, stage, task)
        # The metrics of an episode are stored with its item.
        by_sample = {int(item.key.sample): item.metrics for item in items}
        for tree in map(store.read_tree, store.tree_keys(iteration, stage, task)):
            # Other credit depends on the settings of later stages and is no reward of the
            # environment.
            credits = (credit for credit in store.credit_of(tree) if credit.settings == ENVIRONMENT)
            rewards = {(credit.node, credit.name): credit.value for credit in credits}
            for outcome, path in tree.trajectories():
                measures = by_sample.get(outcome.sample, {})
                paths += _of_sample(tree, outcome, path, agents, rewards, measures, reward)
    return paths


def _of_sample(
    tree: Tree,
    outcome: Outcome,
    path: Sequence[Turn],
    agents: Sequence[str],
    rewards: Mapping[tuple[str, str], float],
    measures: Metrics,
    reward: PathReward,
) -> Iterator[AgentPath]:
    for agent in agents:
        # Context that is rewritten during the episode splits a path into several rows.
        agent_rows = tuple(row for row in rows(view(tree, outcome.leaf, agent)) if row.targets)
        # An agent that never acted, or whose turns were not sampled as tokens.
        if not agent_rows:
            continue
        steps = _steps(path, agent, agent_rows, rewards)
        path_reward = _whole(outcome, agent, bool(steps), rewards)
        graded = GradedPath(outcome, tuple(path), agent, path_reward, measures)
        terms = reward.terms(graded)
        total_reward = None if terms is None else add_terms(terms)
        sampled = SampledPath(tree.task, outcome.leaf, total_reward, steps, agent)
        thought = sum(turn.thought_tokens for turn in graded.own_turns)
        count = len(graded.own_turns)
        yield AgentPath(tree.task, agent, outcome, count, agent_rows, sampled, thought, terms or {})


def _whole(
    outcome: Outcome, agent: str, stepwise: bool, rewards: Mapping[tuple[str, str], float]
) -> float | None:
    """Return the reward of the whole path: the final reward, else the score, else 0 if single turns had rewards."""
    score = 0.0 if stepwise else outcome.score
    return rewards.get((outcome.leaf, f"{FINAL_REWARD}:{agent}"), score)


def _steps(
    path: Sequence[Turn], agent: str, rows: Sequence[Row], rewards: Mapping[tuple[str, str], float]
) -> tuple[tuple[int, float], ...]:
    """Return (token index, reward) of step rewards, each at the end of the agent's latest turn so far, or its first."""
    ends = turn_ends(rows)
    if not ends:
        return ()
    end, steps = next(iter(ends.values())), []
    # The reward of simultaneous turns is stored on the last of them, which may be another actor's.
    for turn in path:
        end = ends.get(turn.id, end)
        reward = rewards.get((turn.id, f"{REWARD}:{agent}"))
        if reward is not None:
            steps.append((end, reward))
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Paths of a step with advantages, and counts of paths left out."""

    paths: tuple[AgentPath, ...]
    """Paths to train on. Their rows have advantages."""
    informative: frozenset[str]
    counts: Mapping[str, int]
    """Numbers of groups, and of paths left out by reason."""


def group_batch(paths: Sequence[AgentPath], settings: AdvantageSettings) -> StepBatch:
    """Set A_i = R_i - baseline for each path i, relative to the paths of the same task and agent.

    ``baseline=mean``: the group's mean reward. ``mean_std``: also divide by its standard deviation. ``leave_one_out``:
    the mean of the other paths.
    """
    assert settings.baseline != "values", "values need a critic"
    advantages = group_advantages([path.sampled for path in paths], settings.baseline)
    trainable, informative = list[AgentPath](), set[str]()
    for path, value in zip(paths, advantages.values, strict=True):
        # Paths that failed or have no other path in their group have no advantage.
        if value is not None:
            informative |= {path.task} if value else set()
            trainable.append(replace(path, rows=tuple(with_advantage(path.rows, value))))
    return StepBatch(tuple(trainable), frozenset(informative), group_counts(advantages))


def group_counts(advantages: GroupAdvantages) -> dict[str, int]:
    return {
        "groups": advantages.groups,
        "groups_flat": advantages.flat,
        "groups_small": advantages.small,
        "paths_failed": advantages.failed,
    }


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
    """
    from coterie.training.reference import with_values

    graded = [path for path in paths if path.sampled.total is not None and path.trained]
    # Score the rows of all paths together, then split the results by path.
    rows = [row for path in graded for row in path.rows]
    rows_with_values, next_values = with_values(critic, rows, training)
    trainable, estimates = list[AgentPath](), list[tuple[list[float], list[float]]]()
    stop = 0
    for path in graded:
        start, stop = stop, stop + len(path.rows)
        path_rows, path_ends = rows_with_values[start:stop], next_values[start:stop]
        # Rows that are too long for the critic have no values.
        if any(row.values is None for row in path_rows if row.predicted):
            continue
        ends = [value for value in path_ends if value is not None]
        # A path that a limit cut off would have continued, so V after its last token stands for the
        # rest.
        bootstrap = ends[-1] if path.outcome.ending.truncated else 0.0
        rewards = path.sampled.token_rewards(path.trained)
        values = trained_values(path_rows)
        estimates.append(gae(rewards, values, settings.gamma, settings.lam, bootstrap))
        trainable.append(replace(path, rows=tuple(path_rows)))
    advantages = [of_path for of_path, _ in estimates]
    if flat:
        advantages = [[0.0] * len(of_path) for of_path in advantages]
    elif settings.whiten:
        # Mean and deviation are taken over all tokens of the step.
        advantages = whiten(advantages)
    batch, informative = list[AgentPath](), set[str]()
    for path, of_path, (_, returns) in zip(trainable, advantages, estimates, strict=True):
        batch.append(replace(path, rows=tuple(with_advantages(path.rows, of_path, returns))))
        informative |= {path.task} if any(of_path) else set()
    failed, too_long = len(paths) - len(graded), len(graded) - len(trainable)
    left_out = {"paths_failed": failed, "paths_too_long": too_long}
    return StepBatch(tuple(batch), frozenset(informative), left_out)


@dataclass(slots=True)
class StepSamples:
    """Samples of one step."""

    draws: int
    """Number of draws of tasks over all steps so far."""
    rounds: int = 0
    tasks: list[str] = field(default_factory=list)
    paths: list[AgentPath] = field(default_factory=list)
    sample_count: int = 0
    groups: list[tuple[int, str]] = field(default_factory=list)
    """Draw and task of each group that was taken, if groups are sampled while steps train."""
    stale: int = 0
    """Number of dropped paths of older weights, which ``paths`` does not have."""
    staleness: float = 0.0
    """Mean age of the tokens of ``paths`` in steps."""


def role_metrics(
    samples: StepSamples, policies: "Sequence[LearnerConfig]"
) -> dict[str, float | int]:
    """Return the means of the terms of the reward, and, of several roles, what each did under ``ROLE/``."""
    metrics: dict[str, float | int] = {}
    for policy in policies:
        paths = [path for path in samples.paths if path.agent in policy.agents]
        rewards = [total for path in paths if (total := path.sampled.total) is not None]
        metrics[f"{policy.role}{REWARDED}"] = sum(map(bool, rewards))
        prefix = ""
        if len(policies) > 1:
            prefix = f"{policy.role}/"
            metrics |= {
                f"{prefix}reward": fmean(rewards) if rewards else 0.0,
                f"{prefix}reward_error": standard_error(rewards),
                f"{prefix}tokens": fmean([path.tokens for path in paths]) if paths else 0.0,
                f"{prefix}groups_telling": len(informative_tasks(paths)),
            }
        graded = [path.all_terms for path in paths if path.terms]
        names = dict.fromkeys(name for terms in graded for name in terms)
        means = {name: fmean([terms.get(name, 0.0) for terms in graded]) for name in names}
        # Built-in terms that are not used are 0. A term alone is the reward.
        used = [name for name in means if means[name] or name not in PathRewardSettings.built_in]
        if len(used) > 1:
            metrics |= {f"{prefix}{TERM}{name}": means[name] for name in used}
    return metrics


def standard_error(values: Sequence[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def step_stage(stage: str, step: int) -> str:
    return f"{stage}/{step:05d}"


def prepare(
    samples: StepSamples,
    policies: "Sequence[Learner]",
    critic: "Learner | None",
    s: ReinforceSettings,
    *,
    flat: bool = False,
) -> StepBatch:
    """Return the batch of a step, with everything that the objectives read.

    Paths sampled with other weights than the current ones are dropped and counted, unless ``samples`` has dropped the
    too old ones. Advantages are computed before any other path is left out. A group is informative if its rewards
    differ, before the cost of the divergence. ``flat`` is True if all rewards of the stage were equal so far.
    """
    fresh = samples.paths if s.rollout.max_staleness else _fresh(samples.paths, policies)
    counts = {"paths_stale": samples.stale + len(samples.paths) - len(fresh)}
    # DAPO trains on groups with different rewards only, and on at most ``tasks`` of them.
    if s.rollout.rounds > 1:
        counts |= group_counts(group_advantages([path.sampled for path in fresh], "mean"))
        tasks = set(informative_tasks(fresh)[: s.rollout.tasks])
        fresh = [path for path in fresh if path.task in tasks]
    temperature = s.rollout.temperature
    # Log-probs of the start of the stage, for a KL term in the loss or in the reward.
    if s.loss.kl or s.reward.kl:
        fresh = _by_role(fresh, policies, lambda role, rows: role.with_reference(rows, temperature))
    # Before its first update a policy equals its reference, so the divergence costs nothing.
    moved = {agent for role in policies if role.has_moved for agent in role.config.agents}
    before_kl = fresh
    if s.reward.kl:
        fresh = [_costly(path, s.reward.kl) if path.agent in moved else path for path in fresh]
    if critic is not None:
        training = critic.config.settings
        # With a divergence cost returns differ even if all rewards are equal.
        flat = flat and not (s.reward.kl and moved)
        batch = critic_batch(fresh, critic.scorer, training, s.advantage, flat)
    else:
        batch = group_batch(fresh, s.advantage)
        if s.reward.kl:  # the costs differ, but they are not rewards
            without_kl = group_batch(before_kl, s.advantage)
            batch = replace(batch, informative=without_kl.informative, counts=without_kl.counts)
    # DAPO, section 3.4: cut off paths count for the baseline, but are not trained on.
    chosen = [path for path in batch.paths if not _masked(path, s.advantage)]
    counts["paths_masked"] = len(batch.paths) - len(chosen)
    # By default the importance ratio uses the engine's log-probs, which differ slightly from the
    # trainer's.
    if s.loss.old == "recomputed":
        from coterie.training.reference import with_old

        def recompute(role: "Learner", rows: Sequence[Row]) -> Sequence[Row]:
            return with_old(role.scorer, rows, role.config.settings, temperature=temperature)

        chosen = _by_role(chosen, policies, recompute)
    return StepBatch(tuple(chosen), batch.informative, {**batch.counts, **counts})


def informative_tasks(paths: Sequence[AgentPath]) -> list[str]:
    """Return the tasks whose paths have different rewards, in the order of drawing."""
    values = group_advantages([path.sampled for path in paths], "mean").values
    tasks = (path.task for path, value in zip(paths, values, strict=True) if value)
    return list(dict.fromkeys(tasks))


def _fresh(paths: Sequence[AgentPath], policies: "Sequence[Learner]") -> list[AgentPath]:
    names = {f"{policy.role}@{policy.version}": policy.config.agents for policy in policies}
    writers = {agent: name for name, agents in names.items() for agent in agents}
    # A path counts only if all its turns were sampled with the current weights.
    return [
        path
        for path in paths
        if all(target.writer == writers[path.agent] for row in path.rows for target in row.targets)
    ]


def _masked(path: AgentPath, settings: AdvantageSettings) -> bool:
    return settings.truncated == "mask" and path.outcome.ending.truncated


def _by_role(
    paths: Sequence[AgentPath],
    policies: "Sequence[Learner]",
    do: "Callable[[Learner, Sequence[Row]], Sequence[Row]]",
) -> list[AgentPath]:
    """Apply ``do`` to the rows of each role, in one batch per role, and return the changed paths."""
    done: dict[int, AgentPath] = {}
    for policy in policies:
        indices = [n for n, path in enumerate(paths) if path.agent in policy.config.agents]
        rows = iter(do(policy, [row for n in indices for row in paths[n].rows]))
        for n in indices:
            done[n] = replace(paths[n], rows=tuple(next(rows) for _ in paths[n].rows))
    return [done[n] for n in range(len(paths))]


def _costly(path: AgentPath, weight: float) -> AgentPath:
    """Subtract the divergence ``weight * (log p - log p_ref)`` from each token's reward; 0 without a reference."""
    costs: list[float] = []
    for row in path.rows:
        # A target without a token before it has no log-prob, so it is not trained.
        count = row.target_count - row.unpredicted
        if row.reference is None or row.logprobs is None:
            costs += [0.0] * count
        else:
            start = row.unpredicted
            costs += kl_rewards(row.logprobs[start:], row.reference[start:], weight)
    # The costs become step rewards; indices count the trained tokens of the whole path.
    steps = (*path.sampled.steps, *enumerate(costs))
    return replace(path, sampled=replace(path.sampled, steps=steps))
