"""Sampled turns of a step from trees of groups, each with the return of its turn.

With siblings k of a state, the return of an agent's turn is

    Q_k = rewards of the agent from its turn on + value of the next state

where the value of a state with a group is the mean of Q over its members, and otherwise what the one continuation got.
With immediate returns, Q_k is the reward of the turn alone. The reward of a rollout counts for the turns that end it.
A turn is trained once, however many leaves are below it. Siblings with equal tokens are separate samples of a group.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from coterie.record.rows import turn_row
from coterie.record.store import Store
from coterie.record.tree import STOPPED, Ending, LeftOut
from coterie.record.turn import Turn
from coterie.rewards.advantages import turn_ends
from coterie.rewards.dialogue_reward import PathReward
from coterie.rollout.group_search import Group, draw_of, groups_of
from coterie.rollout.tree_search import Rollout
from coterie.runs.reinforce_batch import AgentPath, paths_of_tree
from coterie.runs.reinforce_settings import AdvantageSettings, GroupSettings
from coterie.runs.search_items import rollouts


@dataclass(slots=True)
class TreeSamples:
    """Samples of the trees of some tasks."""

    turns: list[AgentPath] = field(default_factory=list)
    """Turns of groups: their rows have one target, and their reward is the return of the turn."""
    paths: list[AgentPath] = field(default_factory=list)
    """Rollouts of the first group of each task, which are independent, for the metrics of the step."""
    rollouts: int = 0
    failures: list[LeftOut] = field(default_factory=list)
    tokens: int = 0
    """Sampled tokens of all rollouts."""


@dataclass(eq=False, slots=True)
class TaskTree:
    """Groups of one task's tree, with the paths of its agents."""

    task: str
    groups: Sequence[Group]
    turns: Mapping[str, Sequence[Turn]]
    """All turns on the path to each leaf."""
    paths: Mapping[tuple[str, str], AgentPath]
    """Paths by leaf and agent."""
    rollout: GroupSettings
    advantage: AdvantageSettings
    _rewards: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    _values: dict[tuple[int, str], float | None] = field(default_factory=dict)
    _below: dict[tuple[int, int], list[Group]] = field(default_factory=dict)
    """Groups by the search and number of the rollout that they branch from."""

    def acting(self, group: Group, member: Rollout) -> Sequence[Turn]:
        """Return the turns that a member takes in the state of its group."""
        first = self._after(member, group.start)
        return self.turns[str(member.leaf)][first : first + group.actors]

    def turn_rewards(self, member: Rollout, agent: str) -> dict[str, float]:
        """Return the reward of each of an agent's turns, by id, without the reward of the whole path."""
        key = (str(member.leaf), agent)
        if key not in self._rewards:
            path = self.paths[key]
            ends = turn_ends(path.rows)
            rewards, positions = [0.0] * len(ends), [*ends.values()]
            for position, reward in path.sampled.steps:
                rewards[bisect_left(positions, position)] += reward
            self._rewards[key] = dict(zip(ends, rewards, strict=True))
        return self._rewards[key]

    def turn_return(self, group: Group, member: Rollout, agent: str) -> float | None:
        """Return Q of an agent's turn in a group; ``None`` if the member failed or was not graded."""
        path = self.paths.get((str(member.leaf), agent))
        is_stopped = path is not None and path.outcome.ending == STOPPED
        if path is None or (path.sampled.total is None and not is_stopped):
            return None
        rewards, whole = self.turn_rewards(member, agent), path.sampled.reward or 0.0
        first, below = self._after(member, group.start), self._group_below(group, member)
        if self.advantage.returns == "immediate":
            # Alternatives are not played to the end, so no other turn has the reward of a whole path.
            turn = next(turn.id for turn in self.acting(group, member) if turn.id in rewards)
            return rewards[turn] + (whole if self._ends_path(group, member) else 0.0)
        # The value of the next state with a group replaces what this one rollout got from there on.
        stop = None if below is None else self._after(member, below.start)
        rest = whole if below is None else self.value(below, agent)
        if rest is None:
            return None
        ids = (turn.id for turn in self.turns[str(member.leaf)][first:stop])
        gained = [rewards[turn] for turn in ids if turn in rewards]
        gamma, later = self.advantage.turn_gamma, len(gained)
        discounted = sum(gamma**n * reward for n, reward in enumerate(gained))
        return discounted + gamma ** (later - 1 if below is None and later else later) * rest

    def value(self, group: Group, agent: str) -> float | None:
        """Return the value of a group's state for an agent: the mean of Q over its members."""
        key = (group.search, agent)
        if key not in self._values:
            returns = [self.turn_return(group, member, agent) for member in group.members]
            graded = [value for value in returns if value is not None]
            self._values[key] = fmean(graded) if graded else None
        return self._values[key]

    def ending(self, group: Group, member: Rollout, agent: str) -> Ending:
        """Return how the rollouts that a turn's return averages over ended.

        That is the ending of one that no limit cut off, if there is any.
        """
        below = self._group_below(group, member)
        ending = self.paths[str(member.leaf), agent].outcome.ending
        if self.advantage.returns == "immediate":
            # A later limit changes nothing about the reward of a turn.
            return replace(ending, truncated=ending.truncated and self._ends_path(group, member))
        if below is None:
            return ending
        finished = [continued for continued in below.members if continued.leaf is not None]
        return _complete([self.ending(below, continued, agent) for continued in finished])

    def samples(self, group: Group, agent: str) -> Iterator[AgentPath]:
        """Yield an agent's turns in a group, each with its mean return over the members that take it."""
        by_turn: dict[int, list[tuple[Rollout, str]]] = {}
        for number, member in enumerate(group.members):
            if (member.leaf, agent) not in self.paths:
                continue
            acting = [turn for turn in self.acting(group, member) if turn.speaker.kind == "agent"]
            names = [turn.speaker.name for turn in acting]
            if agent not in names:
                continue
            if self.rollout.joint == "crossed":
                # The continued rollout takes the first turn of each agent.
                joint = member.number if member.search == group.search else 0
                number = draw_of(joint, names.index(agent), self.rollout.rollouts_per_task)
            turn = acting[names.index(agent)].id
            by_turn.setdefault(number, []).append((member, turn))
        for number, members in sorted(by_turn.items()):
            member, turn = members[0]
            path = self.paths[str(member.leaf), agent]
            row = turn_row(path.rows, turn)
            if row is None or not row.predicted:
                continue
            returns = [self.turn_return(group, member, agent) for member, _ in members]
            graded = [value for value in returns if value is not None]
            reward, name = fmean(graded) if graded else None, f"{self.task}/{group.search}"
            sampled = replace(path.sampled, group=name, path=f"{number}", reward=reward, steps=())
            # A turn of several rollouts was cut off only if all of them were.
            ending = _complete([self.ending(group, member, agent) for member, _ in members])
            outcome = replace(path.outcome, ending=ending)
            of_turn = replace(path, turns=1, rows=(row,), sampled=sampled, states=())
            yield replace(of_turn, outcome=outcome)

    def _ends_path(self, group: Group, member: Rollout) -> bool:
        """Return True if no actor acts after a member's turns in the state of its group, because the path ended."""
        later = self.turns[str(member.leaf)][self._after(member, group.start) + group.actors :]
        return all(turn.author == "environment" for turn in later)

    def _group_below(self, group: Group, member: Rollout) -> Group | None:
        """Return the next group that branches from a member."""
        if not self._below:
            for below in self.groups:
                if below.branch_of is not None:
                    self._below.setdefault(below.branch_of, []).append(below)
        later = self._below.get((member.search, member.number), [])
        return next((below for below in later if below.search > group.search), None)

    def _after(self, member: Rollout, node: str) -> int:
        """Return the index on a member's path of the first turn after a node."""
        ids = [turn.id for turn in self.turns[str(member.leaf)]]
        return ids.index(node) + 1 if node in ids else 0


def _complete(endings: Sequence[Ending]) -> Ending:
    return next((ending for ending in endings if not ending.truncated), endings[0])


def tree_samples(
    store: Store,
    iteration: int,
    stage: str,
    tasks: Sequence[str],
    agents: Sequence[str],
    reward: PathReward,
    settings: tuple[GroupSettings, AdvantageSettings],
) -> TreeSamples:
    """Return the turns of all groups of a stage's trees, with their returns."""
    samples = TreeSamples()
    for task in tasks:
        recorded = rollouts(store, iteration, task, stage).get(task, [])
        samples.rollouts += len(recorded)
        samples.failures += [
            LeftOut(task, rollout.start, "samples_failed", number=rollout.number)
            for rollout in recorded
            if rollout.leaf is None
        ]
        samples.tokens += sum(rollout.sampled for rollout in recorded)
        measures = {r.leaf: r.measures for r in recorded if r.leaf is not None}
        if not measures:
            continue
        tree, groups = store.tree(iteration, stage, task), groups_of(recorded)
        in_tree = paths_of_tree(store, tree, agents, reward, measures)
        paths = {(path.outcome.leaf, path.agent): path for path in in_tree}
        turns = {leaf: tree.path(leaf) for leaf in measures}
        task_tree = TaskTree(task, groups, turns, paths, *settings)
        # The rollout through a state without a trained agent is compared with no other.
        compared = [group for group in groups if len(group.members) > 1]
        for group in compared:
            for agent in agents:
                samples.turns += task_tree.samples(group, agent)
        members = (*compared, groups[0])[0].members
        # Alternatives that did not stop have ended early, so they are no fair sample of rollouts.
        stop = settings[0].tree == "spine" and settings[1].returns == "immediate"
        # Several rollouts may end in one leaf, and each is a sample of its own.
        for member in members[:1] if stop else members:
            of_member = (paths.get((str(member.leaf), agent)) for agent in agents)
            samples.paths += [
                replace(path, outcome=replace(path.outcome, sample=member.number))
                for path in of_member
                if path is not None
            ]
    return samples
