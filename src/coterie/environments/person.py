"""The person whom an agent works for: knows the reference, answers questions, does not write the answer.

Played by a script (micro-worlds), by a model that coterie serves itself, or by an endpoint. SWEET-RL (arXiv
2503.15478, section 3 and appendix) plays it with a large model that is shown the reference; the prompt
here is our own.
"""

import asyncio
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import ClassVar, Protocol, Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.engines.endpoint import Endpoint, EndpointSettings, Utterance
from coterie.engines.protocol import Engine, EngineError, Sampling
from coterie.engines.settings import EngineSettings
from coterie.models.chat import ChatRenderer
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Part

PERSON = "person"
"""The name of the role, which may read references."""
REFERENCE = "reference"
"""The secret that holds the right solution."""
SCRIPT = "script"
LEAKED = 30
"""Characters that a reply has in common with the reference, in one piece, from which it counts as a leak."""
_SENTENCE = re.compile(r"[.!?](?=\s|$)")

Said = tuple[str, str]
"""Who spoke (:data:`PERSON`, or the agent's name), and what the other one could read."""


class PersonSettings(Settings):
    """Who plays the person, and how."""

    main: ClassVar[str] = "model"

    model: str = key(
        SCRIPT,
        "`script` (micro-worlds only), a model that coterie serves itself, or, with `person.url`, the name "
        "of a model there.",
        source="SWEET-RL: Llama-3.1-70B-Instruct",
        min_length=1,
    )
    url: str | None = key(
        None, "An OpenAI-compatible server, up to and including `/v1`.", quiet=True
    )
    key_variable: str | None = key(
        None, "Environment variable (or name in `.env`) that holds the server's key.", quiet=True
    )
    concurrency: int = key(16, "Most requests to the server at a time.", ge=1)
    requests_per_minute: float | None = key(None, "Most requests in any minute.", ge=1)
    temperature: float = key(
        0.0, "Sampling temperature; 0 is greedy.", source="SWEET-RL: 0", ge=0, le=2
    )
    max_tokens: int = key(128, "Most tokens of a reply.", source="SWEET-RL: 4096", ge=1)
    longest: int = key(
        400,
        "Characters of a reply that the agent is shown; what is over is cut at the end of a sentence.",
        source="SWEET-RL: 400, cut anywhere",
        ge=20,
    )
    timeout: float = key(120.0, "Seconds after which one try is given up.", gt=0)
    engine: EngineSettings = EngineSettings()

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        if self.model.startswith(("http://", "https://")):
            raise ValueError(
                "give a server as person.url=URL, and person.model=NAME of the model there"
            )
        _ = self.endpoint
        return self

    @property
    def endpoint(self) -> EndpointSettings | None:
        """The server, if it is one."""
        if self.url is None:
            return None
        return EndpointSettings(
            url=self.url,
            model=self.model,
            key_variable=self.key_variable,
            concurrency=self.concurrency,
            requests_per_minute=self.requests_per_minute,
            timeout=self.timeout,
        )

    def identity(self) -> tuple[object, ...]:
        """What replies depend on."""
        return (self.model, self.url, self.temperature, self.max_tokens, self.longest)


class Person(Protocol):
    """Replies to an agent."""

    name: str
    """As the author of its turns: ``script``, ``model:NAME``, ``endpoint:NAME``."""

    async def reply(self, task: Task, said: Sequence[Said], seed: int) -> str:
        """What it says next; ``said`` begins with its own first message. Raises ``EngineError``."""
        ...


class EndpointPerson:
    """A model behind an OpenAI-compatible server."""

    def __init__(self, endpoint: Endpoint, settings: PersonSettings) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.name = f"endpoint:{settings.model}"

    async def reply(self, task: Task, said: Sequence[Said], seed: int) -> str:
        """One reply of the model, cut at a sentence."""
        s = self.settings
        asked = Utterance("user", "".join(part.text for part in role(task, said)))
        reply = await self.endpoint.chat(
            [asked],
            max_tokens=s.max_tokens,
            temperature=s.temperature,
            top_p=1.0,
            seed=seed % 2**31,
        )
        return cut_reply(reply.text, s.longest)


class ServedPerson:
    """A model on an engine of ours."""

    def __init__(
        self, engine: Engine, renderer: ChatRenderer, context: int, settings: PersonSettings
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.context = context
        self.settings = settings
        self.name = f"model:{settings.model}"

    async def reply(self, task: Task, said: Sequence[Said], seed: int) -> str:
        """One reply of the model, cut at a sentence."""
        s = self.settings
        shown = (Message("user", role(task, said)),)
        prompt = self.renderer.render(shown, Tree(task.id, PERSON, 0), PERSON)
        room = self.context - len(prompt)
        if room < 1:
            raise EngineError(
                f"the person's prompt has {len(prompt)} tokens, {s.model} takes {self.context}"
            )
        sampling = Sampling(s.temperature, 1.0, min(s.max_tokens, room), (), s.timeout)
        (found,) = await self.engine.sample(prompt, [seed], sampling)
        return cut_reply(found.text, s.longest)


def role(task: Task, said: Sequence[Said]) -> tuple[Part, ...]:
    """What a model is told that plays the person; what changes from turn to turn stands last."""
    lines = [f"{'You' if who == PERSON else 'Assistant'}: {text}" for who, text in said]
    return (
        Part(_ROLE, source="task"),
        task.secrets[REFERENCE].part(PERSON),
        Part(_RULES, source="task"),
        Part("\n".join([*lines, "You:"]), source="dialogue"),
    )


def cut_reply(text: str, longest: int) -> str:
    """A reply of at most ``longest`` characters: as many whole sentences as fit, or else whole words."""
    text = text.strip()
    if len(text) <= longest:
        return text
    ends = [found.end() for found in _SENTENCE.finditer(text, 0, longest)]
    if ends:
        return text[: ends[-1]]
    return text[: longest - 1].rsplit(None, 1)[0] + "…"


def overlap(reply: str, reference: str) -> int:
    """Characters of the longest piece that both have."""
    found = SequenceMatcher(None, reply, reference, autojunk=False)
    return found.find_longest_match().size


async def leaks(replies: Sequence[str], reference: str) -> int:
    """How many replies have a piece of :data:`LEAKED` characters or more of the reference."""

    def count() -> int:
        return sum(overlap(reply, reference) >= LEAKED for reply in replies)

    return await asyncio.to_thread(count)


_ROLE = (
    "Play a person who asked an assistant for a Python function. The person wants it to do exactly what this "
    "code does, but cannot read or write code:\n\n"
)
_RULES = (
    "\n\nRules:\n"
    "- Answer the assistant's last message in one or two short sentences, in plain words.\n"
    "- Say only what the code above tells. If it does not tell, say that you do not know.\n"
    "- Never quote or write code, and do not tell more than was asked.\n\n"
    "The conversation so far:\n"
)
