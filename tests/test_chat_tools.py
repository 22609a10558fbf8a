"""`coterie chat` with tools: what is called is run and shown, and the model goes on with the results."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from coterie.cli.conversation import ChatOptions, Conversation, open_tools, parse_tools
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, EngineError, Sampling
from coterie.errors import UserError
from coterie.record.turn import Message
from coterie.tools.registry import ToolsSettings
from tests.templates import model

MULTIPLY = "examples/tool.py:multiply"
MANNER = ChatOptions(0.0, 64, 0, "")


class Saying(InProcessEngine):
    """Stands for a model that says these lines; it remembers its prompts."""

    lines: list[str]
    heard: list[tuple[int, ...]]

    async def sample(
        self,
        prompt: Sequence[int],
        seeds: Sequence[int],
        sampling: Sampling,
        *,
        on_token: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        self.heard.append(tuple(prompt))
        if not self.lines:
            raise EngineError("nothing is left to say")
        text = self.lines.pop(0)
        ids = tuple(self.loaded.tokenizer(text, add_special_tokens=False)["input_ids"])
        stop = next((one for one in sampling.stop if text.endswith(one)), "")
        shown = text.removesuffix(stop)
        return [Completion(ids, (0.0,) * len(ids), shown, "stop_string", 0, 0, stop)]


def converse(*lines: str, **keys: object) -> tuple[str, list[str], Conversation]:
    """What is shown, the prompts, and the conversation after one reply."""
    engine = Saying(model("chatml"), policy="p", version="0")
    engine.lines, engine.heard, shown = list(lines), [], list[str]()
    settings = ToolsSettings.model_validate({"use": (MULTIPLY,), "calls": "tags", **keys})

    async def test() -> Conversation:
        async with open_tools(settings, engine.loaded.renderer, 0) as has:
            assert has is not None
            opening = has.describe((Message.of("system", "Be brief."),))
            talk = Conversation(engine, MANNER, opening, has)
            talk.history.append(Message.of("user", "12 times 7?"))
            await talk.reply(shown.append)
            return talk

    talk = asyncio.run(test())
    return "".join(shown), [engine.loaded.renderer.decode(ids) for ids in engine.heard], talk


def test_a_call_is_run_and_the_model_goes_on_with_its_result() -> None:
    shown, heard, talk = converse("Let me see. <multiply>12 * 7</multiply>", "It is 84.")
    assert shown.index("12 * 7") < shown.index("\n84\n") < shown.index("It is 84.")
    assert "<multiply>numbers</multiply>" in heard[0] and heard[0].count("<|im_start|>system") == 1
    assert "<observation>\n84\n</observation>" in heard[1]
    assert "Let me see. <multiply>12 * 7</multiply>" in heard[1]
    assert [message.role for message in talk.history] == ["user", "assistant", "user", "assistant"]


def test_calls_end_with_the_rounds() -> None:
    shown, heard, _ = converse(*["<multiply>2 * 3</multiply>"] * 5, rounds=2)
    assert len(heard) == 3 and shown.count("\n6\n") == 2


def test_a_reply_that_fails_leaves_nothing_of_itself() -> None:
    engine = Saying(model("chatml"), policy="p", version="0")
    engine.lines, engine.heard = ["<multiply>2 * 3</multiply>"], []

    async def test() -> list[Message]:
        settings = ToolsSettings(use=(MULTIPLY,), calls="tags")
        async with open_tools(settings, engine.loaded.renderer, 0) as has:
            talk = Conversation(engine, MANNER, (), has)
            talk.history.append(Message.of("user", "2 * 3?"))
            with pytest.raises(EngineError):
                await talk.reply(lambda _: None)
            return talk.history

    assert [message.role for message in asyncio.run(test())] == ["user"]


def test_a_model_without_a_syntax_is_told_to_use_tags() -> None:
    async def test() -> None:
        async with open_tools(ToolsSettings(use=(MULTIPLY,)), model("chatml").renderer, 0):
            pass

    with pytest.raises(UserError, match="can't call tools in a syntax of its own"):
        asyncio.run(test())


@pytest.mark.parametrize("word", ["call=tags", "calls=xml", "rounds=0", "rounds"])
def test_words_that_are_wrong_are_told(word: str) -> None:
    with pytest.raises(UserError, match=word.partition("=")[0]):
        parse_tools("python", [word])
