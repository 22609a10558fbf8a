"""Programs that fail: each fails alone, with a reason, and leaves no process."""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from coterie.environments.registry import TaskSettings, make_environment
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.runs.benchmark import benchmark_settings
from tests.helpers.native_templates import make_native_tokenizer
from tests.helpers.play_programs import PlayedProgram, client_of, make_program, play_program
from tests.helpers.write_rows import write_jsonl

USER = {"role": "user", "content": "What is there?"}
ASK = """
import json, os, subprocess, sys, threading, time, urllib.request
def ask():
    body = {"model": "agent", "messages": [{"role": "user", "content": "Hello"}]}
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
"""


def play(environment: Any, samples: int = 1) -> PlayedProgram:
    renderer = ChatRenderer(make_native_tokenizer("qwen2"))
    return play_program(
        environment, renderer, lambda _, number: f"Reply {number}.", samples=samples
    )


def ask(session: Any) -> str:
    reply = client_of(session, max_retries=0).chat.completions.create(
        model="agent", messages=[USER]
    )
    return reply.choices[0].message.content or ""


def crash(session: Any) -> None:
    ask(session)
    raise KeyError("a key that is missing")


def hang(session: Any) -> None:
    ask(session)
    time.sleep(30)


def return_nothing(session: Any) -> None:
    ask(session)


async def crash_later(task: Any, session: Any) -> None:
    raise OSError("no disk")


async def exit_later(task: Any, session: Any) -> None:
    sys.exit(3)


def on_session(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda task, session: function(session)


FUNCTIONS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "crashes": (on_session(crash), "KeyError: 'a key that is missing'"),
    "hangs": (on_session(hang), "did not call a model or end within 0.5 s (environment.seconds)"),
    "returns nothing": (on_session(return_nothing), "returned no result"),
    "asks nobody": (on_session(lambda session: 1.0), "ended without a model call that got a reply"),
    "exits in a loop": (exit_later, "SystemExit: 3"),
    "crashes in a loop": (crash_later, "OSError: no disk"),
}


@pytest.mark.parametrize("fault", FUNCTIONS)
def test_a_function_that_fails_fails_its_episode(fault: str, tmp_path: Path) -> None:
    function, reason = FUNCTIONS[fault]
    seconds = 0.5 if fault == "hangs" else 60
    played = play(make_program(tmp_path, function, f"environment.seconds={seconds}"))
    assert reason in played.failure


COMMANDS: dict[str, tuple[str, str]] = {
    # A program, and the reason of its failure; empty for one that ends well.
    "ends well": ("print(ask()); print(0.5)", ""),
    "crashes": ("ask(); sys.stderr.write('no such file'); sys.exit(3)", "exit status 3; the end of its output"),
    "leaves a child": ("subprocess.Popen(['sleep', '371']); ask(); print(1)", ""),
    "leaves a child elsewhere": ("subprocess.Popen(['sleep', '371'], start_new_session=True); ask(); print(1)", ""),
    "hangs": ("ask(); subprocess.Popen(['sleep', '371']).wait()", "within 2 s"),
    "ends while a request is in flight": ("threading.Thread(target=ask, daemon=True).start(); ask(); print(1)", ""),
    "writes without end": ("ask()\nfor n in range(20): print('x' * 2**20)\nprint(1)", ""),
    "asks nobody": ("print('no network')", "ended without a model call that got a reply"),
}  # fmt: skip


@pytest.mark.parametrize("fault", COMMANDS)
def test_a_command_leaves_no_process(fault: str, tmp_path: Path) -> None:
    body, reason = COMMANDS[fault]
    file = tmp_path / "agent.py"
    file.write_text(f"{ASK}\n{body}\n")
    seconds = f"environment.seconds={2 if fault == 'hangs' else 60}"
    played = play(make_program(tmp_path, f"{sys.executable} {file}", seconds))
    if reason:
        assert reason in played.failure
        assert "no network" in played.failure or fault != "asks nobody"
    else:
        assert played.score in (0.5, 1.0)
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
    assert not [words for words in left if words and (words[-1] == "371" or str(file) in words)]


def test_others_play_on_when_some_fail(tmp_path: Path) -> None:
    count = threading.Lock()
    order = iter(range(200))

    def run(task: Any, session: Any) -> float:
        with count:
            number = next(order)
        ask(session)
        if number % 10 == 0:
            raise ValueError("a tenth fails")
        return float(number % 2)

    played = play(make_program(tmp_path, run, "environment.sessions=200"), samples=200)
    failures = [result.failure for result in played.results if result.failure]
    assert len(failures) == 20 and all("a tenth fails" in failure for failure in failures)
    scores = [
        outcome.score
        for result in played.results
        if result.tree
        for outcome in result.tree.outcomes.values()
    ]
    assert sorted(map(str, scores)) == ["0.0"] * 80 + ["1.0"] * 100


def test_a_role_that_is_never_asked_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(task: Any, session: Any) -> float:
        ask(session)
        return 1.0

    played = play(make_program(tmp_path, run, "environment.roles=[agent,critic]"), samples=2)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "never asked the model 'critic'" in said[0]
    metrics = [dict(result.metrics) for result in played.results]
    assert [(m["calls/agent"], m["calls/critic"]) for m in metrics] == [(1, 0), (1, 0)]


REFUSED: dict[str, tuple[list[str], str]] = {
    "no program": ([], ".command='...'"),
    "two programs": (["environment.agent=a.py:run", "environment.command=ls"], "not both"),
    "no function": (["environment.agent=a.py"], "write path/file.py:NAME"),
    "equal roles": (["environment.agent=a.py:run", "environment.roles=[a,a]"], "different names"),
    "other arguments": (["environment.agent=a.py:run"], "write def NAME(task, session)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_name_no_program_are_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("def run(task): ...")
    overrides, text = REFUSED[case]
    rows = write_jsonl(
        tmp_path / "q.jsonl", *({"question": f"{n}?", "answer": n} for n in range(5))
    )
    with pytest.raises(UserError) as refusal:
        make_environment(
            benchmark_settings(TaskSettings, "program", [f"dataset={rows}", *overrides])
        )
    assert text in str(refusal.value)


def test_halves_of_characters_are_stored(tmp_path: Path) -> None:
    def raise_half(session: Any) -> None:
        raise ValueError("\ud800" + "x" * 10_000)

    failed = play(make_program(tmp_path, on_session(raise_half)))
    assert "ValueError: ?xxx" in failed.failure and len(failed.failure) < 2000
    half = {"reward": 1, "answer": "a\ud800"}
    played = play(make_program(tmp_path, on_session(lambda session: (ask(session), half)[1])))
    assert played.result.tree is not None
    (outcome,) = played.result.tree.outcomes.values()
    assert (outcome.answer, outcome.score) == ("a?", 1.0)


NO_ROLES = {"reward": 1, "rewards": [1]}


@pytest.mark.parametrize(
    "result, reason",
    [("yes", "is no reward"), (3.0, "outside of 0 to 1"), (NO_ROLES, "names no roles")],
)
def test_a_result_that_is_no_reward_ends_the_run(result: Any, reason: str, tmp_path: Path) -> None:
    def run(task: Any, session: Any) -> Any:
        ask(session)
        return result

    with pytest.raises(UserError, match=reason):
        play(make_program(tmp_path, run))
