"""A model that says whether an answer is right: GAP's and AFM's judge of web agents."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from coterie.config.settings import key
from coterie.config.text import read_json
from coterie.engines.chat_model import ChatModel, ChatModelSettings, open_chat
from coterie.engines.messages import Utterance
from coterie.trajectories.turn import digest

TRIES = 2
NOBODY = "nobody"
_OBJECT = re.compile(r"\{[^{}]*\}")
_ALONE = re.compile(r"\W*(correct|incorrect|yes|no)\W*", re.IGNORECASE)
_RIGHT, _WRONG = ("correct", "yes", "true"), ("incorrect", "no", "false")
_RULES = (
    "You check the answer of a student. Compare it with the right answers. It is correct if it means the same as one "
    "of them, however it is worded; further correct details do no harm. It is incorrect if it contradicts them, leaves "
    "out what was asked for, or gives several answers of which one is wrong. Do not answer the question yourself.\n"
    'Reply with JSON and nothing else: {"reason": "a few words", "judgement": "correct"} or '
    '{"reason": "a few words", "judgement": "incorrect"}'
)


class JudgeSettings(ChatModelSettings):
    """Which model judges, if any."""

    model: str = key(
        NOBODY,
        "`nobody`, a model that coterie loads, or, with `url`, the name of a model there.",
        source="GAP: GPT-4.1 mini; AFM: Qwen2.5-72B-Instruct",
        min_length=1,
    )
    max_tokens: int = key(256, "Most tokens of a judgement.", ge=1)

    @property
    def judges(self) -> bool:
        return self.model != NOBODY


class AnswerJudge:
    """Asks a chat model about answers."""

    def __init__(self, chat: ChatModel) -> None:
        self.chat = chat

    async def right(self, question: str, golds: Sequence[str], answer: str | None) -> float | None:
        """1.0 for a right answer, 0.0 for a wrong one or none; ``None`` if no reply could be read."""
        if answer is None:
            return 0.0
        listed = "\n".join(f"- {gold}" for gold in golds)
        asked = f"Question: {question}\nRight answers:\n{listed}\nThe student's answer: {answer}"
        said = [Utterance("system", _RULES), Utterance("user", asked)]
        for number in range(TRIES):
            seed = int(digest(question, answer, number)[:8], 16) % 2**31
            reply = await self.chat.ask(said, seed)
            if (found := read_judgement(reply.text)) is not None:
                return float(found)
        return None


def read_judgement(reply: str) -> bool | None:
    """What a reply says: JSON, also within prose or a fence, or the one word; ``None`` if it says neither."""
    for written in reversed(_OBJECT.findall(reply)):
        try:
            word = str(read_json(written).get("judgement")).strip().lower()
        except ValueError:
            continue
        if word in (*_RIGHT, *_WRONG):
            return word in _RIGHT
    alone = _ALONE.fullmatch(reply)
    return alone[1].lower() in _RIGHT if alone else None


@asynccontextmanager
async def open_judge(settings: JudgeSettings, logs: Path) -> AsyncIterator[AnswerJudge]:
    async with open_chat(settings, logs / "judge") as chat:
        yield AnswerJudge(chat)
