"""Searches of trees: values and choice by hand; a whole search on the real engine."""

import asyncio
import math
from collections.abc import Sequence
from random import Random

import pytest
from rapidfuzz.distance import Levenshtein

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.exchange import Exchange
from coterie.environments.protocol import Shared
from coterie.models.loading import load
from coterie.record.tree import Outcome, Tree
from coterie.record.turn import Part, Speaker, make_turn
from coterie.rollout.episodes import Driver
from coterie.rollout.samplers import TokenSampler
from coterie.rollout.tree_search import (
    Judgment,
    Rollout,
    SearchSettings,
    TreeSearch,
    Value,
    choose,
    node_values,
)


def grown(*paths: str) -> tuple[Tree, dict[str, str]]:
    """A tree of utterances, each path written as texts with blanks between; and ids by text."""
    tree, ids = Tree("task", "rollout", 1), {}
    for path in paths:
        parent = tree.root
        for depth, text in enumerate(path.split()):
            turn = make_turn(parent, Speaker("agent", ("Alice", "Bob")[depth % 2]), [Part(text)])
            tree.add(turn)
            ids[text] = parent = turn.id
    return tree, ids


def test_a_value_is_the_mean_over_the_rollouts_through_a_node() -> None:
    tree, ids = grown("a c", "a d", "b e")
    rewards = [("c", 1.0), ("d", 0.4), ("e", 0.1), ("c", 1.0)]
    rollouts = [Rollout(0, n, tree.root, ids[x], r) for n, (x, r) in enumerate(rewards)]
    failed = Rollout(1, 0, ids["a"], failure="out of context")
    values = node_values(tree, [*rollouts, failed])
    assert values[tree.root].visits == 4 and values[tree.root].mean == pytest.approx(2.5 / 4)
    assert values[ids["a"]].visits == 3 and values[ids["a"]].mean == pytest.approx(0.8)
    assert (values[ids["b"]], values[ids["c"]]) == (Value(0.1, 1), Value(1.0, 2))
    # The first search begins at the root, and so does one with no other choice: no node has a grandchild.
    rule, new = SearchSettings(), Tree("new", "rollout", 1)
    assert choose(new, {}, [], rule, Random(0)) == new.root
    assert choose(tree, values, [tree.root], rule, Random(0)) == tree.root


LONG = ("alphabet f1 g1", "bucket f2 g2", "cannon f3 g3", "alphabex f4 g4")
"""Three utterances that differ, and one (distance 1 of 8 + 1 letters) nearly equal to the first."""


def chosen_share(chosen: Sequence[str], settings: SearchSettings) -> dict[str, float]:
    """How often each utterance is drawn."""
    tree, ids = grown(*LONG)
    rewards = {"g1": 1.0, "g2": 0.5, "g3": 0.0, "g4": 0.9}
    rollouts = [Rollout(0, n, tree.root, ids[x], r) for n, (x, r) in enumerate(rewards.items())]
    values = node_values(tree, rollouts)
    names = {i: text for text, i in ids.items()} | {tree.root: "root"}
    before = [tree.root, *(ids[text] for text in chosen)]
    draws = [names[choose(tree, values, before, settings, Random(i))] for i in range(2000)]
    return {name: draws.count(name) / len(draws) for name in set(draws)}


def test_a_node_is_drawn_by_softmax_of_its_value() -> None:
    weights = {"alphabet": 1.0, "bucket": 0.5, "cannon": 0.0, "alphabex": 0.9}
    total = sum(map(math.exp, weights.values()))
    shares = {name: pytest.approx(math.exp(w) / total, abs=0.04) for name, w in weights.items()}
    assert chosen_share([], SearchSettings()) == shares


@pytest.mark.parametrize(
    ("before", "settings", "drawn"),
    [
        ([], {"best": 2}, {"alphabet", "alphabex"}),
        # alphabet and alphabex: distance 1 / (8 + 1) = 0.11, below 0.25
        (["alphabet"], {}, {"bucket", "cannon"}),
        (["alphabet"], {"choice_distance": 0.1}, {"bucket", "cannon", "alphabex"}),
        (["alphabet", "bucket", "cannon"], {}, {"root"}),
    ],
)
def test_only_the_best_that_are_not_near_earlier_starts_are_drawn(
    before: list[str], settings: dict[str, float], drawn: set[str]
) -> None:
    assert set(chosen_share(before, SearchSettings.model_validate(settings))) == drawn


async def by_score(tree: Tree, outcomes: Sequence[Outcome]) -> list[Judgment]:
    """The answer's score, less a little for each token."""
    tokens = [sum(len(turn.ids) for turn in tree.path(one.leaf)) for one in outcomes]
    return [Judgment(o.score - n / 1000) for o, n in zip(outcomes, tokens, strict=True)]


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_every_rollout_ends_every_turn_is_where_it_was_sampled_and_near_siblings_are_one(
    limit: float,
) -> None:
    loaded, environment = load("tiny-exchange"), Exchange()
    engine = InProcessEngine(loaded, policy="policy", version="0")
    sampling, renderer = Sampling(0.9, 1.0, 48), loaded.renderer
    sampler = TokenSampler(engine, renderer.render, sampling, loaded.context_length)
    (task,) = environment.tasks("train", 1, 3)
    samplers = dict.fromkeys(environment.actors, sampler)
    driver = Driver(environment, samplers, seed=0, shared=Shared())
    settings = SearchSettings(searches=2, rollouts_per_search=6, merge_distance=limit)

    async def grow() -> TreeSearch:
        async with driver.sessions() as sessions:
            branches = driver.branches(task, Tree(task.id, "rollout", 1), sessions)
            search = TreeSearch(branches, by_score, samplers, settings)
            await search.grow(lambda *_: None)
            return search

    search = asyncio.run(grow())
    tree = search.tree
    assert len(search.rollouts) == 12
    assert {r.leaf for r in search.rollouts} == set(tree.outcomes)
    assert {turn.id for turn in tree.leaves()} == set(tree.outcomes), "no path leads nowhere"
    for turn in tree.turns.values():
        assert turn.sample is not None
        request = tree.requests[turn.sample.request]
        assert request.parent == turn.parent
        messages = tree.messages(request)
        running = () if request.previous is None else running_ids(tree, request.previous)
        rendered = renderer.render(messages, tree, turn.speaker.name)
        assert rendered == running[: request.keep] + request.ids
        assert [m.turn for m in messages[1:]] == [t.id for t in tree.path(turn.id)[:-1]]
    for node in (tree.root, *tree.turns):
        texts = [turn.text for turn in tree.children(node)]
        for later, text in enumerate(texts):
            near = [Levenshtein.distance(text, old) / (len(text) + 1) for old in texts[:later]]
            assert all(distance >= limit for distance in near)


def running_ids(tree: Tree, turn: str) -> tuple[int, ...]:
    sample = tree.turns[turn].sample
    assert sample is not None
    request = tree.requests[sample.request]
    before = () if request.previous is None else running_ids(tree, request.previous)
    return before[: request.keep] + request.ids + sample.ids
