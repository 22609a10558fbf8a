"""`coterie chat`: lines in, replies out; tools that are called; it ends quietly."""

import asyncio
import io
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from coterie.cli.conversation import ChatOptions, Conversation, open_engine, open_tools
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, EngineError, Sampling
from coterie.record.tree import Tree
from coterie.record.turn import Message
from coterie.tools.registry import ToolsSettings
from tests.conftest import Cli, refused
from tests.helpers.published_templates import published_tokenizer
from tests.helpers.template_models import make_model, random_model

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "coterie", "chat"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "2"}


def test_each_line_gets_a_reply_that_knows_what_was_said_before(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "hello\n\nhello\n/new\nhello\n/new\nhel\udcfflo\n" + "word " * 4000 + "\n/new\nhello\n"
    typed = io.BytesIO(lines.encode("utf-8", "surrogateescape"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(typed))
    result = cli("chat", "tiny-exchange", "--temperature", "0", "--max-tokens", "24")
    assert result.code == 0 and "Traceback" not in result.err, result.err
    first, second, new, odd, newest = result.out.splitlines()
    assert first and first != second, "the second reply has the first one before it"
    assert newest == new == first, "/new forgets what was said"
    assert odd.strip(), "bytes that are not text are answered"
    assert "type /new to start again" in result.err, "too many words end no conversation"


def test_template_arguments_reach_the_prompt(tmp_path: Path, cli: Cli) -> None:
    made = random_model(published_tokenizer("qwen3"), "qwen3")
    made.model.save_pretrained(tmp_path / "model")
    made.tokenizer.save_pretrained(tmp_path / "model")
    overrides = ["engine.device=cpu", "engine.template_args={enable_thinking: false}"]
    renderer = open_engine(str(tmp_path / "model"), None, overrides).loaded.renderer
    ids = renderer.render([Message.of("user", "a")], Tree("t", "r", 0), "A")
    assert renderer.decode(ids).endswith("<think>\n\n</think>\n\n")
    said = refused(cli, "chat", tmp_path / "model", "engine.template_args={enable_thinkin: false}")
    assert "has no argument 'enable_thinkin'" in said


@pytest.mark.slow
@pytest.mark.parametrize("end", ["ctrl-c", "ctrl-d"])
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


MULTIPLY = f"{ROOT}/examples/tool.py:multiply"
MANNER = ChatOptions(0.0, 64, 0, "")


class Saying(InProcessEngine):
    """Stands for a model that says these lines; it remembers its prompts."""

    lines: list[str]
    prompts: list[tuple[int, ...]]

    async def sample(
        self,
        prompt: Sequence[int],
        seeds: Sequence[int],
        sampling: Sampling,
        *,
        on_token: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        self.prompts.append(tuple(prompt))
        if not self.lines:
            raise EngineError("nothing is left to say")
        text = self.lines.pop(0)
        ids = tuple(self.loaded.tokenizer(text, add_special_tokens=False)["input_ids"])
        stop = next((one for one in sampling.stop if text.endswith(one)), "")
        visible = text.removesuffix(stop)
        return [Completion(ids, (0.0,) * len(ids), visible, "stop_string", 0, 0, stop)]


def converse(*lines: str, **keys: object) -> tuple[str, list[str], list[str]]:
    """Return what is output, the prompts, and the roles of the messages after one reply or its failure."""
    engine = Saying(make_model("chatml"), policy="p", version="0")
    engine.lines, engine.prompts, output = list(lines), [], list[str]()
    settings = ToolsSettings.model_validate({"use": (MULTIPLY,), "calls": "tags", **keys})

    async def test() -> list[str]:
        async with open_tools(settings, engine.loaded.renderer, 0) as has:
            assert has is not None
            opening = has.describe((Message.of("system", "Be brief."),))
            talk = Conversation(engine, MANNER, opening, has)
            talk.history.append(Message.of("user", "12 times 7?"))
            with suppress(EngineError):
                await talk.reply(output.append)
            return [message.role for message in talk.history]

    roles = asyncio.run(test())
    return "".join(output), [engine.loaded.renderer.decode(ids) for ids in engine.prompts], roles


def test_a_call_is_run_and_the_model_goes_on_with_its_result() -> None:
    output, prompts, roles = converse("Let me see. <multiply>12 * 7</multiply>", "It is 84.")
    assert output.index("12 * 7") < output.index("\n84\n") < output.index("It is 84.")
    assert (
        "<multiply>numbers</multiply>" in prompts[0] and prompts[0].count("<|im_start|>system") == 1
    )
    assert "<observation>\n84\n</observation>" in prompts[1]
    assert "Let me see. <multiply>12 * 7</multiply>" in prompts[1]
    assert roles == ["user", "assistant", "user", "assistant"]


def test_calls_end_with_the_rounds_and_a_reply_that_fails_leaves_nothing_of_itself() -> None:
    output, prompts, _ = converse(*["<multiply>2 * 3</multiply>"] * 5, rounds=2)
    assert len(prompts) == 3 and output.count("\n6\n") == 2
    assert converse("<multiply>2 * 3</multiply>")[2] == ["user"]
