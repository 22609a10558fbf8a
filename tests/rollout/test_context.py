"""A dialogue that has outgrown the context ends, truncated, with what was said; where nothing was said it fails."""

import asyncio
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from coterie import api
from coterie.environments.protocol import Shared
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.record.store import Store
from coterie.record.tree import CONTEXT, Tree
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.positions import Position
from coterie.rollout.samplers import AgentContext, OutOfContext, Prompt, Response
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import TreeSearch, path_tree
from coterie.runs.work_items import play
from tests.helpers.play_scripts import finish_episodes
from tests.helpers.script_games import Counting, Script
from tests.rollout.test_branches import TASK, branches
from tests.rollout.test_grower import GrowthRule, ruled


class Short(Script):
    """Stands for a model whose context holds so many messages; of several ways to speak each says its number."""

    def __init__(self, say: Any, most: int) -> None:
        super().__init__(say)
        self.most = most

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        if len(prompt.messages) > self.most:
            raise OutOfContext("out of context: the dialogue is too long")
        return await super().respond(prompt, context)

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        return [await self.respond(prompt, context) for _ in seeds]


def test_a_path_that_outgrows_the_context_ends_truncated_and_is_graded(tmp_path: Path) -> None:
    async def play_with(most: int, store: Store) -> None:
        cast = {"agent": Short(lambda _: "1", most)}
        driver = Driver(Counting(), cast, seed=0, shared=Shared())
        await play(store, driver, [Episode(TASK, 0, 0, "evaluate")], Silent(), lambda: 0)

    with Store.open(tmp_path / "store.sqlite") as store:
        with pytest.raises(UserError, match="out of context"):
            asyncio.run(play_with(1, store))
        asyncio.run(play_with(3, store))
        ((outcome, path),) = next(store.trees(0, "evaluate")).trajectories()
    assert [turn.text for turn in path] == ["reach 6", "1", "now 1"]
    assert outcome.ending == CONTEXT and outcome.ending.truncated
    assert outcome.score == 0.0 and outcome.answer is None


@pytest.mark.parametrize("forks", [True, False])
def test_a_tree_keeps_such_paths_and_goes_on_from_the_store(forks: bool) -> None:
    def search(tree: Tree, kept: Any, **more: Any) -> TreeSearch:
        words = cycle("121")
        sampler: Any = Short(lambda _: next(words), 6)
        grown = branches(Counting(forks=forks), {"agent": sampler}, tree, kept)
        rule = GrowthRule(2, 3, lambda tree, *_: next(iter(tree.turns), tree.root))
        return ruled(grown, {"agent": sampler}, rule, **more)

    async def test() -> None:
        async with Sessions(4, 5.0) as kept:
            first = search(Tree("t", "rollout", 0), kept)
            first.searches = 1
            await first.grow(lambda *_: None)
            assert all(one.leaf is not None for one in first.rollouts)
            endings = {o.ending for o, _ in first.tree.trajectories()}
            assert CONTEXT in endings
            stored = path_tree(first.tree, list(first.tree.outcomes))
            again = search(stored, kept, rollouts=first.rollouts)
            for leaf in stored.outcomes:
                (at,) = await asyncio.gather(again.branches.position(leaf), return_exceptions=True)
                assert isinstance(at, Position)
                assert at.state.end == stored.outcomes[leaf].ending
                assert (await again.branches.grade(at)).score == stored.outcomes[leaf].score
            await again.branches.close()

    asyncio.run(test())


@pytest.mark.parametrize("name", ["gsm8k", "2wiki"])
def test_environments_grade_a_talk_that_was_cut_off_anywhere(name: str) -> None:
    game = api.environment(name, source="sample")
    (task,) = game.tasks("heldout", 1, 0)

    async def test() -> None:
        for most in range(2, 9):
            cast = dict.fromkeys(game.actors, Short(lambda p: f"<A>{p.draw}</A>", most))
            driver = Driver(game, cast, seed=0, shared=Shared())
            (result,) = await finish_episodes(driver, Episode(task, 0, 0, "evaluate"))
            assert result.tree is not None, result.failure
            (outcome,) = result.tree.outcomes.values()
            assert outcome.score is not None

    asyncio.run(test())
