"""Searches of trees: values, choice, merging and pairs by hand; whole searches on the real engine."""

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
from coterie.models.loading import LoadedModel, load
from coterie.record.tree import Credit, Outcome, Tree
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
    growth,
    node_values,
    path_tree,
)
from coterie.selection import PairSettings, sibling_pairs

AGENTS = ("Alice", "Bob")


def grown(*paths: str) -> tuple[Tree, dict[str, str]]:
    """A tree of utterances, each path written as texts with blanks between; and ids by text."""
    tree, ids = Tree("task", "rollout", 1), {}
    for path in paths:
        parent = tree.root
        for depth, text in enumerate(path.split()):
            turn = make_turn(parent, Speaker("agent", AGENTS[depth % 2]), [Part(text)])
            tree.add(turn)
            ids[text] = parent = turn.id
    return tree, ids


def rollout(number: int, start: str, leaf: str, reward: float) -> Rollout:
    return Rollout(0, number, start, leaf, reward)


# Root: a (to leaves c, d) and b (to leaf e). Rewards: c 1.0, d 0.4, e 0.1; c was reached twice.
def example() -> tuple[Tree, dict[str, str], list[Rollout]]:
    tree, ids = grown("a c", "a d", "b e")
    found = [("c", 1.0), ("d", 0.4), ("e", 0.1), ("c", 1.0)]
    return tree, ids, [rollout(n, tree.root, ids[x], r) for n, (x, r) in enumerate(found)]


def test_a_value_is_the_mean_over_the_rollouts_through_a_node() -> None:
    tree, ids, rollouts = example()
    failed = Rollout(1, 0, ids["a"], failure="out of context")
    values = node_values(tree, [*rollouts, failed])
    assert values[tree.root].visits == 4 and values[tree.root].mean == pytest.approx(2.5 / 4)
    assert values[ids["a"]].visits == 3 and values[ids["a"]].mean == pytest.approx(0.8)
    assert values[ids["b"]] == Value(0.1, 1)
    assert values[ids["c"]] == Value(1.0, 2)


def test_the_first_search_begins_at_the_root_and_so_does_one_with_no_other_choice() -> None:
    tree, _, rollouts = example()
    s = SearchSettings()
    assert choose(Tree("new", "rollout", 1), {}, [], s, Random(0)) == Tree("new", "rollout", 1).root
    # nothing but the root has grandchildren, and the root was chosen before
    assert choose(tree, node_values(tree, rollouts), [tree.root], s, Random(0)) == tree.root


LONG = ("alphabet f1 g1", "bucket f2 g2", "cannon f3 g3", "alphabex f4 g4")
"""Three utterances that differ, and one (distance 1 of 8 + 1 letters) nearly equal to the first."""


def chosen_share(chosen: Sequence[str], settings: SearchSettings) -> dict[str, float]:
    """How often each utterance is drawn."""
    tree, ids = grown(*LONG)
    rewards = {"g1": 1.0, "g2": 0.5, "g3": 0.0, "g4": 0.9}
    values = node_values(
        tree, [rollout(n, tree.root, ids[x], r) for n, (x, r) in enumerate(rewards.items())]
    )
    names = {i: text for text, i in ids.items()} | {tree.root: "root"}
    before = [tree.root, *(ids[text] for text in chosen)]
    draws = [names[choose(tree, values, before, settings, Random(i))] for i in range(2000)]
    return {name: draws.count(name) / len(draws) for name in set(draws)}


def test_a_node_is_drawn_by_softmax_of_its_value() -> None:
    share = chosen_share([], SearchSettings())
    weights = {"alphabet": 1.0, "bucket": 0.5, "cannon": 0.0, "alphabex": 0.9}
    total = sum(map(math.exp, weights.values()))
    assert share == {
        name: pytest.approx(math.exp(w) / total, abs=0.04) for name, w in weights.items()
    }


def test_only_the_best_are_drawn() -> None:
    assert set(chosen_share([], SearchSettings(best=2))) == {"alphabet", "alphabex"}


def test_what_was_chosen_and_what_is_near_it_is_left_out() -> None:
    # alphabet and alphabex: distance 1 / (8 + 1) = 0.11, below 0.25
    assert set(chosen_share(["alphabet"], SearchSettings())) == {"bucket", "cannon"}
    near = SearchSettings(choice_distance=0.1)  # now only what is equal is left out
    assert set(chosen_share(["alphabet"], near)) == {"bucket", "cannon", "alphabex"}
    assert set(chosen_share(["alphabet", "bucket", "cannon"], SearchSettings())) == {"root"}


def preferences(settings: PairSettings, **values: float) -> list[tuple[str, str]]:
    """Pairs (chosen, rejected) of a tree: root to w, x, y, z; w to p, q; by values of texts."""
    tree, ids = grown("w p", "w q", "x", "y", "z")
    found = sibling_pairs(tree, {ids[t]: Value(v, 1) for t, v in values.items()}, settings)
    return [(pair.chosen.text, pair.rejected.text) for pair in found]


EXAMPLE = {"w": 0.9, "x": 0.75, "y": 0.45, "z": 0.3, "p": 0.65, "q": 0.35}


def test_all_siblings_that_differ_enough_are_pairs_the_best_first() -> None:
    all_of_them = PairSettings(theta_filter=0.4, theta_diff=0.2, top_share=1.0)
    # not w over x (0.15), not y over z (0.15); z and q are not above 0.4
    assert preferences(all_of_them, **EXAMPLE) == [
        ("w", "z"), ("w", "y"), ("x", "z"), ("x", "y"), ("p", "q"),
    ]  # fmt: skip


def test_both_bounds_are_exclusive() -> None:
    rule = PairSettings(theta_filter=0.5, theta_diff=0.25, top_share=1.0)
    assert preferences(rule, x=0.5, y=0.0) == []
    assert preferences(rule, x=0.75, y=0.5) == []
    assert preferences(rule, x=0.75, y=0.25) == [("x", "y")]


def test_one_pair_of_each_parent_where_that_is_the_rule() -> None:
    rule = PairSettings(rule="best_worst", top_share=1.0)
    assert preferences(rule, **EXAMPLE) == [("w", "z"), ("p", "q")]


def test_the_top_share_of_a_task_is_rounded_down_but_one_pair_stays() -> None:
    assert len(preferences(PairSettings(top_share=0.5), **EXAMPLE)) == 2  # of 5
    assert preferences(PairSettings(top_share=0.5), w=0.9, z=0.1) == [("w", "z")]
    assert preferences(PairSettings(), w=0.9) == [], "one child alone has no sibling"


def test_the_gate_lets_only_right_utterances_be_chosen() -> None:
    tree, ids = grown("w", "x", "y")
    values = {ids["w"]: Value(0.9, 2), ids["x"]: Value(0.8, 2), ids["y"]: Value(0.1, 2)}
    score = {ids["w"]: 0.0, ids["x"]: 1.0, ids["y"]: 0.0}
    gated = sibling_pairs(
        tree, values, PairSettings(min_score=1.0, top_share=1.0), score.__getitem__
    )
    assert [(p.chosen.text, p.rejected.text) for p in gated] == [("x", "y")]


# -- whole searches ---------------------------------------------------------------------------


async def by_score(tree: Tree, outcomes: Sequence[Outcome]) -> list[Judgment]:
    """The answer's score, less a little for each token."""
    return [
        Judgment(o.score - sum(len(turn.ids) for turn in tree.path(o.leaf)) / 1000)
        for o in outcomes
    ]


@pytest.fixture(scope="module")
def tiny() -> LoadedModel:
    return load("tiny-exchange")


def talker(loaded: LoadedModel) -> TokenSampler:
    engine = InProcessEngine(loaded, policy="policy", version="0")
    return TokenSampler(
        engine, loaded.renderer.render, Sampling(0.9, 1.0, 48), loaded.context_length
    )


Steps = list[tuple[Tree, list[Rollout]]]


def search(
    sampler: TokenSampler,
    settings: SearchSettings,
    begun: tuple[Tree, Sequence[Rollout]] | None = None,
) -> tuple[TreeSearch, Steps]:
    """Grow a tree of the first training task; gives it as it was after each search."""
    environment = Exchange()
    (task,) = environment.tasks("train", 1, 3)
    tree, rollouts = begun or (Tree(task.id, "rollout", 1), ())
    samplers = dict.fromkeys(environment.actors, sampler)
    driver = Driver(environment, samplers, seed=0, shared=Shared())
    steps: Steps = []

    async def grow() -> TreeSearch:
        async with driver.sessions() as sessions:
            branches = driver.branches(task, tree, sessions)
            growing = TreeSearch(
                branches, by_score, samplers, growth(settings), rollouts=list(rollouts)
            )

            def record(tree: Tree, new: Sequence[Rollout], credit: Sequence[Credit]) -> None:
                leaves = [r.leaf for r in growing.rollouts if r.leaf is not None]
                steps.append((path_tree(tree, leaves), list(growing.rollouts)))

            await growing.grow(record)
            return growing

    return asyncio.run(grow()), steps


FEW = SearchSettings(searches=3, rollouts=3)


def test_every_rollout_ends_in_an_outcome_and_every_turn_is_where_it_was_sampled(
    tiny: LoadedModel,
) -> None:
    growing, _ = search(talker(tiny), FEW)
    tree = growing.tree
    assert len(growing.rollouts) == 9
    assert {r.leaf for r in growing.rollouts} == set(tree.outcomes)
    assert {turn.id for turn in tree.leaves()} == set(tree.outcomes), "no path leads nowhere"
    for turn in tree.turns.values():
        assert turn.sample is not None
        request = tree.requests[turn.sample.request]
        assert request.parent == turn.parent
        shown = tree.messages(request)
        rendered = tiny.renderer.render(shown, tree, turn.speaker.name)
        prompts = 0 if request.previous is None else len(_running(tree, request.previous))
        running = () if request.previous is None else _running(tree, request.previous)
        assert rendered == running[: request.keep] + request.ids, prompts
        assert [m.turn for m in shown[1:]] == [t.id for t in tree.path(turn.id)[:-1]]


def _running(tree: Tree, turn: str) -> tuple[int, ...]:
    sample = tree.turns[turn].sample
    assert sample is not None
    request = tree.requests[sample.request]
    before = () if request.previous is None else _running(tree, request.previous)
    return before[: request.keep] + request.ids + sample.ids


def test_a_search_that_was_cut_off_goes_on_alike(tiny: LoadedModel) -> None:
    whole, steps = search(talker(tiny), FEW)
    again, _ = search(talker(tiny), FEW, begun=steps[0])
    assert again.rollouts == whole.rollouts
    assert set(again.tree.turns) == set(whole.tree.turns)


@pytest.mark.parametrize("limit", [0.0, 0.1, 0.5])
def test_near_siblings_are_one(tiny: LoadedModel, limit: float) -> None:
    settings = SearchSettings(searches=2, rollouts=6, merge_distance=limit)
    growing, _ = search(talker(tiny), settings)
    assert len(growing.rollouts) == 12
    for node in (growing.tree.root, *growing.tree.turns):
        said = [turn.text for turn in growing.tree.children(node)]
        for later, text in enumerate(said):
            near = [Levenshtein.distance(text, old) / (len(text) + 1) for old in said[:later]]
            assert all(distance >= limit for distance in near)
