"""The paths of a step as its agents took them: what each was rewarded with, and the rows that it is trained on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.rewards.advantages import SampledPath
from coterie.rewards.path_reward import GradedPath, PathReward, total
from coterie.rewards.row_advantages import turn_ends
from coterie.rollout.episodes import ENVIRONMENT, FINAL_REWARD, REWARD
from coterie.trajectories.item import Metrics
from coterie.trajectories.row import Row, rows
from coterie.trajectories.store import Store
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.turn import Turn
from coterie.trajectories.view import view


@dataclass(frozen=True, slots=True)
class Path:
    """One agent's way through one sample of a task."""

    task: str
    agent: str
    outcome: Outcome
    turns: int
    rows: tuple[Row, ...]
    """What it said, under what it was shown: one row for each segment."""
    sampled: SampledPath
    """Its rewards, and what it is compared within."""
    thought_tokens: int = 0
    terms: Mapping[str, float] = field(default_factory=dict)
    """What its reward is the sum of, without the rewards of acts."""

    @property
    def tokens(self) -> int:
        return sum(row.target_count for row in self.rows)

    @property
    def trained(self) -> int:
        """Tokens of it that can be trained: those that something predicts."""
        return sum(len(turn) for row in self.rows for turn in row.predicted)


def paths_of(
    store: Store,
    iteration: int,
    stage: str,
    tasks: Sequence[str],
    agents: Sequence[str],
    reward: PathReward,
) -> list[Path]:
    """Of each sample that was played of these tasks, the path of each agent that said something, in order of task and
    sample. A sample that failed has none."""
    measured = {key: found for key, found in store.metrics(iteration, stage).items() if key.task}
    by_sample = {(key.task, int(key.sample)): found for key, found in measured.items()}
    known = set(store.tree_tasks(iteration, stage))
    found: list[Path] = []
    for task in tasks:
        if task in known:
            tree = store.tree(iteration, stage, task)
            given = _given(store, tree)
            for outcome, path in tree.trajectories():
                own = by_sample.get((task, outcome.sample), {})
                found += _of_sample(tree, outcome, path, agents, given, own, reward)
    return found


def _of_sample(
    tree: Tree,
    outcome: Outcome,
    path: Sequence[Turn],
    agents: Sequence[str],
    given: Mapping[tuple[str, str], float],
    measures: Metrics,
    reward: PathReward,
) -> Iterator[Path]:
    for agent in agents:
        own = tuple(row for row in rows(view(tree, outcome.leaf, agent)) if row.targets)
        if not own:
            continue
        steps = _steps(path, agent, own, given)
        whole = _whole(outcome, agent, bool(steps), given)
        graded = GradedPath(outcome, tuple(path), agent, whole, measures)
        terms = reward.terms(graded)
        sampled = SampledPath(tree.task, outcome.leaf, total(terms), steps, agent)
        thought = sum(turn.thought_tokens for turn in graded.own_turns)
        yield Path(
            tree.task, agent, outcome, len(graded.own_turns), own, sampled, thought, terms or {}
        )


def _given(store: Store, tree: Tree) -> Mapping[tuple[str, str], float]:
    credit = (one for one in store.credit_of(tree) if one.settings == ENVIRONMENT)
    return {(one.node, one.name): one.value for one in credit}


def _whole(
    outcome: Outcome, agent: str, stepwise: bool, given: Mapping[tuple[str, str], float]
) -> float | None:
    """What the environment gave for the path as a whole: what it gave in grading, or else its score, unless it gave
    something on the way."""
    final = given.get((outcome.leaf, f"{FINAL_REWARD}:{agent}"))
    if final is not None:
        return final
    return 0.0 if stepwise else outcome.score


def _steps(
    path: Sequence[Turn], agent: str, own: Sequence[Row], given: Mapping[tuple[str, str], float]
) -> tuple[tuple[int, float], ...]:
    """Rewards of acts: each at the last token of the agent's latest turn by then (of its first one, if it had none)."""
    ends = turn_ends(own)
    if not ends:
        return ()
    place, found = next(iter(ends.values())), []
    for turn in path:
        place = ends.get(turn.id, place)
        reward = given.get((turn.id, f"{REWARD}:{agent}"))
        if reward is not None:
            found.append((place, reward))
    return tuple(found)
