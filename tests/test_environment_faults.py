"""What environments do wrong: refused before the run, or a failure of the item that meets it, and of no other."""

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
from coterie.record.turn import Finish, Part, Speaker, Tool, ToolCall, Turn
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import AgentContext, Prompt, Response
from tests.games import GAME, Asking, Base, Rounds, Script

OVER = Ending("over")
ONE = {"agent": Script(lambda _: "1")}


def driver(game: Any, shared: Shared | None = None, samplers: Mapping[str, Any] = ONE) -> Driver:
    return Driver(game, samplers, seed=0, shared=shared or Shared(), seconds=1.0)


def play(game: Environment, task: str | None = None, samples: int = 2) -> list[EpisodeResult]:
    async def run() -> list[EpisodeResult]:
        tasks = [Task(task or f"t{number}", {"target": 3}) for number in range(samples)]
        episodes = [Episode(one, number, 0, "rollout") for number, one in enumerate(tasks)]
        async with driver(game).play_all(episodes) as playing:
            return [one async for one in playing]

    try:
        return asyncio.run(asyncio.wait_for(run(), 20))
    except asyncio.CancelledError:
        pytest.fail("the fault of an item ended the run")


class Fine(Base):
    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        return Transition(end=OVER)


def without(name: str) -> Any:
    """A game that lacks something."""
    plain = {**vars(Base), **vars(Fine)}
    return type("Broken", (), {k: v for k, v in plain.items() if k[:2] != "__" and k != name})()


@pytest.mark.parametrize("name", ["metric", "max_sessions", "grade", "tools", "act"])
def test_an_environment_that_lacks_something_is_refused(name: str) -> None:
    driver(without("nothing"))
    with pytest.raises(UserError, match=f"the environment Broken has no {name}"):
        driver(without(name))


def sync(*_: object, **__: object) -> Transition:
    return Transition()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"limits": {"turns:Bob": 3}}, "has a limit of 'turns:Bob'"),
        ({"actors": {"agent": "policy"}}, "has actors of the kinds policy"),
        ({"limits": {"tokens": 3}}, "has a limit of 'tokens'"),
        ({"needs": (Task,)}, "needs a Task, which this run does not have"),
        ({"act": sync}, "has a method act of the wrong kind"),
        ({"act": None}, "has a method act of the wrong kind"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_an_environment_that_cannot_work_is_refused(changed: dict[str, Any], reason: str) -> None:
    game = Fine()
    for name, value in changed.items():
        setattr(game, name, value)
    with pytest.raises(UserError, match=reason):
        driver(game)


def test_what_an_environment_needs_is_found_in_what_is_shared() -> None:
    game, script = Fine(), Script(lambda _: "")
    game.needs = (Script,)
    driver(game, Shared(script))
    with pytest.raises(ValueError, match="two resources of one class"):
        Shared(script, script)


@dataclass
class Board:
    moves: int = 0


class Mutable(Base):
    def __init__(self, data: object) -> None:
        self.data = data

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        return Transition(self.data, end=OVER)


class Anything:
    """An object without values of its own."""


@pytest.mark.parametrize("data", [[1], {"a": 1}, (1, [2]), Board(), Anything()])
def test_data_that_can_be_changed_fails_its_item(data: object) -> None:
    assert {one.failure for one in play(Mutable((1, frozenset({2}), None)))} == {None}
    for one in play(Mutable(data)):
        assert "the state's data is not frozen" in (one.failure or "")


class Odd(Base):
    """A game whose act does something odd."""

    def __init__(self, does: str) -> None:
        self.does = does

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Any:
        if self.does == "cancelled":
            waiting = asyncio.get_running_loop().create_future()
            waiting.cancel()
            await waiting
        if self.does == "time":
            raise TimeoutError("the game's own limit")
        if self.does == "half":
            return Transition(seen=(Observation(GAME, (Part("\ud800"),)),), end=OVER)
        rewards = {"stranger": {"agnet": 1.0}, "nan": {"agent": float("nan")}}.get(self.does, {})
        return None if self.does == "none" else Transition(end=OVER, rewards=rewards)

    def acting(self, state: State) -> Any:
        return {"actor": 1, "stranger acts": ("agnet",)}.get(self.does, super().acting(state))

    async def grade(self, state: State, live: Any) -> Any:
        grades: dict[str, Any] = {
            "no grade": 1.0,
            "score": Grade(float("inf")),
            "percent": Grade(70),
            "word": Grade("good"),  # type: ignore[arg-type]
            "no reward": Grade(1.0, rewards={"agent": None}),  # type: ignore[dict-item]
            "graded": Grade(1.0, rewards={"agnet": 1.0}),
        }
        return grades.get(self.does, Grade(1.0))


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("none", f"Odd.act() returned None. Return a Transition ({__file__}, line "),
        ("cancelled", "an act awaited a task that was cancelled"),
        ("time", "TimeoutError: the game's own limit"),
        ("half", "half a character"),
        ("stranger", "a reward is for 'agnet', who did not act"),
        ("nan", "the reward of 'agent' is nan"),
        ("no grade", f"Odd.grade() returned 1.0. Return a Grade ({__file__}, line "),
        ("score", "the score is inf"),
        ("percent", "Odd.grade() returned 70. Return a score from 0 to 1, or declare score_range"),
        ("word", "must be real number, not str"),
        ("no reward", "must be real number, not NoneType"),
        ("graded", f"the grade gives 'agnet' 1.0 ({__file__}, line "),
        ("actor", "Odd.acting() returned 1. Return a tuple of one or more different actors of"),
        ("stranger acts", f"of agent ({__file__}, line "),
    ],
)
def test_what_an_environment_should_not_do_fails_its_item(does: str, reason: str) -> None:
    failures = [one.failure or "" for one in play(Odd(does))]
    assert len(failures) == 2 and all(reason in one for one in failures), failures


def test_an_act_that_does_not_take_its_arguments_is_named_with_its_place() -> None:
    class Plain(Base):
        async def act(self, state: State, taken: tuple[Turn, ...], live: Any) -> Any: ...

    reason = f"Plain.act() got an unexpected keyword argument 'recorded' ({__file__}, line "
    assert all(reason in (one.failure or "") for one in play(Plain()))


def test_see_may_return_dicts_and_a_declared_range_of_scores_is_scaled() -> None:
    class Percent(Fine):
        score_range = (-100, 100)

        def see(self, state: State, actor: str) -> Any:
            return [{"role": "user", "content": "Count."}]

        async def grade(self, state: State, live: Any) -> Grade:
            return Grade(50)

    class Text(Fine):
        def see(self, state: State, actor: str) -> Any:
            return [{"role": "robot", "content": "Count."}]

    class Repeats(Fine):
        def see(self, state: State, actor: str) -> Any:
            own = [{"role": "assistant", "content": turn.text} for turn in state.turns
                   if turn.speaker.name == actor]  # fmt: skip
            return [{"role": "user", "content": "Count."}, *own]

    turns = (Turn("1", "0", Speaker("agent", "agent"), (Part("one"),)),)
    shown = messages_of(Repeats(), State(Task("t", {}), 0, turns=turns), "agent")
    assert shown[1].turn == "1" and not shown[1].parts, "its own text stands for its tokens"
    for one in play(Percent()):
        assert one.failure is None and one.tree is not None
        assert [outcome.score for outcome in one.tree.outcomes.values()] == [0.75]
    assert all(
        "Text.see() returned {'role': 'robot'" in (one.failure or "") for one in play(Text())
    )


def test_a_task_that_ends_before_anybody_acts_fails() -> None:
    class Ended(Fine):
        async def begin(self, task: Task, live: Any) -> Transition:
            return Transition(end=OVER)

    assert all("ended before any actor acted" in (one.failure or "") for one in play(Ended()))


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
        assert all(reason in (one.failure or "") for one in play(game))


def test_tools_that_cannot_work_stop_the_run_at_the_first_prompt() -> None:
    class Untyped(Asking):
        def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
            return (Tool("look", "Looks.", {}),)

    with pytest.raises(UserError, match="not a schema of an object"):
        play(Untyped())


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

    async def test() -> list[str]:
        cast = {"Ann": Slow(lambda _: ""), "Ben": Fails(lambda _: "")}
        episode = Episode(Task("t", {}), 0, 0, "rollout")
        async with driver(Rounds(), samplers=cast).play_all([episode]) as playing:
            assert [one.failure async for one in playing] == ["no answer"]
            return list(ended)

    assert asyncio.run(test()) == ["Ann"]


def test_a_person_is_recorded_as_one_and_turns_stand_in_the_order_of_actors() -> None:
    class Backwards(Rounds):
        def acting(self, state: State) -> tuple[str, ...]:
            return ("Ben", "Ann")

    async def test() -> list[Turn]:
        cast = {name: Script(lambda _: "x") for name in ("Ann", "Ben")}
        episode = Episode(Task("t", {}), 0, 0, "rollout")
        async with driver(Backwards(1), samplers=cast).play_all([episode]) as playing:
            (one,) = [found async for found in playing]
        assert one.tree is not None
        return list(one.tree.turns.values())

    found = [(turn.speaker.name, turn.speaker.kind) for turn in asyncio.run(test())]
    assert found == [("Ann", "agent"), ("Ben", "person"), ("game", "environment")]
