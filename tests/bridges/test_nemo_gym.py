"""Resources servers of NeMo Gym with their example rows: sessions, calls, rewards, replays, and refusals."""

import asyncio
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from coterie.engines.protocol import EngineError
from coterie.environments.protocol import Environment, Grade, Shared, State
from coterie.record.tree import Task, Tree
from coterie.record.turn import Part, Speaker, ToolCall, make_turn
from coterie.rollout.branches import Branches
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.rollout.sessions import Sessions
from tests.bridges.serving import python_of, serving
from tests.conftest import Cli
from tests.helpers.converse import converse
from tests.helpers.packaged_environments import packaged_environment
from tests.helpers.script_games import Script
from tests.rollout.test_branches import say, step

PYTHON = python_of(".venv-nemo-gym")
SERVER = Path(__file__).with_name("nemo_gym_server.py")
PLACE = "import resources_servers; print(*resources_servers.__path__)"
SERVERS = Path(subprocess.check_output([PYTHON, "-c", PLACE], text=True).split()[0])
COUNTER, LETTERS, OFFICE = "example_session_state_mgmt", "mcqa", "workplace_assistant"
MODEL = ("policy=tiny-acts", "tasks=2", "engine.device=cpu", "max_tokens=24")


def example(name: str) -> Path:
    return SERVERS / name / "data/example.jsonl"


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in example(name).read_text().splitlines()]


@contextmanager
def resources(name: str, folder: Path) -> Iterator[str]:
    with serving([PYTHON, SERVER, name], folder, "openapi.json") as url:
        yield url


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with resources(COUNTER, tmp_path_factory.mktemp("counter")) as url:
        yield url


def words_of(url: str, name: str, calls: str = "tags") -> tuple[str, ...]:
    keys = {"url": url, "rows": example(name), "heldout": example(name), "calls": calls}
    return tuple(f"environment.{key}={value}" for key, value in keys.items())


def gym(
    url: str, name: str, *overrides: str, calls: str = "tags"
) -> tuple[Environment, list[Task]]:
    environment = packaged_environment("nemo_gym", *words_of(url, name, calls), *overrides)
    return environment, environment.tasks("heldout", 9, 0)


def add(count: object) -> str:
    return f'<increment_counter>{{"count": {count}}}</increment_counter>'


def play(environment: Environment, task: Task, *messages: str) -> tuple[list[str], Grade]:
    state, grade = asyncio.run(converse(environment, task, messages, Shared()))
    assert grade is not None
    return [one.text for turn in state.turns for one in turn.results], grade


def test_calls_change_the_session_and_the_server_gives_the_reward(counter: str) -> None:
    environment, tasks = gym(counter, COUNTER)
    for row, task in zip(rows(COUNTER), tasks, strict=True):
        missing = row["expected_count"] - row["initial_count"]
        value = "<get_counter_value>{}</get_counter_value>"
        results, grade = play(environment, task, add(missing - 1), add(1), value, "Done.")
        assert (grade.score, grade.metrics) == (1, {"calls": 3, "call_errors": 0})
        assert results[0] == '{"success":true}'
        assert json.loads(results[2]) == {"count": row["expected_count"]}
        assert play(environment, task, add(missing - 1), "Done.")[1].score == 0


def test_dialogues_at_the_same_time_have_sessions_of_their_own(counter: str) -> None:
    environment, tasks = gym(counter, COUNTER)
    missing = {
        task.id: row["expected_count"] - row["initial_count"]
        for row, task in zip(rows(COUNTER), tasks, strict=True)
    }

    def speak(prompt: Prompt) -> str:
        assert prompt.task is not None
        said = sum(turn.speaker.name == "agent" for turn in prompt.tree.path(prompt.parent))
        return "Done." if said == missing[prompt.task.id] else add(1)

    async def work() -> list[float | None]:
        driver = Driver(environment, {"agent": Script(speak)}, seed=0, shared=Shared())
        episodes = [Episode(task, 0, n, "test") for n in range(2) for task in tasks[:2]]
        async with driver.play_all(episodes) as playing:
            results = [one async for one in playing]
        assert all(one.failure is None and one.tree for one in results)
        return [end.score for one in results if one.tree for end in one.tree.outcomes.values()]

    assert asyncio.run(work()) == [1, 1, 1, 1]


def test_native_calls_of_one_message_run_in_order(counter: str) -> None:
    environment, tasks = gym(counter, COUNTER, calls="native")
    row = rows(COUNTER)[0]
    missing = row["expected_count"] - row["initial_count"]

    @dataclass
    class Calls:
        """A sampler that calls twice in one message, as a chat template's parser would report it, and then answers."""

        said: int = 0

        async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
            self.said += 1
            names = (("increment_counter", {"count": missing}), ("get_counter_value", {}))
            calls = [ToolCall(f"c{n}", *_call(*one)) for n, one in enumerate(names)]
            speaker, parts = Speaker("agent", "agent"), [Part("Now.")]
            sent = tuple(calls) if self.said == 1 else ()
            return Response(make_turn(prompt.parent, speaker, parts, calls=sent), None, 1)

    async def work() -> tuple[State, Grade]:
        async with Sessions(2, 60.0) as sessions:
            tree = Tree(tasks[0].id, "rollout", 0)
            grown = Branches(
                environment, {"agent": Calls()}, tasks[0], tree, sessions, 0, Shared(), 60.0
            )
            at = await step(grown, await step(grown, await grown.start()))
            return at.state, await grown.grade(at)

    state, grade = asyncio.run(work())
    assert grade.score == 1
    results = [one.text for turn in state.turns for one in turn.results]
    assert json.loads(results[1]) == {"count": row["expected_count"]}
    assert [message.role for message in environment.observe(state, "agent")[-2:]] == [
        "tool",
        "assistant",
    ]


def _call(name: str, arguments: dict[str, object]) -> tuple[str, str]:
    return name, json.dumps(arguments)


def test_invalid_calls_and_errors_of_tools_are_told(counter: str, tmp_path: Path) -> None:
    environment, tasks = gym(counter, COUNTER)
    results, grade = play(environment, tasks[0], add('"x"'), "Done.")
    assert "count" in results[0] and grade.metrics["call_errors"] == 1
    lax = rows(COUNTER)[0]
    lax["responses_create_params"]["tools"][0]["parameters"] = {"type": "object", "properties": {}}
    (tmp_path / "lax.jsonl").write_text(json.dumps(lax))
    (tmp_path / "held.jsonl").write_text(json.dumps(lax))
    overrides = (
        f"environment.rows={tmp_path}/lax.jsonl",
        f"environment.heldout={tmp_path}/held.jsonl",
    )
    environment = packaged_environment(
        "nemo_gym", f"environment.url={counter}", "environment.calls=tags", *overrides
    )
    (task,) = environment.tasks("heldout", 1, 0)
    results, grade = play(environment, task, add('"x"'), "Done.")  # refused by the server
    assert "int_parsing" in results[0] and grade.metrics["call_errors"] == 1


def test_branches_are_replayed_in_sessions_of_their_own(counter: str) -> None:
    environment, tasks = gym(counter, COUNTER)
    row = rows(COUNTER)[0]
    missing = row["expected_count"] - row["initial_count"]

    async def work() -> tuple[int, list[float | None]]:
        async with Sessions(4, 60.0) as sessions:
            tree, script = Tree(tasks[0].id, "rollout", 0), {"agent": Script(lambda _: "")}
            grown = Branches(environment, script, tasks[0], tree, sessions, 0, Shared(), 60.0)
            first = await say(grown, await grown.start(), add(missing - 1))
            right = await say(grown, first, add(1))
            wrong = await say(grown, first, add(2))
            ends = [await say(grown, at, "Done.") for at in (right, wrong)]
            return grown.replays, [(await grown.grade(at)).score for at in ends]

    assert asyncio.run(work()) == (1, [1, 0])


def test_an_answer_without_tools_is_verified(tmp_path: Path) -> None:
    with resources(LETTERS, tmp_path) as url:
        environment, tasks = gym(url, LETTERS)
        right = f"It is \\boxed{{{rows(LETTERS)[0]['expected_answer']}}}"
        assert play(environment, tasks[0], right)[1].score == 1
        assert play(environment, tasks[0], "It is \\boxed{K}")[1].score == 0


def test_rows_with_many_tools_are_played_on_a_server_that_routes_by_name(tmp_path: Path) -> None:
    with resources(OFFICE, tmp_path) as url:
        environment, tasks = gym(url, OFFICE)
        messages = environment.observe(State(tasks[0], 0), "agent")
        assert [message.role for message in messages] == ["system", "user"]
        find = "company_directory_find_email_address"
        results, _ = play(environment, tasks[0], f'<{find}>{{"name": "carlos"}}</{find}>', "Sent.")
        assert "carlos" in results[0]


def test_splits_share_no_prompt(counter: str, tmp_path: Path) -> None:
    row, texts = rows(COUNTER)[0], [f"Add {n}." for n in range(60)]

    def write(name: str, prompts: Sequence[str]) -> str:
        lines = (
            {**row, "responses_create_params": {**row["responses_create_params"], "input": text}}
            for text in prompts
        )
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))
        return f"{tmp_path}/{name}"

    overrides = (f"environment.url={counter}", f"environment.rows={write('all.jsonl', texts)}")
    environment = packaged_environment("nemo_gym", *overrides, "environment.calls=tags")
    train, heldout = environment.tasks("train", 99, 0), environment.tasks("heldout", 99, 0)
    questions = [str(task.public["question"]) for task in (*train, *heldout)]
    assert sorted(questions) == sorted(texts) and 5 < len(heldout) < 30
    own = f"environment.heldout={write('some.jsonl', texts[:7])}"
    environment = packaged_environment("nemo_gym", *overrides, own, "environment.calls=tags")
    assert len(environment.tasks("heldout", 99, 0)) == 7
    assert len(environment.tasks("train", 99, 0)) == 53


def test_a_server_that_dies_or_refuses_a_row_fails_the_dialogue(
    counter: str, tmp_path: Path
) -> None:
    row = rows(COUNTER)[0]
    del row["initial_count"]
    (tmp_path / "row.jsonl").write_text(json.dumps(row))
    file = f"{tmp_path}/row.jsonl"
    overrides = (
        f"environment.rows={file}",
        f"environment.heldout={file}",
        "environment.calls=tags",
    )
    environment = packaged_environment("nemo_gym", f"environment.url={counter}", *overrides)
    with pytest.raises(EngineError, match="initial_count"):
        play(environment, environment.tasks("heldout", 1, 0)[0], "Done.")
    with resources(COUNTER, tmp_path) as url:
        environment, tasks = gym(url, COUNTER)

        async def die() -> None:
            async with environment.open(tasks[0], 0, Shared()) as session:
                await environment.begin(tasks[0], session)
                for process in psutil.Process().children():
                    if process.cmdline()[-1] == url.rpartition(":")[2]:
                        process.kill()
                        process.wait()
                await session.function("increment_counter")({"count": 1})

        with pytest.raises(EngineError, match="127"):
            asyncio.run(die())


def test_the_command_evaluates_a_model(counter: str, cli: Cli) -> None:
    result = cli("evaluate", "nemo_gym", *words_of(counter, COUNTER), *MODEL)
    assert result.code == 0 and '"calls"' in result.out, result.err
