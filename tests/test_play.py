"""Episodes that are played into a store: the rewards that their environment gave become credit of their turns."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from coterie.environments.protocol import Environment, Shared
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.rollout.driver import Driver
from coterie.rollout.episodes import Episode
from coterie.rollout.samplers import Prompt
from coterie.runs.play import ENVIRONMENT, REWARD, play
from coterie.trajectories.store import Store
from tests.games import Counting, Rounds, Script

STAGE = "rollout"


def play_into(store: Store, game: Environment, script: Script, episodes: Sequence[Episode]) -> None:
    """Play episodes; all actors say what the script gives."""
    driver = Driver(game, dict.fromkeys(game.actors, script), seed=0, shared=Shared())
    asyncio.run(play(store, driver, episodes, Silent(), lambda: 0))


def episodes(game: Environment, tasks: int = 2, samples: int = 2) -> list[Episode]:
    drawn = game.tasks("train", tasks, 0)
    return [Episode(task, sample, 0, STAGE) for task in drawn for sample in range(samples)]


def credit(store: Store) -> dict[str, float]:
    return store.credit(ENVIRONMENT, REWARD, iteration=0, stage=STAGE)


def test_each_turn_that_was_rewarded_has_its_reward_and_no_other_turn(tmp_path: Path) -> None:
    game = Rounds()
    with Store.open(tmp_path / "store.sqlite") as store:
        play_into(store, game, Script(lambda prompt: prompt.agent), episodes(game))
        turns = [turn for tree in store.trees(0, STAGE) for turn in tree.turns.values()]
        said = [turn.id for turn in turns if turn.speaker.name in game.actors]
        assert len(said) == len(set(said)) == 2 * 2 * 4, "of two players in two rounds"
        assert credit(store) == dict.fromkeys(said, 0.5)
        assert len(turns) == 2 * 2 * 6, "what the game says is no act"


def test_rewards_of_sessions_differ_by_turn_and_are_given_once(tmp_path: Path) -> None:
    def say(prompt: Prompt) -> str:
        return str(1 + prompt.draw + len(prompt.shown) // 4)

    game = Counting()
    with Store.open(tmp_path / "store.sqlite") as store:
        play_into(store, game, Script(say), episodes(game))
        turns = [turn for tree in store.trees(0, STAGE) for turn in tree.turns.values()]
        rewards = {turn.id: float(turn.text) for turn in turns if turn.speaker.name == "agent"}
        assert credit(store) == rewards and len(set(rewards.values())) > 2
        acts = game.acts
        play_into(store, game, Script(say), episodes(game))
        assert (credit(store), game.acts) == (rewards, acts), "what is written is not played again"


def test_an_episode_that_fails_leaves_no_credit_of_its_turns(tmp_path: Path) -> None:
    def say(prompt: Prompt) -> str:
        return "no number" if prompt.draw and len(prompt.shown) > 2 else "3"

    game = Counting()
    with Store.open(tmp_path / "store.sqlite") as store:
        play_into(store, game, Script(say), episodes(game, tasks=1))
        (tree,) = store.trees(0, STAGE)
        assert [outcome.sample for outcome in tree.outcomes.values()] == [0]
        assert len(store.failures(0)) == 1
        said = [turn.id for turn in tree.turns.values() if turn.speaker.name == "agent"]
        assert credit(store) == dict.fromkeys(said, 3.0) and len(said) == 2


def test_where_all_episodes_fail_nothing_is_written(tmp_path: Path) -> None:
    game = Counting()
    with Store.open(tmp_path / "store.sqlite") as store:
        with pytest.raises(UserError, match="all 4 dialogues failed"):
            play_into(store, game, Script(lambda _: "no number"), episodes(game))
        assert not credit(store) and not list(store.trees(0, STAGE))
