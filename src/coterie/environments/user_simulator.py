"""The person whom an agent works for: knows the reference, answers questions, does not write the answer.

Played by a script (micro-worlds), by a model that coterie loads, or by an endpoint. SWEET-RL (arXiv
2503.15478, section 3 and appendix) plays it with a large model that is shown the reference; the prompt
here is our own.
"""

import asyncio
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Protocol
from unicodedata import normalize

from coterie.config.settings import key
from coterie.engines.chat_model import ChatModel, ChatModelSettings
from coterie.engines.messages import Utterance
from coterie.errors import UserError
from coterie.trajectories.task import Task

PERSON = "person"
"""The name of the role, which may read references."""
REFERENCE = "reference"
"""The secret that holds the right solution."""
SCRIPT = "script"
LEAKED = 25
"""Characters that a reply has in common with the reference, in one piece, from which it counts as a leak; without
spaces and quotation marks."""
_DROPPED = re.compile(r"^[ \t>|]+|[\s\\\"'`‘’“”\u200b-\u200d\ufeff]", re.MULTILINE)
_SENTENCE = re.compile(r"[.!?](?=\s|$)")

TranscriptLine = tuple[str, str]
"""Who spoke (:data:`PERSON`, or the agent's name), and what the other one could read."""


class UserSimulatorSettings(ChatModelSettings):
    """Who plays the person, and how."""

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
    max_tokens: int = key(128, "Most tokens of a reply.", source="SWEET-RL: 4096", ge=1)
    max_characters: int = key(
        400,
        "Characters of a reply that the agent is shown; what is over is cut at the end of a sentence.",
        source="SWEET-RL: 400, cut anywhere",
        ge=20,
    )

    def identity(self) -> tuple[object, ...]:
        return (*super().identity(), self.max_characters)


class UserSimulator(Protocol):
    """Replies to an agent."""

    name: str
    """As the author of its turns: ``script``, ``model:NAME``, ``endpoint:NAME``."""

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        """What it says next; ``transcript`` begins with its own first message. Raises ``EngineError``."""
        ...


def check_script(script: UserSimulator | None) -> UserSimulator:
    """The script of an environment; raises ``UserError`` if it has none, for then somebody must play the person."""
    if script is None:
        raise UserError(
            "nobody plays the person: this environment has no script",
            "give user_simulator=MODEL (coterie loads it), or user_simulator.url=URL user_simulator.model=NAME",
        )
    return script


class ModelUserSimulator:
    """A chat model in the role of the person."""

    def __init__(self, chat: ChatModel, settings: UserSimulatorSettings) -> None:
        self.chat = chat
        self.settings = settings
        self.name = chat.name

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        """One reply of the model, cut at a sentence; some models repeat the name that stands before it."""
        reply = await self.chat.ask(
            [Utterance("user", role(task, transcript, self.settings.max_characters))], seed
        )
        text = reply.text.strip().removeprefix("You:")
        return cut_reply(text, self.settings.max_characters, unfinished=reply.truncated)


def role(task: Task, transcript: Sequence[TranscriptLine], max_characters: int) -> str:
    """What a model is told that plays the person; what changes from turn to turn stands last."""
    lines = [f"{'You' if who == PERSON else 'Assistant'}: {text}" for who, text in transcript]
    code = task.secrets[REFERENCE].reveal(PERSON)
    return _ROLE.format(
        code=code, max_characters=max_characters, transcript="\n".join([*lines, "You:"])
    )


def cut_reply(text: str, max_characters: int, *, unfinished: bool = False) -> str:
    """A reply of at most ``max_characters`` characters: as many whole sentences as fit, or else whole words.

    Of an ``unfinished`` one, which ran to the model's limit, the last piece of a sentence goes too.
    """
    text = text.strip()
    if len(text) <= max_characters and not unfinished:
        return text
    ends = [end for found in _SENTENCE.finditer(text) if (end := found.end()) <= max_characters]
    if ends:
        return text[: ends[-1]]
    return text[: max_characters - 1].rsplit(None, 1)[0] + "…" if text else ""


def overlap(reply: str, reference: str) -> int:
    """Count the characters of the longest piece that both have, however it is spaced, broken, quoted or capitalized."""
    texts = (normalize("NFKC", text.replace("\\n", "\n")) for text in (reply, reference))
    one, other = (_DROPPED.sub("", text).casefold() for text in texts)
    return SequenceMatcher(None, one, other, autojunk=False).find_longest_match().size


async def leaks(replies: Sequence[str], reference: str) -> int:
    """Count the replies that have a piece of :data:`LEAKED` characters or more of the reference."""

    def count() -> int:
        return sum(overlap(reply, reference) >= LEAKED for reply in replies)

    return await asyncio.to_thread(count)


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
