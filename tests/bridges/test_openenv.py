"""A client of OpenEnv servers: games, replays, refused actions, sessions, and servers that fail."""

import asyncio
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.acting import ENVIRONMENT, write_action
from coterie.environments.bridges.openenv import StepReply
from coterie.environments.protocol import Grade, Shared, State
from coterie.environments.settings import split_of_key
from coterie.record.tree import Task, Tree
from coterie.rollout.branches import Branches, ReplayMismatch
from coterie.rollout.sessions import Sessions
from tests.bridges.serving import python_of, serving
from tests.conftest import Cli, refused
from tests.helpers.converse import converse
from tests.helpers.packaged_environments import packaged_environment
from tests.helpers.script_games import Script
from tests.rollout.test_branches import say

PYTHON = python_of(".venv-openenv")
pytest.importorskip("websockets")
UVICORN = (PYTHON, "-m", "uvicorn", "--host", "127.0.0.1")
MODEL = ("policy=tiny-acts", "tasks=2", "engine.device=cpu", "max_tokens=24")


@pytest.fixture(scope="module")
def guess(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("guess")
    shutil.copy(Path(__file__).with_name("openenv_server.py"), folder)
    with serving([*UVICORN, "openenv_server:app"], folder, "health") as url:
        yield url


def number_of(task: Task) -> int:
    return random.Random(int(str(task.public["seed"]))).choice([n for n in range(1, 11) if n != 7])


def action(number: object) -> str:
    return write_action(f'{{"number": {number}}}')


def texts(state: State) -> list[str]:
    return [turn.text for turn in state.turns if turn.speaker == ENVIRONMENT]


def play(url: str, number: int, *messages: str, **settings: str) -> tuple[State, Grade | None]:
    overrides = [f"environment.{name}={value}" for name, value in settings.items()]
    environment = packaged_environment("openenv", f"environment.url={url}", *overrides)
    task = environment.tasks("heldout", number + 1, 0)[number]
    return asyncio.run(converse(environment, task, messages, Shared()))


def test_the_environment_of_openenv_init_is_evaluated(cli: Cli, tmp_path: Path) -> None:
    openenv = PYTHON.with_name("openenv")
    subprocess.run([openenv, "init", "my_env"], cwd=tmp_path, check=True, capture_output=True)
    with serving([*UVICORN, "server.app:app"], tmp_path / "my_env", "health") as url:
        result = cli("evaluate", "openenv", f"environment.url={url}", "environment.steps=1", *MODEL)
        assert result.code == 0 and '"metric": "reward"' in result.out, result.err
        state, grade = play(url, 0, write_action("Hello"), steps="1", score="last")
        assert '"echoed_message": "Hello", "message_length": 5' in texts(state)[-1]
        assert grade is not None and (grade.score, grade.metrics["steps"]) == (0.5, 1)
        assert "2 sessions" in refused(
            cli, "evaluate", "openenv", f"environment.url={url}", "environment.sessions=2", *MODEL
        )


def test_a_game_has_its_seed_rewards_and_end(guess: str) -> None:
    environment = packaged_environment("openenv", f"environment.url={guess}")
    for number, task in enumerate(environment.tasks("heldout", 3, 0)):
        right = number_of(task)
        wrong = 1 if right > 1 else 2
        state, grade = play(guess, number, action(wrong), action(right))
        assert texts(state)[1:] == ["more" if wrong < right else "less", "right"]
        assert grade is not None and grade.score == 0.75
        assert grade.metrics == {"done": 1, "steps": 2}
        assert "number" in environment.observe(state, "agent")[0].parts[0].text


def test_other_arguments_of_reset_are_sent(guess: str) -> None:
    environment = packaged_environment(
        "openenv", f"environment.url={guess}", "environment.reset={most: 99}"
    )
    state, _ = asyncio.run(converse(environment, environment.tasks("train", 1, 0)[0], [], Shared()))
    assert texts(state)[0].startswith("1 to 99")


def test_invalid_actions_are_told_and_change_nothing(guess: str) -> None:
    environment = packaged_environment("openenv", f"environment.url={guess}")
    right = number_of(environment.tasks("heldout", 1, 0)[0])
    messages = (action(11), action('"x"'), write_action("five"), write_action("5"), "I wait.")
    state, grade = play(guess, 0, *messages, action(right))
    large, word, text, bare, _, end = texts(state)[1:]
    assert "number: Input should be less than or equal to 10" in large
    assert "number: Input should be a valid integer" in word
    assert "not a JSON object" in text and "not a JSON object" in bare and end == "right"
    assert grade is not None and grade.score == 1 and grade.metrics["steps"] == 1


def test_an_error_of_the_environment_fails_the_branch_and_is_not_a_score(guess: str) -> None:
    with pytest.raises(EngineError, match="seven is broken"):
        play(guess, 0, action(7))


def test_a_score_outside_of_its_range_is_refused_with_the_setting(guess: str) -> None:
    environment = packaged_environment("openenv", f"environment.url={guess}")
    right = number_of(environment.tasks("heldout", 1, 0)[0])
    with pytest.raises(EngineError, match=r"environment.score_range=\[LOW,HIGH\]"):
        play(guess, 0, action(right), score_range="[0,0.5]")
    _, grade = play(guess, 0, action(right), score_range="[-1,3]")
    assert grade is not None and grade.score == 0.5


def test_branches_are_replayed_and_an_environment_that_forgets_its_seed_fails(
    guess: str, tmp_path: Path
) -> None:
    async def branch(url: str) -> int:
        environment = packaged_environment("openenv", f"environment.url={url}")
        (task,) = environment.tasks("train", 1, 0)
        wrong = [n for n in range(1, 7) if n != number_of(task)]
        async with Sessions(environment.max_sessions, 60.0) as sessions:
            tree, script = Tree(task.id, "rollout", 0), {"agent": Script(lambda _: "")}
            grown = Branches(environment, script, task, tree, sessions, 0, Shared(), 60.0)
            first = await say(grown, await grown.start(), action(wrong[0]))
            await say(grown, first, action(wrong[1]))
            await say(grown, first, action(wrong[2]))
        return grown.replays

    assert asyncio.run(branch(guess)) == 1
    shutil.copy(Path(__file__).with_name("openenv_server.py"), tmp_path)
    command = [*UVICORN, "openenv_server:app"]
    with (
        serving(command, tmp_path, "health", FORGETFUL="1") as url,
        pytest.raises(ReplayMismatch),
    ):
        asyncio.run(branch(url))


def test_sessions_are_closed_and_a_server_without_room_is_refused(guess: str, cli: Cli) -> None:
    words = ("evaluate", "openenv", f"environment.url={guess}", "environment.steps=2", *MODEL)
    for tasks in (5, 6):
        more = (word.replace("tasks=2", f"tasks={tasks}") for word in words)
        result = cli(*more, "environment.sessions=2")
        assert '"failed": 0' in result.out, result.err
    assert "CAPACITY_REACHED" in refused(cli, *words, "environment.sessions=3")


def test_splits_share_no_seed_and_draws_go_on(guess: str) -> None:
    environment = packaged_environment("openenv", f"environment.url={guess}")
    train = environment.tasks("train", 6, 0)
    assert environment.tasks("train", 2, 0, previous_counts=[3, 1]) == train[4:]
    assert {split_of_key(str(task.public["seed"])) for task in train} == {"train"}


def test_a_server_that_is_none_is_refused_and_one_that_dies_fails_its_dialogues(
    cli: Cli, tmp_path: Path
) -> None:
    url = "environment.url=http://127.0.0.1:9"
    assert "no OpenEnv server answers" in refused(cli, "evaluate", "openenv", url, *MODEL)
    with serving([PYTHON, "-c", HTML], tmp_path, "") as other:
        assert "no OpenEnv server answers" in refused(
            cli, "evaluate", "openenv", f"environment.url={other}", *MODEL
        )
    shutil.copy(Path(__file__).with_name("openenv_server.py"), tmp_path)
    with serving([*UVICORN, "openenv_server:app"], tmp_path, "health") as url:
        environment = packaged_environment("openenv", f"environment.url={url}")
        (task,) = environment.tasks("train", 1, 0)

        async def die() -> None:
            async with environment.open(task, 0, Shared()) as session:
                await environment.begin(task, session)
                for process in psutil.Process().children():
                    process.kill()
                    process.wait()
                await session.ask("step", {"number": 1}, StepReply)

        with pytest.raises(EngineError, match="connection to the OpenEnv server is lost"):
            asyncio.run(die())
        with pytest.raises(EngineGone, match="no OpenEnv server answers"):
            asyncio.run(die())


HTML = (
    "import sys; from http.server import *; "
    "HTTPServer(('127.0.0.1', int(sys.argv[-1])), SimpleHTTPRequestHandler).serve_forever()"
)
