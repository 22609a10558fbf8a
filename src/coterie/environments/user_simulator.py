"""Simulated users, who know the reference and answer questions, but do not write the answer.

The user is a script (in micro-worlds), a model that coterie loads, or a model at an endpoint. SWEET-RL (arXiv
2503.15478, section 3 and appendix) uses a large model that sees the reference. The prompt here is our own.
"""

import asyncio
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Protocol
from unicodedata import normalize

from coterie.config.settings import key
from coterie.engines.chat_model import ChatModel, ChatModelSettings
from coterie.engines.endpoint import Utterance
from coterie.errors import UserError
from coterie.record.tree import Task

PERSON = "person"
REFERENCE = "reference"
SCRIPT = "script"
LEAKED = 25
"""Length of a common substring of a reply and the reference, without spaces and quotation marks, that is a leak."""
_DROPPED = re.compile(r"^[ \t>|]+|[\s\\\"'`‘’“”\u200b-\u200d\ufeff]", re.MULTILINE)
_SENTENCE = re.compile(r"[.!?](?=\s|$)")

TranscriptLine = tuple[str, str]
"""Speaker (:data:`PERSON` or the agent's name), and the text visible to the listener."""


class UserSimulatorSettings(ChatModelSettings):
    """Settings of the simulated user."""

    model: str = key(
        SCRIPT,
        "`script` (micro-worlds only), a model that coterie loads, or, with `user_simulator.url`, the name "
        "of a model there.",
        source="SWEET-RL: Llama-3.1-70B-Instruct",
        min_length=1,
    )
    temperature: float = key(
        0.0, "Sampling temperature; 0 is greedy.", source="SWEET-RL", ge=0, le=2
    )
    max_tokens: int = key(128, "Maximum tokens of a reply.", source="SWEET-RL: 4096", ge=1)
    max_characters: int | None = key(
        None,
        "Maximum characters of a reply; longer replies are cut at the end of a sentence. None: 400 about code, 1000 "
        "about pages.",
        source="SWEET-RL: 400 and 1000, cut anywhere",
        ge=20,
    )

    def identity(self) -> tuple[object, ...]:
        return (*super().identity(), self.max_characters)


class UserSimulator(Protocol):
    """A simulated user that replies to an agent."""

    name: str
    """Author of its turns: ``script``, ``model:NAME`` or ``endpoint:NAME``."""

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        """Return the next reply. ``transcript`` begins with the user's first message."""


def check_script(script: UserSimulator | None) -> UserSimulator:
    if script is None:
        raise UserError(
            "this environment needs a simulated user, because it has no script",
            "set user_simulator=MODEL (coterie loads it), or user_simulator.url=URL user_simulator.model=NAME",
        )
    return script


class ModelUserSimulator:
    """A chat model in the role of the user."""

    max_characters = 400

    def __init__(self, chat: ChatModel, settings: UserSimulatorSettings) -> None:
        self.chat = chat
        self.settings = settings
        self.name = chat.name
        self.max_characters = settings.max_characters or self.max_characters

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        """Generate a reply, cut at a sentence. Some models repeat the label before it, which is removed."""
        prompt = await self.prompt(task, transcript)
        reply = await self.chat.ask([prompt], seed)
        text = reply.text.strip().removeprefix("You:")
        return cut_reply(text, self.max_characters, unfinished=reply.truncated)

    async def prompt(self, task: Task, transcript: Sequence[TranscriptLine]) -> Utterance:
        return Utterance("user", role(task, transcript, self.max_characters))


def role(task: Task, transcript: Sequence[TranscriptLine], max_characters: int) -> str:
    lines = [f"{'You' if who == PERSON else 'Assistant'}: {text}" for who, text in transcript]
    code = task.secrets[REFERENCE].reveal(PERSON)
    return _ROLE.format(
        code=code, max_characters=max_characters, transcript="\n".join([*lines, "You:"])
    )


def cut_reply(text: str, max_characters: int, *, unfinished: bool = False) -> str:
    """Cut a reply to at most ``max_characters`` characters, after a whole sentence or else a whole word.

    An ``unfinished`` reply, which reached the model's token limit, also loses its incomplete last sentence.
    """
    text = text.strip()
    if len(text) <= max_characters and not unfinished:
        return text
    ends = [end for match in _SENTENCE.finditer(text) if (end := match.end()) <= max_characters]
    if ends:
        return text[: ends[-1]]
    return text[: max_characters - 1].rsplit(None, 1)[0] + "…" if text else ""


def overlap(reply: str, reference: str) -> int:
    """Return the length of the longest common substring, ignoring spacing, line breaks, quotes and case."""
    texts = (normalize("NFKC", text.replace("\\n", "\n")) for text in (reply, reference))
    one, other = (_DROPPED.sub("", text).casefold() for text in texts)
    return SequenceMatcher(None, one, other, autojunk=False).find_longest_match().size


async def leaks(replies: Sequence[str], reference: str) -> int:
    sizes = await asyncio.to_thread(lambda: [overlap(reply, reference) for reply in replies])
    return sum(size >= LEAKED for size in sizes)


_ROLE = (
    "Play a person who asked an assistant for a Python function. The function must do exactly what this code does. The "
    "person knows what it does, but cannot read or write code:\n\n"
    "{code}\n\n"
    "Rules:\n"
    "- Answer the last message of the assistant in one or two short sentences, in plain words. Write the sentences "
    "alone.\n"
    "- A reply of more than {max_characters} characters is cut off.\n"
    "- Say only what the code above does. If the code does not tell, say: I do not know.\n"
    "- Do not quote or write code, and do not tell more than the assistant asked.\n\n"
    "The conversation so far:\n{transcript}"
)
