"""Faults of environments: refused before the run, or a failure of their own item."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from coterie.engines.protocol import EngineError
from coterie.environments.protocol import (
    Environment,
    Grade,
    Observation,
    Shared,
    State,
    Transition,
    messages_of,
)
from coterie.errors import UserError
from coterie.record.tree import Ending, Task
from coterie.record.turn import Finish, Part, Speaker, ToolCall, Turn
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import AgentContext, Prompt, Response
from tests.helpers.play_scripts import finish_episodes
from tests.helpers.script_games import GAME, Asking, Base, Rounds, Script

OVER = Ending("over")
ONE = {"agent": Script(lambda _: "1")}


def driver(game: Any, samplers: Mapping[str, Any] = ONE) -> Driver:
    return Driver(game, samplers, seed=0, shared=Shared(), seconds=1.0)


def play(
    game: Environment, samples: int = 2, samplers: Mapping[str, Any] = ONE
) -> list[EpisodeResult]:
    tasks = [Task(f"t{number}", {"target": 3}) for number in range(samples)]
    episodes = [Episode(one, number, 0, "rollout") for number, one in enumerate(tasks)]
    try:
        return asyncio.run(asyncio.wait_for(finish_episodes(driver(game, samplers), *episodes), 20))
    except asyncio.CancelledError:
        pytest.fail("the fault of an item ended the run")


def failures(game: Environment) -> list[str]:
    return [one.failure or "" for one in play(game)]


class Fine(Base):
    async def act(self, *_: Any, **__: Any) -> Transition:
        return Transition(end=OVER)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"limits": {"turns:Bob": 3}}, "has a limit of 'turns:Bob'"),
        ({"actors": {"agent": "policy"}}, "has actors of the kinds policy"),
        ({"limits": {"tokens": 3}}, "has a limit of 'tokens'"),
        ({"needs": (Task,)}, "needs a Task, which this run does not have"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_an_environment_that_cannot_work_is_refused(changed: dict[str, Any], reason: str) -> None:
    game = Fine()
    for name, value in changed.items():
        setattr(game, name, value)
    with pytest.raises(UserError, match=reason):
        driver(game)


@dataclass
class Board:
    moves: int = 0


class Mutable(Base):
    def __init__(self, data: object) -> None:
        self.data = data

    async def act(self, *_: Any, **__: Any) -> Transition:
        return Transition(self.data, end=OVER)


class Anything:
    """An object without values of its own."""


@pytest.mark.parametrize("data", [[1], (1, [2]), Board(), Anything()])
def test_data_that_can_be_changed_fails_its_item(data: object) -> None:
    assert failures(Mutable((1, frozenset({2}), None))) == ["", ""]
    assert all("the state's data is not frozen" in one for one in failures(Mutable(data)))


class Odd(Base):
    """A game whose act does something odd."""

    def __init__(self, does: str) -> None:
        self.does = does

    async def act(self, *_: Any, **__: Any) -> Any:
        if self.does == "cancelled":
            waiting = asyncio.get_running_loop().create_future()
            waiting.cancel()
            await waiting
        if self.does == "half":
            return Transition(seen=(Observation(GAME, (Part("\ud800"),)),), end=OVER)
        rewards = {"stranger": {"agnet": 1.0}, "nan": {"agent": float("nan")}}.get(self.does, {})
        return None if self.does == "none" else Transition(end=OVER, rewards=rewards)

    async def begin(self, task: Task, session: Any) -> Transition:
        return Transition(end=OVER if self.does == "ended" else None)

    def next_actors(self, state: State) -> Any:
        return {"actor": 1, "stranger acts": ("agnet",)}.get(self.does, super().next_actors(state))

    async def grade(self, state: State, session: Any) -> Any:
        grades: dict[str, Any] = {
            "no grade": 1.0,
            "score": Grade(float("inf")),
            "percent": Grade(70),
            "graded": Grade(1.0, rewards={"agnet": 1.0}),
        }
        return grades.get(self.does, Grade(1.0))


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("ended", "ended before any actor acted"),
        ("none", f"Odd.act() returned None. Return a Transition ({__file__}, line "),
        ("cancelled", "an act awaited a task that was cancelled"),
        ("half", "half a character"),
        ("stranger", "for 'agnet', who did not act; give it in Grade(score, metrics, rewards)"),
        ("nan", "the reward of 'agent' is nan"),
        ("no grade", f"Odd.grade() returned 1.0. Return a Grade ({__file__}, line "),
        ("score", "the score is inf"),
        ("percent", "Odd.grade() returned 70. Return a score from 0 to 1, or declare score_range"),
        ("graded", f"the grade gives 'agnet' 1.0 ({__file__}, line "),
        (
            "actor",
            "Odd.next_actors() returned 1. Return a tuple of one or more different actors of",
        ),
        ("stranger acts", f"of agent ({__file__}, line "),
    ],
)
def test_a_wrong_return_fails_its_item(does: str, reason: str) -> None:
    assert [reason in one for one in failures(Odd(does))] == [True, True], failures(Odd(does))


def test_see_may_return_dicts_and_a_declared_range_of_scores_is_scaled() -> None:
    class Percent(Fine):
        score_range = (-100, 100)

        def observe(self, state: State, actor: str) -> Any:
            return [{"role": "user", "content": "Count."}]

        async def grade(self, state: State, session: Any) -> Grade:
            return Grade(50)

    class Text(Fine):
        def observe(self, state: State, actor: str) -> Any:
            return [{"role": "robot", "content": "Count."}]

    class Repeats(Fine):
        def observe(self, state: State, actor: str) -> Any:
            own = [{"role": "assistant", "content": turn.text} for turn in state.turns
                   if turn.speaker.name == actor]  # fmt: skip
            return [{"role": "user", "content": "Count."}, *own]

    turns = (Turn("1", "0", Speaker("agent", "agent"), (Part("one"),)),)
    shown = messages_of(Repeats(), State(Task("t", {}), 0, turns=turns), "agent")
    assert shown[1].turn == "1" and not shown[1].parts, "its own text stands for its tokens"
    for one in play(Percent()):
        assert one.failure is None and one.tree is not None
        assert [outcome.score for outcome in one.tree.outcomes.values()] == [0.75]
    assert all("Text.observe() returned {'role': 'robot'" in one for one in failures(Text()))


def test_a_syntax_that_breaks_fails_its_item() -> None:
    class Broken:
        stop: tuple[str, ...] = ()

        def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
            raise KeyError(text)

    class Misnamed(Broken):
        def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
            return (ToolCall("call_7", "look", "{}"),)

    for syntax, reason in ((Broken(), "KeyError"), (Misnamed(), "c0, c1")):
        game = Asking()
        game.syntax = syntax
        assert all(reason in one for one in failures(game))


def test_a_response_that_fails_ends_those_beside_it() -> None:
    ended: list[str] = []

    class Slow(Script):
        async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(prompt.agent)
            return await super().respond(prompt, context)

    class Fails(Script):
        async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
            raise EngineError("no answer")

    samplers = {"Ann": Slow(lambda _: ""), "Ben": Fails(lambda _: "")}
    (one,) = play(Rounds(), samples=1, samplers=samplers)
    assert one.failure == "no answer" and ended == ["Ann"]


def test_turns_are_recorded_in_the_order_of_actors_with_their_kinds() -> None:
    class Backwards(Rounds):
        def next_actors(self, state: State) -> tuple[str, ...]:
            return ("Ben", "Ann")

    samplers = dict.fromkeys(("Ann", "Ben"), Script(lambda _: "x"))
    (one,) = play(Backwards(1), samples=1, samplers=samplers)
    assert one.tree is not None
    speakers = [(turn.speaker.name, turn.speaker.kind) for turn in one.tree.turns.values()]
    assert speakers == [("Ann", "agent"), ("Ben", "person"), ("game", "environment")]
