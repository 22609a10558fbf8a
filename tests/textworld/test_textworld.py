"""TextWorld: its solutions win, what is told and scored, splits, replays that differ, and processes that die."""

import asyncio
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.environments.acting import NO_ANSWERS, SOLVED, write_action, write_answer
from coterie.environments.baselines import REFLECT, by_method
from coterie.environments.games import textworld
from coterie.environments.games.text_games import LOST, Game, GameLost
from coterie.environments.games.textworld import COMMANDS, TextWorld, TextWorldSettings
from coterie.environments.protocol import Shared
from coterie.environments.settings import Method, game_seeds, split_of_key
from coterie.record.tree import TURNS, Task, Tree
from coterie.rollout.branches import Branches, ReplayMismatch
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import Prompt
from coterie.rollout.sessions import Sessions
from coterie.tools.sandbox.pool import Sandbox
from tests.helpers.play_text_games import (
    check_death,
    children,
    game_replies,
    grow_tree,
    kill_worker,
)
from tests.helpers.script_games import Script
from tests.rollout.test_branches import say, step

Say = Callable[[Prompt], str]


def world(**settings: object) -> TextWorld:
    return TextWorld(TextWorldSettings.model_validate(settings))


def solution(environment: TextWorld, task: Task) -> list[str]:
    return [message.splitlines()[1] for message in environment.expert(task)]


@pytest.mark.parametrize("size", [(3, 6, 4), (1, 2, 2), (6, 8, 7)], ids=str)
def test_the_solution_of_a_game_wins_it(size: tuple[int, int, int]) -> None:
    rooms, objects, length = size
    environment = world(rooms=rooms, objects=objects, quest_length=length, steps=length)
    for split in ("train", "heldout"):
        tasks = environment.tasks(split, 2, 0)  # type: ignore[arg-type]
        rows = coterie.demonstrate(environment, tasks, environment.expert)  # each scores 1
        assert [len(row["messages"]) for row in rows] == [1 + 2 * length] * 2
        _, outcome, result = game_replies(environment, tasks[0], environment.expert(tasks[0]))
        assert (outcome.ending, result.metrics["steps"]) == (SOLVED, length)
        assert result.metrics["success"] == 1


def call_of(command: str) -> str:
    """Return a program's line for a command."""
    for form in sorted(COMMANDS, key=lambda form: -form.count("{}")):
        if match := re.fullmatch(re.escape(form).replace(r"\{\}", "(.+)"), command):
            return f"print({form.split()[0]}({', '.join(map(repr, match.groups()))}))"
    raise AssertionError(f"no form fits {command}")


def test_a_program_and_a_second_attempt_win_a_game() -> None:
    environment = world(rooms=4, objects=6, quest_length=6, steps=6)
    tasks = environment.tasks("heldout", 4, 0)

    async def play(method: Method, say: Say) -> list[EpisodeResult]:
        variant = by_method(environment, method, 2)
        async with Sandbox() as sandbox:
            driver = Driver(variant, {"agent": Script(say)}, seed=0, shared=Shared(sandbox))
            async with driver.play_all([Episode(task, 0, 0, "test") for task in tasks]) as playing:
                return [one async for one in playing]

    def program(prompt: Prompt) -> str:
        assert prompt.task is not None
        calls = map(call_of, solution(environment, prompt.task))
        return "\n".join(["```python", *calls, "```"])

    def learn(prompt: Prompt) -> str:
        assert prompt.task is not None
        turns = prompt.tree.turns
        said = [turns[one.turn].text for one in prompt.messages if one.turn]
        if said[-1].endswith(REFLECT):
            return "I only looked."
        if len(prompt.messages[0].parts) == 1:
            return write_action("look")
        return environment.expert(prompt.task)[len(said) // 2]

    for one in asyncio.run(play("code_as_policy", program)):
        assert (one.metrics["success"], one.metrics["messages"], one.metrics["steps"]) == (1, 1, 6)
    for one in asyncio.run(play("reflexion", learn)):
        assert (one.metrics["success"], one.metrics["messages"]) == (1, 13)
        assert (one.metrics["within_attempt_1"], one.metrics["within_attempt_2"]) == (0, 1)


def test_a_part_of_the_quest_has_its_share_of_the_score() -> None:
    environment = world(steps=5)
    (task,) = environment.tasks("heldout", 1, 0)
    first, *_ = environment.expert(task)
    _, outcome, result = game_replies(environment, task, [first, *[write_action("look")] * 4])
    assert (outcome.ending, outcome.score) == (TURNS, 0.25)
    assert (result.metrics["success"], result.metrics["steps"]) == (0, 5)
    _, outcome, _ = game_replies(environment, task, [write_action("look")] * 5)
    assert outcome.score == 0


def test_a_lost_quest_ends_the_episode_with_score_0() -> None:
    environment = world()
    (task,) = environment.tasks("train", 1, 0)

    class Losing(Game):
        def ask(self, *command: str) -> dict[str, Any]:
            """Lose at the second command, as where food of the quest is eaten."""
            reply = super().ask(*command)
            return {**reply, "end": "lost", "left": 0} if len(self.commands) == 2 else reply

    game = Losing(environment.game(task).game, textworld._WORKERS)
    environment.open = lambda *_: nullcontext(game)  # type: ignore[method-assign]
    _, outcome, result = game_replies(environment, task, environment.expert(task))
    assert (outcome.ending, outcome.score) == (LOST, 0)
    assert (result.metrics["success"], result.metrics["steps"]) == (0, 2)


def test_what_is_not_possible_costs_a_step_alone_and_replies_tell_what_is_there() -> None:
    environment = world(rooms=1, objects=4, quest_length=3, steps=6)
    (task,) = environment.tasks("train", 1, 0)
    commands = solution(environment, task)
    actions = ["jump", "LOOK", "inventory", f"  {commands[0].upper()} "]
    messages = [write_answer("done"), *map(write_action, actions), "I wait."]
    texts, _, result = game_replies(environment, task, messages)
    first, answer, jump, look, inventory, done, _ = texts
    view = look
    assert first.endswith(view) and view.startswith("You are in the ")
    assert re.search(r"You see: .+\. Exits: none\. You carry: .+\.$", view)
    assert answer == NO_ANSWERS and jump == f"You can't `jump` now. {view}"
    assert inventory == view != done
    assert result.metrics["steps"] == 3, "look, inventory and the first command"
    assert "Possible actions" not in first
    told = world(rooms=1, objects=4, quest_length=3, steps=1, admissible=True)
    (first, _), _, _ = game_replies(told, task, [write_action("look")])
    possible = first.partition(" Possible actions: ")[2].rstrip(".").split(", ")
    assert {"look", "inventory", commands[0]} <= set(possible)
    examine = next(one for one in possible if one.startswith("examine "))
    (_, text, *_), _, _ = game_replies(environment, task, [write_action(examine)] * 6)
    assert text.endswith(view) and "[" not in text.removesuffix(view).strip() != ""


def test_splits_share_no_seed_and_draws_go_on() -> None:
    drawn = {
        split: game_seeds("textworld", split, 3)[:300] for split in ("train", "heldout", "corpus")
    }  # type: ignore[arg-type]
    for split, some in drawn.items():
        assert {split_of_key(str(one)) for one in some} == {split}
    assert len({one for some in drawn.values() for one in some}) == 900
    environment = world()
    train = environment.tasks("train", 6, 0)
    assert environment.tasks("train", 2, 0, previous_counts=[3, 1]) == train[4:]
    assert environment.tasks("heldout", 2, 0, previous_counts=[4]) == environment.tasks(
        "heldout", 2, 0
    )


def test_branches_are_replayed_and_one_that_differs_fails_alone(games: Path) -> None:
    environment = world(steps=9)
    one, other = environment.tasks("train", 2, 5)
    solved = environment.expert(one)

    async def test() -> None:
        async with Sessions(4, 60.0) as sessions:
            tree = Tree(one.id, "rollout", 0)
            script = {"agent": Script(lambda _: "")}
            grown = Branches(environment, script, one, tree, sessions, 0, Shared(), 60.0)
            first = await say(grown, await grown.start(), solved[0])
            second = await say(grown, first, solved[1])
            again = await say(grown, first, write_action("look"))  # in a new session
            assert grown.replays == 1
            assert tree.turns[again.node].text == tree.turns[first.node].text
            path = Path(environment.game(one).game["path"])
            before = path.read_text()
            environment.game(other).ask()
            path.write_text(Path(environment.game(other).game["path"]).read_text())
            with pytest.raises(ReplayMismatch, match="did not repeat its recorded observations"):
                await say(grown, first, write_action("inventory"))
            after = await say(grown, second, solved[2])  # its own session goes on
            path.write_text(before)
            assert after.state.data.left == 1  # type: ignore[attr-defined]
            script["agent"].say = lambda _: solved[3]
            assert (await grown.grade(await step(grown, after))).score == 1

    asyncio.run(test())


def test_a_process_that_dies_fails_the_branch_that_meets_it_and_others_go_on() -> None:
    environment = world(steps=4)
    check_death(environment, environment.tasks("train", 4, 6), textworld._WORKERS[0])


def test_a_game_that_its_new_process_repeats_differently_fails() -> None:
    environment = world()
    one, other, third = environment.tasks("train", 3, 7)
    game, meets = environment.game(one), environment.game(third)
    game.ask()
    environment.game(other).ask()
    meets.ask()
    kill_worker(textworld._WORKERS[0])
    with pytest.raises(GameLost, match="ended"):
        meets.ask("look")
    path = Path(game.game["path"])
    path.write_text(Path(environment.game(other).game["path"]).read_text())
    with pytest.raises(GameLost, match="did not repeat"):
        game.ask("look")
    path.write_text("{")
    with pytest.raises(GameLost, match=f"{one.public['seed']}.json"):
        environment.game(one).ask()
    path.unlink()
    assert environment.game(one).ask() == game.replies[0], "a seed makes the same game"


def test_a_thousand_sessions_leave_no_process_and_the_first_goes_on() -> None:
    environment = world()
    (task,) = environment.tasks("train", 1, 0)
    command = solution(environment, task)[0]

    async def test() -> None:
        async with environment.open(task, 0, Shared()) as first:
            await environment.begin(task, first)
            (worker,) = children("textworld_worker.py")
            for _ in range(1000):
                async with environment.open(task, 0, Shared()) as game:
                    await environment.begin(task, game)
            assert children("textworld_worker.py") == [worker]
            assert first.ask(command) == game.ask(command)

    asyncio.run(test())
    textworld._WORKERS[0].close()
    assert children("textworld_worker.py") == []


def test_a_dense_tree_has_successes_failures_and_pairs() -> None:
    environment = world(rooms=1, objects=3, quest_length=2, steps=4)
    (task,) = environment.tasks("train", 1, 0)
    lines = environment.expert(task)

    def speak(prompt: Prompt) -> str:
        """Say the next line of the solution, or look, by the seed."""
        said = {turn.text for turn in prompt.tree.path(prompt.parent)}
        rest = [line for line in lines if line not in said]
        return rest[0] if prompt.seed % 3 else write_action("look")

    tree, branches, pairs = asyncio.run(grow_tree(environment, task, speak))
    scores = {one.score for one in tree.outcomes.values()}
    assert 1.0 in scores and len(scores) > 1 and branches.replays
    assert pairs > 0
