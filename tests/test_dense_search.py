"""Dense trees: labels, what is played next, values and pairs by hand; whole searches of a game with sessions."""

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
from coterie.rollout.sessions import Sessions, sessions_of
from coterie.rollout.tree_search import Judgment, Rollout, path_tree
from coterie.selection import DensePairSettings, count_pairs
from tests.games import Counting, Script
from tests.test_branches import branches

PAIRS = DensePairSettings(margin=0.3, max_visits=2)
STEPS = 6
"""The turns that the game gives the agent."""


@dataclass
class Digits(Script):
    """Says a number below ``most``, by the seed; ``asked`` are the seeds by the text before."""

    most: int = 3
    asked: list[tuple[str, int]] = field(default_factory=list)

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        self.asked += [(prompt.parent, seed) for seed in seeds]
        return [await self.respond(replace(prompt, seed=seed), context) for seed in seeds]


def digits(most: int = 3) -> Digits:
    return Digits(lambda prompt: str(prompt.seed % most), most=most)


async def exactly(tree: Tree, outcomes: Sequence[Outcome]) -> list[Judgment]:
    """1 where the last number that was reached is 6."""
    return [
        Judgment(float([t.text for t in tree.path(one.leaf)][-1] == "now 6")) for one in outcomes
    ]


@dataclass
class Grown:
    """A search that is over."""

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
    settings: DenseSearchSettings,
    game: Counting | None = None,
    begun: tuple[Tree, Sequence[Rollout]] | None = None,
    *,
    sessions: int = 100,
    seed: int = 0,
) -> Grown:
    """A whole search of the task of ``tests.test_branches``."""
    tree, rollouts = begun or (Tree("t", "rollout", 0), ())
    speakers = [digits() for _ in range(settings.base)]

    async def run() -> Grown:
        async with sessions_of(sessions, 5.0) as kept:
            own = branches(game or Counting(), {"agent": speakers[0]}, tree, kept)
            search = DenseSearch(
                own,
                exactly,
                "agent",
                speakers,
                settings,
                lambda values: count_pairs(values, PAIRS),
                STEPS,
                rollouts=list(rollouts),
                seed=seed,
            )
            grown = Grown(search, kept, speakers)

            def record(tree: Tree, new: Sequence[Rollout], credit: Sequence[Credit]) -> None:
                grown.searches.append(list(new))

            await search.grow(record)
            return grown

    return asyncio.run(run())


SMALL = DenseSearchSettings(base=4, window=3, pairs=1000, runs=40)


# -- labels -----------------------------------------------------------------------------------


def test_the_first_child_is_greedy_and_the_others_take_the_temperatures_in_turn() -> None:
    s = DenseSearchSettings()
    assert [s.temperature(label) for label in range(10)] == [
        0.0, 1.0, 0.5, 0.7, 1.0, 0.5, 0.7, 1.0, 0.5, 0.7,
    ]  # fmt: skip
    assert {DenseSearchSettings(children="sampling").temperature(n) for n in range(10)} == {1.0}


def test_the_first_search_varies_the_first_step_and_is_greedy_then() -> None:
    first = grow(SMALL).searches[0]
    assert [one.labels for one in first] == [(label, 0, 0, 0, 0, 0) for label in range(4)]
    assert {one.start for one in first} == {Tree("t", "rollout", 0).root}


def test_a_child_is_sampled_once_and_nothing_is_played_twice() -> None:
    grown = grow(SMALL)
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
    grown = grow(replaced(runs=10))
    assert len(grown.rollouts) == 10
    few = grow(replaced(pairs=1, runs=1000))
    assert sum(few.search.pairs.values()) >= 1
    assert len(few.rollouts) < len(grow(replaced(pairs=20, runs=1000)).rollouts)


def replaced(**values: int) -> DenseSearchSettings:
    return SMALL.model_copy(update=values)


# -- what promises most -----------------------------------------------------------------------


def test_a_node_promises_by_contrast_depth_and_visits() -> None:
    grown = grow(replaced(runs=12))
    search = grown.search
    for node in grown.search.values:
        own = search.values[node]
        siblings = [
            search.values[other].mean
            for children in search.values.children.values()
            if node in children
            for other in children
            if other != node
        ]
        contrast = max((abs(own.mean - other) for other in siblings), default=0.0)
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
    assert not ended & set(order), "what has ended is not gone on from"


# -- sessions, failures, resuming ---------------------------------------------------------------


def test_forks_and_replay_and_few_sessions_grow_the_same_tree() -> None:
    games = (Counting(), Counting(forks=False), Counting())
    forked, replayed, bounded = (
        grow(SMALL, game, sessions=count) for game, count in zip(games, (100, 100, 2), strict=True)
    )
    assert forked.tree == replayed.tree == bounded.tree
    assert forked.rollouts == replayed.rollouts == bounded.rollouts
    assert forked.sessions.forked and [game.live for game in games] == [0, 0, 0]


def test_a_search_from_a_store_goes_on_alike(tmp_path: Path) -> None:
    every = grow(SMALL)
    kept = [one for new in every.searches[:4] for one in new]
    with Store.open(tmp_path / "store.sqlite") as store:
        for one in kept:
            assert one.leaf is not None
            key = ItemKey(0, "rollout", "t", f"{one.search:03d}/{one.number:02d}")
            store.finish(key, tree=path_tree(every.tree, [one.leaf]))
        tree = store.tree(0, "rollout", "t")
    again = grow(SMALL, begun=(tree, kept))
    assert again.rollouts == every.rollouts and again.tree.turns == every.tree.turns


# -- values -----------------------------------------------------------------------------------


def values(rule: str, *runs: tuple[str, float]) -> TreeValues:
    """Of runs whose nodes are written as words with blanks between."""
    found = TreeValues("root", rule)  # type: ignore[arg-type]
    for path, reward in runs:
        found.add(path.split(), reward)
    return found


RUNS = (("a c", 1.0), ("a c", 1.0), ("a d e", 0.0), ("b", 0.0))


def test_a_value_is_the_mean_over_rollouts_each_counted_once() -> None:
    found = values("rollouts", *RUNS)
    assert found["root"] == NodeValue(0.5, 3, (2 + 2 + 3 + 1) / 4)
    assert found["a"] == NodeValue(2 / 3, 2, pytest.approx((1 + 1 + 2) / 3))
    assert found["c"] == NodeValue(1.0, 1, 0.0)
    assert found["e"] == NodeValue(0.0, 1, 0.0)


def test_a_value_can_be_the_mean_of_the_children() -> None:
    found = values("children", *RUNS)
    assert found["a"].mean == pytest.approx((1.0 + 0.0) / 2)
    assert found["root"].mean == pytest.approx((0.5 + 0.0) / 2)
    assert found["a"].visits == 2, "leaves c and e, whatever the rule"
    assert found.siblings("a") == [found["b"]] and found.siblings("root") == []
