"""Dense trees: labels, order, values and pairs by hand; whole searches of a game with sessions."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from coterie.record.store import Store
from coterie.record.tree import Credit, ItemKey, Outcome, Tree
from coterie.rollout.dense_search import (
    DenseSearch,
    DenseSearchSettings,
    NodeValue,
    TreeValues,
    agent_path,
)
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Judgment, Rollout, path_tree
from coterie.selection import DensePairSettings, count_pairs
from tests.helpers.script_games import Counting, Script
from tests.rollout.test_branches import branches

PAIRS = DensePairSettings(margin=0.3, max_visits=2)
STEPS = 6
"""The turns that the game gives the agent."""
SMALL = DenseSearchSettings(max_children=4, rollouts_per_search=3, pairs=1000, rollouts_per_task=40)


@dataclass
class Digits(Script):
    """Says 0, 1 or 2, by the seed; ``asked`` are the seeds by the text before."""

    asked: list[tuple[str, int]] = field(default_factory=list)

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        self.asked += [(prompt.parent, seed) for seed in seeds]
        return [await self.respond(replace(prompt, seed=seed), context) for seed in seeds]


async def exactly(tree: Tree, outcomes: Sequence[Outcome]) -> list[Judgment]:
    """1 where the last number is 6."""
    return [
        Judgment(float([t.text for t in tree.path(one.leaf)][-1] == "now 6")) for one in outcomes
    ]


@dataclass
class Grown:
    """A finished search."""

    search: DenseSearch
    sessions: Sessions
    speakers: list[Digits]
    searches: list[list[Rollout]] = field(default_factory=list)

    @property
    def tree(self) -> Tree:
        return self.search.tree

    @property
    def rollouts(self) -> list[Rollout]:
        return self.search.rollouts


def grow(
    game: Counting | None = None,
    begun: tuple[Tree, Sequence[Rollout]] | None = None,
    *,
    sessions: int = 100,
    **settings: int,
) -> Grown:
    """A whole search of the task of ``tests.rollout.test_branches``."""
    tree, rollouts = begun or (Tree("t", "rollout", 0), ())
    own = SMALL.model_copy(update=settings)
    speakers = [Digits(lambda prompt: str(prompt.seed % 3)) for _ in range(own.max_children)]

    async def run() -> Grown:
        async with Sessions(sessions, 5.0) as kept:
            search = DenseSearch(
                branches(game or Counting(), {"agent": speakers[0]}, tree, kept),
                exactly,
                "agent",
                speakers,
                own,
                lambda values: count_pairs(values, PAIRS),
                STEPS,
                rollouts=list(rollouts),
                seed=0,
            )
            grown = Grown(search, kept, speakers)

            def record(tree: Tree, new: Sequence[Rollout], credit: Sequence[Credit]) -> None:
                grown.searches.append(list(new))

            await search.grow(record)
            return grown

    return asyncio.run(run())


def test_the_first_child_is_greedy_and_the_others_take_the_temperatures_in_turn() -> None:
    s = DenseSearchSettings()
    assert [s.temperature(label) for label in range(10)] == [
        0.0, 1.0, 0.5, 0.7, 1.0, 0.5, 0.7, 1.0, 0.5, 0.7,
    ]  # fmt: skip
    assert {DenseSearchSettings(children="sampling").temperature(n) for n in range(10)} == {1.0}


def test_the_first_search_varies_the_first_step_and_is_greedy_then() -> None:
    first = grow().searches[0]
    assert [one.labels for one in first] == [(label, 0, 0, 0, 0, 0) for label in range(4)]
    assert {one.start for one in first} == {Tree("t", "rollout", 0).root}


def test_a_child_is_sampled_once_and_nothing_is_played_twice() -> None:
    grown = grow()
    asked = [one for speaker in grown.speakers for one in speaker.asked]
    assert len(asked) == len(set(asked)), "no label of a node is sampled again"
    known = set[tuple[int, ...]]()
    for new in grown.searches:
        ways = {one.labels[: len(agent_path(grown.tree, one.leaf or ""))] for one in new}
        assert not ways & known, "no index leads only where an earlier search went"
        known |= ways
    leaves = {agent_path(grown.tree, leaf)[-1] for leaf in grown.tree.outcomes}
    assert grown.search.values[grown.tree.root].visits == len(leaves) < len(known), (
        "labels that led to the same words are one visit"
    )
    per_rollout = sum(one.sampled for one in grown.rollouts)
    assert per_rollout == len(asked), "one letter for each turn that was sampled, and none twice"


def test_a_search_ends_with_its_pairs_or_its_rollouts() -> None:
    assert len(grow(rollouts_per_task=10).rollouts) == 10
    few = grow(pairs=1, rollouts_per_task=1000)
    assert sum(few.search.pairs.values()) >= 1
    assert len(few.rollouts) < len(grow(pairs=20, rollouts_per_task=1000).rollouts)


def test_a_node_promises_by_contrast_depth_and_visits() -> None:
    grown = grow(rollouts_per_task=12)
    search, values = grown.search, grown.search.values
    for node in values:
        own = values[node]
        families = [children for children in values.children.values() if node in children]
        others = [values[other].mean for one in families for other in one if other != node]
        contrast = max((abs(own.mean - other) for other in others), default=0.0)
        begun = len({one.search for one in grown.rollouts if one.start == node})
        seen = own.visits + (begun if node != grown.tree.root else 0)
        by_hand = (
            0.8 * contrast**0.25 + 0.2 * own.distance / STEPS + 2 * math.sqrt(1 + seen) / (2 + seen)
        )
        assert search.priority(node) == pytest.approx(by_hand)
    order = search.best_first(Random(0))
    promises = [search.priority(node) for node in order]
    assert promises == sorted(promises, reverse=True)
    ended = {agent_path(grown.tree, leaf)[-1] for leaf in grown.tree.outcomes}
    assert not ended & set(order), "no search continues an ended path"


def test_forks_replay_few_sessions_and_a_store_grow_the_same_tree(tmp_path: Path) -> None:
    games = (Counting(), Counting(forks=False), Counting())
    forked, replayed, bounded = (
        grow(game, sessions=count) for game, count in zip(games, (100, 100, 2), strict=True)
    )
    assert forked.tree == replayed.tree == bounded.tree
    assert forked.rollouts == replayed.rollouts == bounded.rollouts
    assert forked.sessions.forked and [game.live for game in games] == [0, 0, 0]
    kept = [one for new in forked.searches[:4] for one in new]
    with Store.open(tmp_path / "store.sqlite") as store:
        for one in kept:
            assert one.leaf is not None
            key = ItemKey(0, "rollout", "t", f"{one.search:03d}/{one.number:02d}")
            store.finish(key, tree=path_tree(forked.tree, [one.leaf]))
        tree = store.tree(0, "rollout", "t")
    resumed = grow(begun=(tree, kept))
    assert resumed.rollouts == forked.rollouts and resumed.tree.turns == forked.tree.turns


def values(rule: str) -> TreeValues:
    """Values of runs, whose nodes are words with blanks between."""
    tree = TreeValues("root", rule)  # type: ignore[arg-type]
    for path, reward in (("a c", 1.0), ("a c", 1.0), ("a d e", 0.0), ("b", 0.0)):
        tree.add(path.split(), reward)
    return tree


def test_a_value_is_the_mean_over_rollouts_each_counted_once() -> None:
    tree = values("rollouts")
    assert tree["root"] == NodeValue(0.5, 3, (2 + 2 + 3 + 1) / 4)
    assert tree["a"] == NodeValue(2 / 3, 2, pytest.approx((1 + 1 + 2) / 3))
    assert tree["c"] == NodeValue(1.0, 1, 0.0)
    assert tree["e"] == NodeValue(0.0, 1, 0.0)


def test_a_value_can_be_the_mean_of_the_children() -> None:
    tree = values("children")
    assert tree["a"].mean == pytest.approx((1.0 + 0.0) / 2)
    assert tree["root"].mean == pytest.approx((0.5 + 0.0) / 2)
    assert tree["a"].visits == 2, "leaves c and e, whatever the rule"
    assert tree.siblings("a") == [tree["b"]] and tree.siblings("root") == []
