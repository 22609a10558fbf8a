"""Paths of a step by agent, with their rewards and training rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.record.rows import Row, rows, view
from coterie.record.store import Store
from coterie.record.tree import Metrics, Outcome, Tree
from coterie.record.turn import Turn
from coterie.rewards.advantages import SampledPath, turn_ends
from coterie.rewards.path_reward import GradedPath, PathReward, total
from coterie.rollout.episodes import ENVIRONMENT, FINAL_REWARD, REWARD


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
    """Rewards and group of the path."""
    thought_tokens: int = 0
    terms: Mapping[str, float] = field(default_factory=dict)
    """What its reward is the sum of, without the rewards of acts."""

    @property
    def tokens(self) -> int:
        return sum(row.target_count for row in self.rows)

    @property
    def trained(self) -> int:
        """Number of tokens that can be trained on, which have a token before them."""
        return sum(len(turn) for row in self.rows for turn in row.predicted)


def paths_of(
    store: Store,
    iteration: int,
    stage: str,
    tasks: Sequence[str],
    agents: Sequence[str],
    reward: PathReward,
) -> list[AgentPath]:
    """Return the path of each agent with sampled turns, in the order of tasks and samples.

    Failed episodes have no paths.
    """
    items = {key: metrics for key, metrics in store.metrics(iteration, stage).items() if key.task}
    by_sample = {(key.task, int(key.sample)): metrics for key, metrics in items.items()}
    known = set(store.tree_tasks(iteration, stage))
    paths: list[AgentPath] = []
    for task in tasks:
        if task in known:
            tree = store.tree(iteration, stage, task)
            rewards = _environment_rewards(store, tree)
            for outcome, path in tree.trajectories():
                measures = by_sample.get((task, outcome.sample), {})
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
        agent_rows = tuple(row for row in rows(view(tree, outcome.leaf, agent)) if row.targets)
        if not agent_rows:
            continue
        steps = _steps(path, agent, agent_rows, rewards)
        path_reward = _whole(outcome, agent, bool(steps), rewards)
        graded = GradedPath(outcome, tuple(path), agent, path_reward, measures)
        terms = reward.terms(graded)
        sampled = SampledPath(tree.task, outcome.leaf, total(terms), steps, agent)
        thought = sum(turn.thought_tokens for turn in graded.own_turns)
        count = len(graded.own_turns)
        yield AgentPath(tree.task, agent, outcome, count, agent_rows, sampled, thought, terms or {})


def _environment_rewards(store: Store, tree: Tree) -> Mapping[tuple[str, str], float]:
    credit = (one for one in store.credit_of(tree) if one.settings == ENVIRONMENT)
    return {(one.node, one.name): one.value for one in credit}


def _whole(
    outcome: Outcome, agent: str, stepwise: bool, rewards: Mapping[tuple[str, str], float]
) -> float | None:
    """Return the reward of the whole path: the final reward, else the score, else 0 if single turns had rewards."""
    final = rewards.get((outcome.leaf, f"{FINAL_REWARD}:{agent}"))
    if final is not None:
        return final
    return 0.0 if stepwise else outcome.score


def _steps(
    path: Sequence[Turn], agent: str, own: Sequence[Row], rewards: Mapping[tuple[str, str], float]
) -> tuple[tuple[int, float], ...]:
    """Return (token index, reward) of step rewards, each at the last token of the agent's latest turn so far.

    A reward before the agent's first turn is placed at the end of that turn.
    """
    ends = turn_ends(own)
    if not ends:
        return ()
    place, steps = next(iter(ends.values())), []
    for turn in path:
        place = ends.get(turn.id, place)
        reward = rewards.get((turn.id, f"{REWARD}:{agent}"))
        if reward is not None:
            steps.append((place, reward))
    return tuple(steps)
