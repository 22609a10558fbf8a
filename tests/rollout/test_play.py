"""Episodes in a store: rewards of the environment become credit of turns."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.environments.protocol import Environment, Grade, Shared, State, Transition
from coterie.progress import Silent
from coterie.record.store import Store
from coterie.record.tree import FINAL_REWARD
from coterie.record.turn import Turn
from coterie.rollout.episodes import (
    DIALOGUES_PER_SLOT,
    ENVIRONMENT,
    REWARD,
    Driver,
    Episode,
)
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.runs.work_items import play
from tests.helpers.script_games import Rounds, Script

STAGE = "rollout"


def play_into(
    store: Store, game: Environment, samplers: Mapping[str, Script], episodes: Sequence[Episode]
) -> None:
    driver = Driver(game, samplers, seed=0, shared=Shared())
    asyncio.run(play(store, driver, episodes, Silent(), lambda: 0))


def episodes(game: Environment, tasks: int = 2, samples: int = 2) -> list[Episode]:
    drawn = game.tasks("train", tasks, 0)
    return [Episode(task, sample, 0, STAGE) for task in drawn for sample in range(samples)]


def credit(store: Store, actor: str = "agent", name: str = REWARD) -> dict[str, float]:
    return store.credit(ENVIRONMENT, f"{name}:{actor}", iteration=0, stage=STAGE)


def test_each_turn_that_was_rewarded_has_its_reward_and_no_other_turn(tmp_path: Path) -> None:
    game = Rounds()
    with Store.open(tmp_path / "store.sqlite") as store:
        script = Script(lambda prompt: prompt.agent)
        play_into(store, game, dict.fromkeys(game.actors, script), episodes(game))
        turns = [turn for tree in store.trees(0, STAGE) for turn in tree.turns.values()]
        last = [turn.id for turn in turns if turn.speaker.name == "Ben"]
        assert len(last) == len(set(last)) == 2 * 2 * 2, "in two rounds of four episodes"
        assert credit(store, "Ann") == credit(store, "Ben") == dict.fromkeys(last, 0.5)
        assert len(turns) == 2 * 2 * 6, "what the game says is no act"


def test_the_dialogues_in_flight_follow_the_width_of_the_engine(tmp_path: Path) -> None:
    begun = set[str]()

    class Narrow(Script):
        """A sampler that runs one request at a time."""

        width = 1

        async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
            begun.add(f"{prompt.tree.task} {prompt.draw}")
            await asyncio.sleep(0.001)
            return await super().respond(prompt, context)

    game = Rounds()
    ended, most = 0, 0

    async def test() -> None:
        nonlocal ended, most
        samplers = dict.fromkeys(game.actors, Narrow(lambda prompt: prompt.agent))
        driver = Driver(game, samplers, seed=0, shared=Shared())
        async with driver.play_all(episodes(game, tasks=1, samples=40)) as results:
            async for _ in results:
                most = max(most, len(begun) - ended)
                ended += 1

    asyncio.run(test())
    assert ended == 40 and most <= 2 * DIALOGUES_PER_SLOT


class Against(Rounds):
    """Ann's reward depends on what Ben says at the same time."""

    async def act(
        self, state: State, taken: tuple[Turn, ...], *args: Any, **named: Any
    ) -> Transition:
        transition = await super().act(state, taken, *args, **named)
        return replace(transition, rewards={"Ann": float(taken[1].text)})

    async def grade(self, state: State, session: Any) -> Grade:
        return Grade(1.0, rewards={"Ben": float(state.turns[1].text)})


def test_a_reward_belongs_to_all_that_is_said_at_the_same_time(tmp_path: Path) -> None:
    game = Against(rounds=1)

    class Same(Script):
        """The same turn in every sample."""

        async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
            return await super().respond(replace(prompt, draw=0), context)

    with Store.open(tmp_path / "store.sqlite") as store:
        samplers = {"Ann": Same(lambda _: "same"), "Ben": Script(lambda prompt: str(prompt.draw))}
        play_into(store, game, samplers, episodes(game, tasks=1, samples=3))
        assert not store.failures(0)
        (tree,) = store.trees(0, STAGE)
        (first,) = tree.children(tree.root)
        ben = {turn.id: float(turn.text) for turn in tree.children(first.id)}
        assert credit(store, "Ann") == ben and sorted(ben.values()) == [0, 1, 2]
        final = {outcome.leaf: float(path[1].text) for outcome, path in tree.trajectories()}
        assert credit(store, "Ben", FINAL_REWARD) == final
