"""Searches of games: observations, players who act at the same time, sessions, merged turns, and what fails alone."""

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.protocol import Environment, Grade, State
from coterie.record.store import Store
from coterie.record.tree import ItemKey, Outcome, Tree
from coterie.record.turn import Turn
from coterie.rollout.branches import Branches
from coterie.rollout.positions import context_at
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import (
    Judgment,
    Merge,
    Rollout,
    SearchSettings,
    TreeSearch,
    never_merge,
    path_tree,
)
from tests.helpers.script_games import Counting, Rounds, Script
from tests.rollout.test_branches import branches


@dataclass
class Candidates(Script):
    """A script that gives several ways to go on, each by its seed."""

    seeds: list[int] = field(default_factory=list)

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        self.seeds += seeds
        return [await self.respond(replace(prompt, seed=seed), context) for seed in seeds]


def drawn(*words: str) -> Candidates:
    """Says one of these words, by the seed."""
    return Candidates(lambda prompt: words[prompt.seed % len(words)])


async def by_score(tree: Tree, outcomes: Sequence[Outcome]) -> list[Judgment]:
    """The score, less a little for each turn."""
    return [Judgment((one.score or 0.0) - len(tree.path(one.leaf)) / 100) for one in outcomes]


def anywhere(tree: Tree, rollouts: Sequence[Rollout], nodes: Container[str], rng: Random) -> str:
    """The root, or a node at which the environment has spoken and somebody acted then."""
    spoken = (t.id for t in tree.turns.values() if t.speaker.kind == "environment")
    return rng.choice([tree.root, *sorted(node for node in spoken if tree.children(node))])


@dataclass(frozen=True)
class GrowthRule:
    """Number of searches and rollouts, choice of the start node, and merging."""

    searches: int
    rollouts: int
    choose: Callable[[Tree, Sequence[Rollout], Container[str], Random], str]
    merge: Merge = never_merge


def ruled(own: Branches, samplers: Mapping[str, Any], rule: GrowthRule, **more: Any) -> TreeSearch:
    settings = SearchSettings(searches=rule.searches, rollouts_per_search=rule.rollouts)
    search = TreeSearch(own, by_score, samplers, settings, **more)
    search.choose_start = lambda rng: rule.choose(search.tree, search.rollouts, own.nodes(), rng)  # type: ignore[method-assign]
    search.grower.merge = rule.merge
    return search


def grow(
    game: Environment,
    samplers: Mapping[str, Candidates],
    rule: GrowthRule,
    begun: tuple[Tree, Sequence[Rollout]] | None = None,
    *,
    sessions: int = 100,
    seconds: float = 5.0,
) -> TreeSearch:
    """A whole search of the task of ``tests.rollout.test_branches``."""
    tree, rollouts = begun or (Tree("t", "rollout", 0), ())

    async def run() -> TreeSearch:
        async with Sessions(sessions, seconds) as kept:
            own = branches(game, dict(samplers), tree, kept, seconds)
            grown = ruled(own, samplers, rule, rollouts=list(rollouts))
            await grown.grow(lambda *_: None)
            return grown

    return asyncio.run(run())


def agent(*words: str) -> dict[str, Candidates]:
    return {"agent": drawn(*words)}


STEPS = ("0", "1", "2", "3")
REASON = "no reward: the dialogue could not be graded"
RULE = GrowthRule(6, 4, anywhere)


def whole(grown: TreeSearch) -> None:
    """Every rollout has an end, and no path of the tree leads nowhere."""
    assert {one.leaf for one in grown.rollouts} == set(grown.tree.outcomes)
    assert {turn.id for turn in grown.tree.leaves()} == set(grown.tree.outcomes)
    for one in grown.rollouts:
        assert one.leaf is not None
        path = [turn.id for turn in grown.tree.path(one.leaf)]
        assert one.start in (grown.tree.root, *path) and one.reward is not None


def test_what_a_game_says_follows_what_was_done_on_every_path() -> None:
    game = Counting()
    grown = grow(game, agent(*STEPS), RULE)
    whole(grown)
    assert len(grown.rollouts) == 24 and len({one.start for one in grown.rollouts}) > 3
    for leaf in grown.tree.outcomes:
        first, *path = grown.tree.path(leaf)
        numbers = [int(turn.text) for turn in path[::2]]
        sums = [f"now {sum(numbers[: n + 1])}" for n in range(len(numbers))]
        assert first.text == "reach 6" and [turn.text for turn in path[1::2]] == sums
        assert grown.tree.outcomes[leaf].score == float(sum(numbers) >= 6)
    assert game.live == 0


def test_every_turn_of_every_rollout_is_drawn_by_a_seed_of_its_own() -> None:
    cast = {name: drawn(name) for name in ("Ann", "Ben")}
    grow(Rounds(rounds=2), cast, GrowthRule(3, 4, lambda tree, *_: tree.root))
    seeds = [*cast["Ann"].seeds, *cast["Ben"].seeds]
    assert len(seeds) == len(set(seeds)) == 2 * 2 * 3 * 4


def test_a_search_grows_the_same_tree_with_forks_and_with_replay() -> None:
    games = (Counting(), Counting(forks=False), Counting())
    forked, replayed, bounded = (
        grow(game, agent(*STEPS), RULE, sessions=sessions)
        for game, sessions in zip(games, (100, 100, 1), strict=True)
    )
    assert forked.tree == replayed.tree == bounded.tree
    assert forked.rollouts == replayed.rollouts == bounded.rollouts
    assert forked.branches.sessions.forked and not replayed.branches.sessions.forked
    assert forked.branches.replays < replayed.branches.replays
    assert bounded.branches.sessions.closed_early and games[2].most == 1
    assert [game.live for game in games] == [0, 0, 0]


def same_number(turn: Turn, siblings: Sequence[Turn]) -> Turn | None:
    """Spaces do not count."""
    return next((one for one in siblings if one.text.strip() == turn.text.strip()), None)


@pytest.mark.parametrize("forks", [True, False])
def test_a_merged_turn_goes_on_from_its_sibling(forks: bool) -> None:
    def search(merge: Merge) -> tuple[TreeSearch, Counting, Candidates]:
        game, cast = Counting(forks=forks), agent("3", "3 ", " 3")
        rule = GrowthRule(1, 6, lambda tree, *_: tree.root, merge)
        return grow(game, cast, rule), game, cast["agent"]

    (merged, game, script), (apart, *_) = search(same_number), search(never_merge)
    whole(merged)
    assert len(merged.tree.turns) == 5, "what was merged is one path"
    first, turn, answer, last, end = merged.tree.turns.values()
    assert {one.leaf for one in merged.rollouts} == {end.id}
    assert [first.text, answer.text, end.text] == ["reach 6", "now 3", "now 6"]
    assert game.acts == 2, "the environment is not asked again"
    after = [shown for shown in script.shown or () if len(shown) > 2]
    assert {shown[2] for shown in after} == {turn.text}, "it goes on from what the tree says"
    lengths = {one.sampled for one in merged.rollouts}
    assert len(lengths) > 1 and min(lengths) >= 2, "what was sampled counts, not what it became"
    assert [one.sampled for one in merged.rollouts] == [one.sampled for one in apart.rollouts]
    assert len(apart.tree.turns) > 5 and last.parent == answer.id


class Breaking(Candidates):
    """An engine that gives up where the number is 3."""

    error: type[EngineError] = EngineError

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        if prompt.tree.turns[prompt.parent].text == "now 3":
            raise self.error("the server went away")
        return await super().candidates(prompt, context, seeds, draws)


FAULTS: dict[str, tuple[Callable[[Candidates], Candidates], str]] = {
    "engine": (lambda script: Breaking(script.say), "the server went away"),
    "environment": (
        lambda script: Candidates(lambda p: script.say(p).replace("3", "x")),
        "Counting failed with ValueError",
    ),
    "time": (lambda script: script, "did not end within 0.2 seconds"),
}


@pytest.mark.parametrize("forks", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_rollout_that_fails_is_recorded_and_the_others_go_on(fault: str, forks: bool) -> None:
    game = Counting(forks=forks)
    if fault == "time":
        game.hang.add("3")
    broken, expected = FAULTS[fault]
    cast = {"agent": broken(drawn(*STEPS))}
    grown = grow(game, cast, GrowthRule(4, 6, anywhere), seconds=0.2)
    failed = [one for one in grown.rollouts if one.leaf is None]
    assert 0 < len(failed) < 24 and len(grown.rollouts) == 24
    assert all(expected in str(one.failure) for one in failed)
    assert all(one.reward is not None for one in grown.rollouts if one.leaf is not None)
    assert grown.tree == path_tree(grown.tree, [*grown.tree.outcomes]), "no half paths"
    assert game.live == 0


def test_an_engine_that_is_gone_ends_the_search_and_closes_its_sessions() -> None:
    game, script = Counting(), Breaking(drawn(*STEPS).say)
    script.error = EngineGone
    with pytest.raises(EngineGone):
        grow(game, {"agent": script}, RULE)
    assert game.live == 0


def test_a_path_that_cannot_be_graded_is_lost_alone() -> None:
    class Ungraded(Counting):
        lost = tuple(f"now {number}" for number in range(9))

        async def grade(self, state: State, session: Any) -> Grade:
            if state.turns[-1].text in self.lost:
                return Grade(None)
            return await super().grade(state, session)

    none = grow(game := Ungraded(), agent(*STEPS), GrowthRule(1, 4, anywhere))
    assert {one.failure for one in none.rollouts} == {REASON} and none.tree.outcomes == {}
    game.lost = ("now 7",)
    grown = grow(game, agent(*STEPS), RULE)
    every = grow(Counting(), agent(*STEPS), replace(RULE, searches=1))
    lost = [one for one in grown.rollouts if one.leaf is None]
    kept = [one for one in grown.rollouts if one.leaf is not None]
    assert {one.search for one in lost} & {one.search for one in kept}, "of one search"
    assert {(one.failure, one.reward) for one in lost} == {(REASON, None)}
    for one, alone in zip(grown.rollouts, every.rollouts, strict=False):
        assert one.sampled == alone.sampled and one.leaf in (alone.leaf, None)
    leaves = {one.leaf for one in kept if one.reward is not None}
    assert {turn.id for turn in grown.tree.leaves()} == set(grown.tree.outcomes) == leaves


def stored(path: Path, grown: TreeSearch, searches: int) -> tuple[Tree, list[Rollout]]:
    rollouts = [one for one in grown.rollouts if one.search < searches]
    with Store.open(path / "store.sqlite") as store:
        for one in rollouts:
            assert one.leaf is not None
            key = ItemKey(0, "rollout", "t", f"{one.search:03d}/{one.number:02d}")
            store.finish(key, tree=path_tree(grown.tree, [one.leaf]))
        return store.tree(0, "rollout", "t"), rollouts


@pytest.mark.parametrize("forks", [True, False])
def test_a_search_of_a_tree_from_a_store_goes_on_alike(tmp_path: Path, forks: bool) -> None:
    every = grow(Counting(forks=forks), agent(*STEPS), RULE)
    script = agent(*STEPS)
    again = grow(Counting(forks=forks), script, RULE, stored(tmp_path, every, 3))
    assert again.rollouts == every.rollouts
    assert again.tree.turns == every.tree.turns and again.tree.outcomes == every.tree.outcomes
    first = grow(Counting(forks=forks), before := agent(*STEPS), replace(RULE, searches=3))
    assert first.rollouts == every.rollouts[:12]
    assert not {*script["agent"].seeds} & {*before["agent"].seeds}, "nothing is asked again"


async def say(grown: Branches, at: Any, text: str) -> Any:
    prompt = grown.prompt(at, "agent", 0, 0)
    response = await Candidates(lambda _: text).respond(
        prompt, context_at(grown.environment, at, "agent", prompt.messages)
    )
    return await grown.advance(at, [response], others_follow=True)


def test_a_pruned_tree_goes_on_and_what_stood_elsewhere_is_closed() -> None:
    async def check() -> None:
        game = Counting()
        async with Sessions(100, 5.0) as kept:
            own = branches(game, dict(agent("1")), Tree("t", "rollout", 0), kept)
            start = await own.start()
            one, two = await say(own, start, "1"), await say(own, start, "2")
            three = await say(own, one, "3")
            assert (game.live, game.acts) == (4, 3)
            await own.prune(path_tree(own.tree, [one.node]))
            assert game.live == 2 and {t.text for t in own.tree.turns.values()} == {
                "reach 6", "1", "now 1",
            }  # fmt: skip
            assert await own.start() is start and await own.position(one.node) is one
            again = await say(own, one, "3")
            assert again.state == three.state and again is not three and game.acts == 4
            assert (await say(own, start, "2")).state == two.state and game.acts == 5
        assert game.live == 0

    asyncio.run(check())
