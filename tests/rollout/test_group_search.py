"""Trees of groups: what is sampled, which turns are compared, their returns against a plain recursion, and resuming."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import EngineError, Sampling
from coterie.environments.protocol import Grade, Observation, Pure, Shared, State, Transition
from coterie.models.loading import load
from coterie.progress import Silent
from coterie.recipes.rl import group_batch
from coterie.record.store import Store
from coterie.record.tree import STOPPED, Ending, Task, Tree
from coterie.record.turn import Message, Part, Speaker, Turn
from coterie.rewards.dialogue_reward import PathReward, PathRewardSettings
from coterie.rollout import group_search
from coterie.rollout.episodes import Driver
from coterie.rollout.group_search import GroupSearch, groups_of
from coterie.rollout.samplers import TokenSampler
from coterie.rollout.tree_search import Search
from coterie.runs.reinforce import score_of, step_metrics
from coterie.runs.reinforce_batch import StepSamples
from coterie.runs.reinforce_settings import AdvantageSettings, GroupSettings
from coterie.runs.reinforce_trees import TreeSamples, tree_samples
from coterie.runs.search_items import TreeWriter, grow_trees, rollouts

AGENTS = ("Ann", "Ben")
STAGE = "reinforce/00000"


def value(text: str) -> float:
    """A reward that most texts differ in."""
    return float(sum(text.encode()) % 7)


class Rounds(Pure):
    """Agents who act in turn or at the same time, for a number of rounds. The score depends on the first turns."""

    name, metric = "rounds", "score"
    score_range = (0.0, 20.0)

    def __init__(self, rounds: int, *, together: bool = False, paid: bool = True) -> None:
        self.rounds, self.together, self.paid = rounds, together, paid
        self.actors = dict.fromkeys(AGENTS, "agent")
        self.limits = {"turns": 100}

    def tasks(
        self, split: Any, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        return [Task(f"{split}-{number}", {}) for number in range(count)]

    def next_actors(self, state: State) -> tuple[str, ...]:
        return AGENTS if self.together else (AGENTS[len(state.turns) % 2],)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        system = Message.of("system", f"You are {actor}.")
        return (system, *(Message("user", turn=turn.id) for turn in state.turns))

    async def act(
        self, state: State, taken: tuple[Turn, ...], session: Any, *, replayed: Any = ()
    ) -> Transition:
        number = (state.data if isinstance(state.data, int) else 0) + 1
        end = Ending("over") if number == self.rounds else None
        rewards = {turn.speaker.name: value(turn.text) for turn in taken if self.paid}
        return Transition(number, (), "done", end, rewards)

    async def grade(self, state: State, session: Any) -> Grade:
        first = state.turns[: 2 if self.together else 1]
        words = {"length": float(sum(len(turn.text) for turn in state.turns))}
        return Grade(sum(value(turn.text) for turn in first), words, rewards={})


@pytest.fixture(scope="module")
def sampler() -> TokenSampler:
    loaded = load("tiny-exchange")
    engine = InProcessEngine(loaded, policy="policy", version="0")
    return TokenSampler(
        engine, loaded.renderer.render, Sampling(1.0, 1.0, 2), loaded.context_length
    )


class Recording(TreeWriter):
    """Calls ``on_search`` before it writes a search."""

    on_search: Callable[[int], None]

    def record(self, tree: Tree, new: Any, credit: Any) -> None:
        self.on_search(new[0].search)
        super().record(tree, new, credit)


class Grown:
    """The trees of one step, in a store, and what a step reads from it."""

    def __init__(self, game: Rounds, sampler: TokenSampler, folder: Path, **settings: Any) -> None:
        self.game, self.sampler = game, sampler
        self.trained = settings.pop("trained", AGENTS)
        self.stops = settings.pop("stops", False)
        self.rollout = GroupSettings(**{"tree": "spine", "rollouts_per_task": 3, **settings})
        self.store = Store.open(folder / "store.sqlite")
        self.tasks = game.tasks("train", 2, 0)
        self.store.put_tasks(self.tasks)

    def grow(self, on_search: Callable[[int], None] = lambda search: None) -> "Grown":
        samplers = dict.fromkeys(AGENTS, self.sampler)
        driver = Driver(self.game, samplers, seed=0, shared=Shared())
        writer = Recording(self.store, 0, Silent(), lambda: 0, stage=STAGE)
        writer.on_search = on_search
        s, is_crossed = self.rollout, self.rollout.joint == "crossed"
        from_best = s.continue_with == "best"
        shape = (s.rollouts_per_task, s.tree == "full", s.tree_depth, from_best, is_crossed)
        shape += (self.stops,)

        def begin(driver: Driver, sessions: Any, task: Task) -> Search:
            tree, recorded = writer.load(task)
            branches = driver.branches(task, tree, sessions)
            samplers = driver.samplers
            return GroupSearch(
                *(branches, score_of, samplers, self.trained, *shape), rollouts=recorded
            )

        asyncio.run(grow_trees(driver, writer, self.tasks, begin, 2))
        return self

    def samples(self, **advantage: Any) -> TreeSamples:
        settings = AdvantageSettings(**{"group": "sibling", **advantage})
        names, reward = [task.id for task in self.tasks], PathReward(PathRewardSettings())
        place = (self.store, 0, STAGE, names, AGENTS, reward)
        return tree_samples(*place, (self.rollout, settings))

    @property
    def items(self) -> list[Any]:
        items = [item for item in self.store.items(0, STAGE) if item.key.task]
        return sorted((i.key.task, i.key.sample, sorted(i.metrics.items())) for i in items)


def test_a_spine_has_a_group_at_each_turn_of_its_first_rollout(sampler, tmp_path) -> None:
    grown = Grown(Rounds(4), sampler, tmp_path).grow()
    by_task = rollouts(grown.store, 0, stage=STAGE)
    for task_rollouts in by_task.values():
        groups = groups_of(task_rollouts)
        assert [len(group.members) for group in groups] == [3] * 4
        assert {group.branch_of for group in groups[1:]} == {(0, 0)}
        tokens = sum(rollout.sampled for rollout in task_rollouts)
        # K + (K - 1) (T - t - 1) sampled turns at turn t, of one or two tokens each.
        turns = sum(3 + 2 * (4 - t - 1) for t in range(4))
        assert turns <= tokens <= 2 * turns
    samples = grown.samples()
    assert samples.rollouts == 2 * (3 + 3 * 2) and len(samples.turns) == 2 * 4 * 3
    assert [path.agent for path in samples.turns][:12] == ["Ann"] * 3 + ["Ben"] * 3 + [
        "Ann"
    ] * 3 + ["Ben"] * 3
    assert len(samples.paths) == 2 * 3 * 2, "the rollouts from the beginning are the step's metrics"


def test_depth_bounds_the_states_that_have_a_group(sampler, tmp_path) -> None:
    grown = Grown(Rounds(4), sampler, tmp_path, tree_depth=2).grow()
    groups = {path.sampled.group for path in grown.samples().turns}
    assert groups == {f"train-{n}/{search}" for n in range(2) for search in range(2)}


@pytest.mark.parametrize(
    ("trained", "tree", "groups", "turns"),
    [
        # A spine of 4 states: the rollout, and 2 alternatives at the turns of the trained agent.
        (("Ann",), "spine", [3, 3], 3 * 4 + 2 * 2),
        (("Ben",), "spine", [1, 3, 3], 4 + 2 * 3 + 2 * 1),
        (("Ben",), "full", [1, 3, 3, 3, 3], 4 + 2 * 3 + 3 * 2 * 1),
    ],
)
def test_states_of_untrained_agents_have_one_continuation(
    trained, tree, groups, turns, sampler, tmp_path
) -> None:
    grown = Grown(Rounds(4), sampler, tmp_path, trained=trained, tree=tree).grow()
    for task, task_rollouts in rollouts(grown.store, 0, stage=STAGE).items():
        assert [len(group.members) for group in groups_of(task_rollouts)] == groups
        paths = {r.leaf: grown.store.tree(0, STAGE, task).path(r.leaf) for r in task_rollouts}
        new = [4 - [t.id for t in paths[r.leaf]].index(r.start) - 1 if r.search else 4
               for r in task_rollouts]  # fmt: skip
        assert sum(new) == turns
    samples = grown.samples()
    assert {path.agent for path in samples.turns} == {*trained}
    assert len(samples.turns) == 2 * 3 * sum(size > 1 for size in groups)
    assert len(samples.paths) == 2 * 3 * 2, "the metrics are means over the first group"


def test_advantages_do_not_depend_on_groups_of_agents_that_change_nothing(
    sampler, tmp_path
) -> None:
    """What Ben says changes no reward of Ann, so his alternatives are no news for her."""
    advantages = []
    for trained in (AGENTS, ("Ann",)):
        (tmp_path / str(len(trained))).mkdir()
        game, folder = Rounds(2), tmp_path / str(len(trained))
        samples = Grown(game, sampler, folder, trained=trained).grow().samples()
        batch = group_batch(samples.turns, AdvantageSettings(group="sibling"))
        rows = [path.rows[0] for path in batch.paths if path.agent == "Ann"]
        advantages.append([(row.ids, row.advantages) for row in rows])
    assert advantages[0] == advantages[1] and any(any(a) for _, a in advantages[0])


class Cut(Rounds):
    """A limit ends some dialogues, depending on the last turn."""

    async def act(self, state: State, taken: tuple[Turn, ...], *args: Any, **named: Any) -> Any:
        transition = await super().act(state, taken, *args, **named)
        cut = Ending("turns", truncated=value(taken[-1].text) % 2 == 0)
        return transition if transition.end is None else replace(transition, end=cut)


@pytest.mark.parametrize("joint", ["aligned", "crossed"])
def test_a_turn_was_cut_off_if_all_rollouts_of_its_return_were(joint, sampler, tmp_path) -> None:
    game = Cut(2, together=True)
    grown = Grown(game, sampler, tmp_path, joint=joint, rollouts_per_task=3).grow()
    samples, seen = grown.samples().turns, set()
    for task in grown.tasks:
        (task_rollouts,) = rollouts(grown.store, 0, task.id, STAGE).values()
        tree, groups = grown.store.tree(0, STAGE, task.id), groups_of(task_rollouts)
        cut = {leaf: outcome.ending.truncated for leaf, outcome in tree.outcomes.items()}
        for path in (path for path in samples if path.task == task.id):
            group = groups[int(path.sampled.group.split("/")[1])]
            number, index = int(path.sampled.path), AGENTS.index(path.agent)
            # Alternative k of a crossed group is the turn k // 3^i % 3 of agent i.
            taking = [
                m for n, m in enumerate(group.members)
                if (n if joint == "aligned" else n // 3**index % 3) == number
            ]  # fmt: skip
            # The first rollout continues with all members of the next group.
            if group is groups[0] and group.members[0] in taking:
                taking += groups[1].members
            expected = all(cut[m.leaf] for m in taking)
            assert path.outcome.ending.truncated == expected
            seen.add((expected, cut[path.outcome.leaf]))
    assert {(False, False), (True, True), (False, True)} <= seen


def test_returns_are_those_of_a_plain_recursion(sampler, tmp_path) -> None:
    """Q of a member: its own rewards up to the next group of its path, and the mean Q of that group."""
    grown = Grown(Rounds(3), sampler, tmp_path, tree="full", rollouts_per_task=2).grow()
    for task in grown.tasks:
        (task_rollouts,) = rollouts(grown.store, 0, task.id, STAGE).values()
        tree, groups = grown.store.tree(0, STAGE, task.id), groups_of(task_rollouts)
        assert len(groups) == 1 + 2 + 4

        def rewards(leaf: str, agent: str, tree: Tree = tree) -> dict[int, float]:
            path = tree.path(leaf)
            return {n: value(t.text) for n, t in enumerate(path) if t.speaker.name == agent}

        def q(group, member, agent: str, depth: int, groups=groups) -> float:
            below = [g for g in groups if g.search > group.search]
            name = (member.search, member.number)
            child = next((g for g in below if g.branch_of == name), None)
            own = rewards(member.leaf, agent)
            if child is None:
                return sum(own[n] for n in own if n >= depth)
            later = fmean(q(child, m, agent, depth + 1) for m in child.members)
            return own.get(depth, 0.0) + later

        depths = {group.search: 0 for group in groups[:1]}
        for group in groups[1:]:
            path = [turn.id for turn in tree.path(group.members[0].leaf)]
            depths[group.search] = path.index(group.start) + 1
        for path in grown.samples().turns:
            if path.task != task.id:
                continue
            group = groups[int(path.sampled.group.split("/")[1])]
            member, depth = group.members[int(path.sampled.path)], depths[group.search]
            assert path.sampled.reward == pytest.approx(q(group, member, path.agent, depth))


def test_each_sampled_turn_of_a_full_tree_is_trained_once(sampler, tmp_path) -> None:
    grown = Grown(Rounds(3, together=True), sampler, tmp_path, tree="full", rollouts_per_task=2)
    samples = grown.grow().samples()
    rows = [row for path in samples.turns for row in path.rows]
    assert all(len(row.targets) == 1 for row in rows)
    # Two joint actions at each of 1 + 2 + 4 states of each task, by two agents.
    assert len(rows) == 2 * (2 + 4 + 8) * 2
    trained = [target.turn for row in rows for target in row.targets]
    trees = [grown.store.tree(0, STAGE, task.id) for task in grown.tasks]
    assert {*trained} == {turn for tree in trees for turn in tree.turns}
    assert sum(len(row.predicted[0]) for row in rows) == samples.tokens
    assert all(row.path_tokens == row.target_count and row.logprobs for row in rows)


def test_where_only_the_first_turn_counts_all_later_advantages_are_zero(sampler, tmp_path) -> None:
    grown = Grown(Rounds(4, paid=False), sampler, tmp_path, rollouts_per_task=4).grow()
    samples, settings = grown.samples(), AdvantageSettings(group="sibling", baseline="mean_std")
    batch = group_batch(samples.turns, settings)
    by_group: dict[str, list[float]] = {}
    for path in batch.paths:
        by_group.setdefault(path.sampled.group, []).extend(path.rows[0].advantages or ())
    assert any(by_group["train-0/0"])
    later = [a for name, of_group in by_group.items() if not name.endswith("/0") for a in of_group]
    assert later and not any(later)


def test_a_spine_can_continue_with_the_best_turn(sampler, tmp_path) -> None:
    grown = Grown(Rounds(3), sampler, tmp_path, continue_with="best", rollouts_per_task=4).grow()
    for task in grown.tasks:
        (task_rollouts,) = rollouts(grown.store, 0, task.id, STAGE).values()
        tree, groups = grown.store.tree(0, STAGE, task.id), groups_of(task_rollouts)
        assert len(groups) == 3
        for depth, (group, below) in enumerate(pairwise(groups)):
            turns = [tree.path(str(member.leaf))[depth] for member in group.members]
            best = max(turns, key=lambda turn: value(turn.text))
            assert below.start == best.id


def test_crossed_turns_have_the_mean_over_the_turns_of_the_partner(sampler, tmp_path) -> None:
    grown = Grown(Rounds(2, together=True), sampler, tmp_path, joint="crossed", rollouts_per_task=2)
    grown.grow()
    for task in grown.tasks:
        (task_rollouts,) = rollouts(grown.store, 0, task.id, STAGE).values()
        tree, groups = grown.store.tree(0, STAGE, task.id), groups_of(task_rollouts)
        assert [len(group.members) for group in groups] == [4, 4]
        # The last state: what an agent gets there does not depend on later turns.
        for agent, (first, second) in {"Ann": ((0, 2), (1, 3)), "Ben": ((0, 1), (2, 3))}.items():
            texts = [
                [
                    turn.text
                    for turn in tree.path(groups[1].members[number].leaf)[2:]
                    if turn.speaker.name == agent
                ]
                for number in (*first, *second)
            ]
            assert texts[0] == texts[1] and texts[2] == texts[3], "each takes one of two turns"
            own = [
                path.sampled
                for path in grown.samples().turns
                if path.agent == agent and path.sampled.group == f"{task.id}/1"
            ]
            assert [path.reward for path in own] == [value(texts[0][0]), value(texts[2][0])]
        sampled = sum(rollout.sampled for rollout in groups[0].members)
        firsts = {turn.ids for m in groups[0].members for turn in tree.path(str(m.leaf))[:2]}
        assert sampled <= 2 * (4 + 4 * 2) and len(firsts) <= 4, "a turn is sampled once"


def test_immediate_returns_are_the_rewards_of_the_turns_alone(sampler, tmp_path) -> None:
    grown = Grown(Rounds(3), sampler, tmp_path).grow()
    trees = {task.id: grown.store.tree(0, STAGE, task.id) for task in grown.tasks}
    for path in grown.samples(returns="immediate").turns:
        (turn,) = (target.turn for row in path.rows for target in row.targets)
        assert path.sampled.reward == value(trees[path.task].turns[turn].text)


class Seen(Rounds):
    """The environment says something after each act, so a path ends with an observation."""

    async def act(self, state: State, taken: tuple[Turn, ...], *args: Any, **named: Any) -> Any:
        transition = await super().act(state, taken, *args, **named)
        seen = (Observation(Speaker("environment", "world"), (Part("Noted."),)),)
        return replace(transition, seen=seen)

    def next_actors(self, state: State) -> tuple[str, ...]:
        acted = sum(turn.speaker.kind == "agent" for turn in state.turns)
        return AGENTS if self.together else (AGENTS[acted % 2],)


def new_turns(grown: Grown, task: Task) -> int:
    """Number of turns that the rollouts of a task sampled after their start."""
    (task_rollouts,) = rollouts(grown.store, 0, task.id, STAGE).values()
    tree, count = grown.store.tree(0, STAGE, task.id), 0
    for rollout in task_rollouts:
        path = tree.path(str(rollout.leaf))
        ids = [tree.root, *(turn.id for turn in path)]
        new = path[ids.index(rollout.start) :]
        count += sum(turn.speaker.kind == "agent" for turn in new)
    return count


@pytest.mark.parametrize("world", [Rounds, Seen])
@pytest.mark.parametrize("trained", [AGENTS, ("Ben",)])
@pytest.mark.parametrize("continue_with", ["first", "best"])
def test_alternatives_that_stop_have_the_advantages_of_whole_ones(
    world, trained, continue_with, sampler, tmp_path
) -> None:
    trees = []
    for stops in (False, True):
        (tmp_path / f"{stops}").mkdir()
        shape = {"continue_with": continue_with, "rollouts_per_task": 4, "trained": trained}
        grown = Grown(world(4), sampler, tmp_path / f"{stops}", stops=stops, **shape).grow()
        samples = grown.samples(returns="immediate", baseline="mean_std")
        settings = AdvantageSettings(group="sibling", baseline="mean_std", returns="immediate")
        batch = group_batch(samples.turns, settings).paths
        rows = [(p.task, p.agent, p.rows[0].ids, p.rows[0].advantages) for p in batch]
        trees.append((grown, samples, rows))
    (whole, _, expected), (grown, samples, rows) = trees
    if trained == AGENTS or continue_with == "first":
        # The order in a group differs where the spine continues with an alternative.
        assert sorted(rows) == sorted(expected) and any(any(row[-1]) for row in rows)
    else:
        # The continuation to Ben's next turn is a search of its own, so later ones have other seeds.
        assert len(rows) == len(expected) == 2 * 2 * 4
    for task in grown.tasks:
        count, most = new_turns(grown, task), new_turns(whole, task)
        if continue_with == "first":
            assert (count, most) == ((16, 34) if trained == AGENTS else (4 + 2 * 3, 4 + 3 * 3 + 3))
        assert count < most
    # Nothing of the alternatives that stopped is in the means of the step.
    assert not samples.failures and {path.outcome.sample for path in samples.paths} == {0}
    assert all(path.outcome.ending == Ending("over") for path in samples.paths)
    assert metrics_of(samples)["score"] == fmean(path.outcome.score or 0 for path in samples.paths)


def test_alternatives_that_stop_are_recorded_so(sampler, tmp_path) -> None:
    grown = Grown(Rounds(3), sampler, tmp_path, stops=True, continue_with="best").grow()
    for task in grown.tasks:
        tree = grown.store.tree(0, STAGE, task.id)
        for outcome, path in tree.trajectories():
            is_over = len(path) == 3
            assert outcome.ending == (Ending("over") if is_over else STOPPED)
            assert (outcome.score is None) == (not is_over) and not outcome.ending.truncated
        assert any(outcome.ending == STOPPED for outcome in tree.outcomes.values())
        numbers = [outcome.sample for outcome in tree.outcomes.values()]
        assert len({*numbers}) == len(numbers)
        for item in grown.store.items(0, STAGE, task.id):
            leaf = item.metrics["leaf"]
            assert ("reward" in item.metrics) == ("grade/length" in item.metrics)
            assert ("reward" in item.metrics) == (tree.outcomes[leaf].score is not None)


class Ends(Rounds):
    """Some turns end the dialogue."""

    async def act(self, state: State, taken: tuple[Turn, ...], *args: Any, **named: Any) -> Any:
        transition = await super().act(state, taken, *args, **named)
        ends = value(taken[-1].text) < 4
        return replace(transition, end=Ending("over")) if ends else transition


def test_alternatives_that_end_early_are_not_in_the_metrics(sampler, tmp_path) -> None:
    """Where alternatives stop, those that have an end are the short ones."""
    grown = Grown(Ends(3), sampler, tmp_path, stops=True, rollouts_per_task=6).grow()
    first = [r for task in rollouts(grown.store, 0, stage=STAGE).values() for r in task[:6]]
    assert any(rollout.reward is not None and rollout.number for rollout in first)
    paths = grown.samples(returns="immediate").paths
    assert {path.outcome.sample for path in paths} == {0} and len({p.task for p in paths}) == 2


@pytest.mark.parametrize("paid", [True, False])
def test_the_reward_of_a_rollout_is_that_of_the_turns_that_end_it(paid, sampler, tmp_path) -> None:
    """All members of a group count the same, although only the first of an earlier group has a score."""
    grown = Grown(Rounds(3, paid=paid), sampler, tmp_path, stops=True).grow()
    for task in grown.tasks:
        tree = grown.store.tree(0, STAGE, task.id)
        for path in grown.samples(returns="immediate").turns:
            if path.task != task.id:
                continue
            (turn,) = (tree.turns[t.turn] for row in path.rows for t in row.targets)
            depth = len(tree.path(turn.id))
            score = 0.0 if paid else tree.outcomes[turn.id].score if depth == 3 else 0.0
            assert path.sampled.reward == score + (value(turn.text) if paid else 0.0)


def test_a_limit_masks_only_the_turns_that_it_ends(sampler, tmp_path) -> None:
    """A later limit of the first rollout says nothing of its turn, which is one of K equal siblings."""
    grown = Grown(Cut(2), sampler, tmp_path, stops=True, rollouts_per_task=6).grow()
    endings = {"0": set(), "1": set()}
    for path in grown.samples(returns="immediate").turns:
        endings[path.sampled.group.split("/")[1]].add(path.outcome.ending.truncated)
    assert endings == {"0": {False}, "1": {False, True}}


class Breaks(Rounds):
    """Its second round fails for some turns."""

    async def act(self, state: State, taken: tuple[Turn, ...], *args: Any, **named: Any) -> Any:
        if len(state.turns) == 2 and value(taken[0].text) < 3:
            raise EngineError("the second round failed")
        return await super().act(state, taken, *args, **named)


def test_failed_rollouts_leave_their_group_and_are_counted(sampler, tmp_path) -> None:
    grown = Grown(Breaks(3), sampler, tmp_path, rollouts_per_task=6).grow()
    samples = grown.samples()
    by_task = rollouts(grown.store, 0, stage=STAGE)
    played = [rollout for task in by_task.values() for rollout in task]
    failed = [rollout for rollout in played if rollout.leaf is None]
    assert 0 < len(failed) < len(played)
    assert all("second round" in str(rollout.failure) for rollout in failed)
    members = [
        member for task in by_task.values() for group in groups_of(task) for member in group.members
    ]
    assert len(samples.turns) == sum(member.leaf is not None for member in members)
    assert {len(groups_of(task)) for task in by_task.values()} == {3}, "the search goes on"
    metrics = metrics_of(samples)
    assert (metrics["samples"], metrics["samples_failed"]) == (len(played), len(failed))


def metrics_of(samples: TreeSamples) -> dict[str, float | int | str]:
    """The metrics of a step with these samples."""
    step = StepSamples(
        1, measured=samples.paths, paths=samples.turns, sample_count=samples.rollouts
    )
    batch = group_batch(samples.turns, AdvantageSettings(group="sibling"))
    return step_metrics(step, batch, {}, len(samples.failures))


def test_equal_rollouts_count_each_in_the_metrics_of_a_step(sampler, tmp_path) -> None:
    """The mean score is over rollouts, as the mean reward, and not over their different leaves."""
    grown = Grown(Rounds(1, paid=False), sampler, tmp_path, rollouts_per_task=12).grow()
    samples = grown.samples()
    leaves = [member for task in rollouts(grown.store, 0, stage=STAGE).values() for member in task]
    assert len({(member.leaf) for member in leaves}) < len(leaves) == 24
    metrics = metrics_of(samples)
    assert metrics["score"] == pytest.approx(metrics["reward"])
    assert metrics["samples_failed"] == 0


def test_equal_siblings_are_separate_samples(sampler, tmp_path) -> None:
    greedy = replace(sampler, sampling=replace(sampler.sampling, temperature=0.0))
    grown = Grown(Rounds(2), greedy, tmp_path).grow()
    samples = grown.samples().turns
    assert len(samples) == 2 * 2 * 3
    assert len({target.turn for p in samples for r in p.rows for target in r.targets}) == 2 * 2
    counts = group_batch(samples, AdvantageSettings(group="sibling")).counts
    assert (counts["groups"], counts["groups_equal"]) == (4, 4)


class Counting(TokenSampler):
    """Counts the prompts that are sampled at the same time."""

    now = most = 0

    async def candidates(self, *arguments: Any) -> list[Any]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await super().candidates(*arguments)
        finally:
            self.now -= 1


@pytest.mark.parametrize(("tree", "turns"), [("spine", 6), ("full", 4)])
def test_groups_of_one_tree_are_sampled_together_and_as_one_after_another(
    tree, turns, sampler, tmp_path, monkeypatch
) -> None:
    results = []
    for searches in (group_search.SEARCHES, 1):
        monkeypatch.setattr(group_search, "SEARCHES", searches)
        (tmp_path / str(searches)).mkdir()
        counting = Counting(**vars(sampler))
        shape = {"tree": tree, "rollouts_per_task": 2}
        grown = Grown(Rounds(turns), counting, tmp_path / str(searches), **shape).grow()
        trees = [grown.store.tree(0, STAGE, task.id).turns for task in grown.tasks]
        results.append((grown.items, trees))
        # One after the other, each of the two trees plays two rollouts at a time.
        assert (counting.most > 2 * 2) == (searches > 1)
    assert results[0] == results[1]


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    ("joint", "temperature"), [("aligned", 1.0), ("crossed", 1.0), ("aligned", 0.0)]
)
def test_a_killed_search_continues_to_the_same_items(sampler, tmp_path, joint, temperature) -> None:
    """Greedy alternatives end in a leaf of an earlier search, whose grade is in the record alone."""
    sampler, shape = (
        sampler.at(temperature),
        {"tree": "full", "rollouts_per_task": 2, "joint": joint},
    )
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    whole = Grown(Rounds(3, together=True), sampler, tmp_path / "a", **shape).grow()

    def kill(search: int) -> None:
        if search == 2:
            raise Killed

    killed = Grown(Rounds(3, together=True), sampler, tmp_path / "b", **shape)
    with pytest.raises(Killed):
        killed.grow(kill)
    assert 0 < len(killed.items) < len(whole.items)
    assert killed.grow().items == whole.items


@pytest.mark.parametrize("world", [Rounds, Seen])
def test_a_killed_search_continues_from_stopped_alternatives(world, sampler, tmp_path) -> None:
    shape = {"stops": True, "continue_with": "best", "trained": ("Ben",), "rollouts_per_task": 4}
    (tmp_path / "whole").mkdir()
    whole = Grown(world(6), sampler, tmp_path / "whole", **shape).grow()
    branches = [item.metrics.get("branch_of") for item in whole.store.items(0, STAGE)]
    assert any(name and not name.endswith("/0") for name in branches), "one was continued"
    for stop in (1, 3):
        (tmp_path / f"{stop}").mkdir()
        killed = Grown(world(6), sampler, tmp_path / f"{stop}", **shape)

        def kill(search: int, stop: int = stop) -> None:
            if search == stop:
                raise Killed

        with pytest.raises(Killed):
            killed.grow(kill)
        assert killed.grow().items == whole.items


def test_a_spine_continues_with_an_alternative_if_its_rollout_fails(sampler, tmp_path) -> None:
    grown = Grown(Breaks(3), sampler, tmp_path, stops=True, rollouts_per_task=6).grow()
    for task_rollouts in rollouts(grown.store, 0, stage=STAGE).values():
        failed = [rollout for rollout in task_rollouts if rollout.leaf is None]
        assert all(f.search or not f.number for f in failed), "who has stopped cannot fail"
        assert len(groups_of(task_rollouts)) == 3, "the search goes on"
