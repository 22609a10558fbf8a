"""`coterie chat`: lines in, replies out; it ends quietly."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.cli.conversation import open_engine
from coterie.record.tree import Tree
from coterie.record.turn import Message
from tests.conftest import Cli, refused
from tests.published_templates import published
from tests.templates import random_model

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "coterie", "chat"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "2"}


def chat(*words: object, lines: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        input=lines.encode("utf-8", "surrogateescape"),
        env=ENVIRONMENT,
        capture_output=True,
        timeout=300,
    )


def test_each_line_gets_a_reply_that_knows_what_was_said_before() -> None:
    words = ("tiny-exchange", "--temperature", "0", "--max-tokens", "24")
    said = chat(*words, lines="hello\n\nhello\n/new\nhello\n/new\nhel\udcfflo\n")
    assert said.returncode == 0 and b"Traceback" not in said.stderr, said.stderr
    one, two, again, odd = said.stdout.decode().splitlines()
    assert one and one != two, "the second reply has the first one before it"
    assert again == one, "/new forgets what was said"
    assert odd.strip(), "bytes that are not text are answered"


def test_a_run_answers_with_its_policy(finished: Path) -> None:
    said = chat(finished, "--temperature", 0, "--max-tokens", 8, lines="go on\n")
    assert said.returncode == 0 and said.stdout.splitlines(), said.stderr


def test_template_arguments_reach_the_prompt(tmp_path: Path, cli: Cli) -> None:
    made = random_model(published("qwen3"), "qwen3")
    made.model.save_pretrained(tmp_path / "model")
    made.tokenizer.save_pretrained(tmp_path / "model")
    words = ["engine.device=cpu", "engine.template_args={enable_thinking: false}"]
    renderer = open_engine(str(tmp_path / "model"), None, words).loaded.renderer
    ids = renderer.render([Message.of("user", "a")], Tree("t", "r", 0), "A")
    assert renderer.decode(ids).endswith("<think>\n\n</think>\n\n")
    said = refused(cli, "chat", tmp_path / "model", "engine.template_args={enable_thinkin: false}")
    assert "has no argument 'enable_thinkin'" in said


@pytest.mark.slow
def test_a_conversation_that_outgrows_the_context_is_not_lost() -> None:
    said = chat("tiny-exchange", "--max-tokens", 4, lines="word " * 4000 + "\nhello\n")
    assert said.returncode == 0
    assert b"type /new to start again" in said.stderr and b"Traceback" not in said.stderr
    assert len(said.stdout.splitlines()) == 1, "the next line is answered"


@pytest.mark.parametrize("end", ["ctrl-c", pytest.param("ctrl-d", marks=pytest.mark.slow)])
def test_ctrl_c_and_ctrl_d_end_it_quietly(end: str) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [*COMMAND, "tiny-exchange", "--max-tokens", "8"],
        stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=ENVIRONMENT,
    )  # fmt: skip
    try:
        seen, deadline = b"", time.monotonic() + 120
        while b"> " not in seen and time.monotonic() < deadline:
            seen += os.read(ours, 1024)
        if end == "ctrl-c":
            time.sleep(1)  # a signal that comes while readline begins to wait is not seen
            child.send_signal(signal.SIGINT)
        if end == "ctrl-d":
            os.write(ours, b"\x04")
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
        os.close(ours)
        os.close(theirs)
    assert child.returncode == 0 and b"Traceback" not in err, err


def test_what_cannot_be_talked_with_is_refused(cli: Cli, run: Path) -> None:
    assert "has no version 9" in refused(cli, "chat", "run", "--iteration", 9)
    assert "nowhere" in refused(cli, "chat", "./nowhere")
    assert "not a run folder" in refused(cli, "chat", "tiny-exchange", "--iteration", 1)
