"""ALFWorld: plans win, what is told and scored, folders of games, replays that differ, and processes that die."""

import json
import random
import shutil
from pathlib import Path
from typing import get_args

import pytest

import coterie
from coterie.environments.acting import NO_ANSWERS, SOLVED, write_action, write_answer
from coterie.environments.games.alfworld import (
    NOTHING,
    RELEASE,
    TYPES,
    ALFWorld,
    ALFWorldSettings,
    TaskType,
)
from coterie.record.tree import TURNS, Task
from tests.conftest import Cli
from tests.helpers.play_text_games import (
    game_replies,
)


def world(folder: Path, **settings: object) -> ALFWorld:
    return ALFWorld(ALFWorldSettings.model_validate({"folder": str(folder), **settings}))


def plan(environment: ALFWorld, task: Task) -> list[str]:
    return [message.splitlines()[1] for message in environment.expert(task)]


def copy_game(source: Path, folder: Path, **changes: object) -> Path:
    """Copy a game's folder, with other values in its file."""
    shutil.copytree(source.parent, folder)
    game = json.loads(source.read_bytes()) | changes
    (folder / source.name).write_text(json.dumps(game))
    return folder / source.name


def test_the_plan_of_a_game_wins_it_and_success_has_its_type(games: Path) -> None:
    environment = world(games)
    tasks = environment.tasks("heldout", 100, 0)
    assert {str(task.public["type"]) for task in tasks} == {*get_args(TaskType)}
    rows = coterie.demonstrate(environment, tasks, environment.expert)  # each scores 1
    for task, row in zip(tasks, rows, strict=True):
        length = len(plan(environment, task))
        assert len(row["messages"]) == 1 + 2 * length
    _, outcome, result = game_replies(environment, tasks[0], environment.expert(tasks[0]))
    kind = f"success/{tasks[0].public['type']}"
    own = {name: value for name, value in result.metrics.items() if name in ("steps", kind)}
    steps = len(plan(environment, tasks[0]))
    assert (outcome.ending, outcome.score, own) == (SOLVED, 1, {"steps": steps, kind: 1})


def test_texts_and_commands_are_those_of_the_package(games: Path) -> None:
    """Play at random beside the package itself, twice, since the second game uses what the first one kept."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    environment = world(games)
    for task in environment.tasks("train", 3, 0) * 2:
        game = environment.game(task)
        infos = textworld.EnvInfos(admissible_commands=True, won=True)
        other = textworld.start(game.game["path"], infos, wrappers=[AlfredDemangler()])
        state, reply, rng = other.reset(), game.ask(), random.Random(task.id)
        assert state.feedback.strip().endswith(reply["text"].strip())
        for command in plan(environment, task):
            for one in (*rng.sample(reply["commands"], 2), command):
                if one not in reply["commands"]:
                    continue  # what was drawn before took the thing away
                state, _, done = other.step(one)
                reply = game.ask(one)
                assert (reply["text"], reply["commands"]) == (
                    state.feedback,
                    state["admissible_commands"],
                )
                assert (reply["end"] == "won") == done


def test_what_is_not_possible_costs_a_message_alone(games: Path) -> None:
    environment = world(games, types=["put"], steps=7)
    (task, *_) = environment.tasks("heldout", 1, 0)
    go, take, away, put = plan(environment, task)
    what, _, where = put.removeprefix("move ").partition(" to ")
    actions = ["fly away", f"  {go.upper()} ", take, away, f"put {what} in/on {where}"]
    messages = [write_answer("done"), *map(write_action, actions)]
    texts, outcome, result = game_replies(environment, task, messages)
    first, answer, fly, *_ = texts
    assert first.startswith("You are in the middle of a room.") and "Your task is to: " in first
    assert answer == NO_ANSWERS and fly == NOTHING.format("fly away")
    assert (outcome.ending, result.metrics["steps"]) == (SOLVED, 4)
    assert "Possible actions" not in first
    told = world(games, types=["put"], steps=2, admissible=True)
    (first, fly, _), outcome, result = game_replies(told, task, [write_action("fly away")] * 2)
    possible = first.partition(" Possible actions: ")[2].rstrip(".").split(", ")
    assert {"look", "inventory", go} <= {*possible} and fly.endswith(f"{', '.join(possible)}.")
    assert (outcome.ending, outcome.score) == (TURNS, 0)
    assert (result.metrics["steps"], result.metrics["success/put"]) == (0, 0)


def test_splits_types_and_draws(games: Path) -> None:
    environment = world(games, types=["cool", "puttwo"])
    train, heldout = (environment.tasks(split, 100, 0) for split in ("train", "heldout"))  # type: ignore[arg-type]
    assert len({task.id for task in train}) == 4 and len(heldout) == 2
    assert {task.id.partition("/")[0] for task in train} == {"train"}
    assert {task.id.partition("/")[0] for task in heldout} == {"valid_unseen"}
    assert {str(task.public["type"]) for task in (*train, *heldout)} == {"cool", "puttwo"}
    everything = world(games)
    first, more = (
        everything.tasks("train", 5, 1),
        everything.tasks("train", 7, 1, previous_counts=[5]),
    )
    assert len({task.id for task in (*first, *more)}) == 12
    assert {task.id for task in everything.tasks("train", 12, 2)} == {t.id for t in first + more}


def test_folders_of_games(games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download has the splits in a folder of its release; unsolvable and unsupported games are left out."""
    game = next((games / "valid_unseen").rglob("*.tw-pddl"))
    root = tmp_path / "data"
    seen = root / RELEASE / "valid_seen"
    name = game.parent.parent.name
    copy_game(game, seen / name / "a")
    copy_game(game, seen / name / "b", solvable=False)
    copy_game(game, seen / "pick_and_place_with_movable_recep-Mug" / "c")
    copy_game(game, seen / f"{name}-Sliced" / "d")
    copy_game(game, seen / "renamed" / "e")
    monkeypatch.setenv("ALFWORLD_DATA", str(root))
    environment = ALFWorld(ALFWorldSettings(heldout="valid_seen"))
    tasks = environment.tasks("heldout", 100, 0)
    assert {Path(task.id).parent.name for task in tasks} == {"a", "e"}
    assert {task.public["type"] for task in tasks} == {TYPES[name.partition("-")[0]]}
    own = ALFWorldSettings(folder=str(games)).identity()
    other = shutil.copytree(games, tmp_path / "other")
    assert own == ALFWorldSettings(folder=str(other)).identity(), "the path does not count"
    third = shutil.copytree(games, tmp_path / "third")
    path = next(third.rglob("*.tw-pddl"))
    path.write_text(path.read_text().replace("Your task", "The task"))
    assert own != ALFWorldSettings(folder=str(third)).identity()


def test_an_evaluation_shows_the_success_of_each_type(games: Path, cli: Cli) -> None:
    overrides = ("policy=tiny-acts", "tasks=6", "max_tokens=4", f"environment.folder={games}")
    result = cli("evaluate", "alfworld", *overrides, "environment.steps=1", "engine.device=cpu")
    assert result.code == 0, result.err
    (row,) = json.loads(result.out.splitlines()[-1])["rows"]
    assert {f"success/{kind}" for kind in get_args(TaskType)} | {"type_mean", "steps"} <= {*row}
    assert (row["n"], row["failed"], row["score"]) == (6, 0, 0)
