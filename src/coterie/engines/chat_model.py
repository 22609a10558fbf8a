"""Chat model that is not trained (a simulated user, a judge), loaded in this process or at an endpoint.

Example::

    async with open_chat(ChatModelSettings(model="smollm2")) as chat:
        answer = await chat.ask([Utterance("user", "Hello")], seed=0)
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from pydantic import model_validator

from coterie.config.folders import read_json
from coterie.config.settings import key
from coterie.engines.endpoint import (
    Endpoint,
    EndpointSettings,
    RequestSettings,
    Utterance,
    find_key,
)
from coterie.engines.protocol import EngineError, Sampling
from coterie.engines.settings import DEVICE, device_name
from coterie.errors import UserError, did_you_mean
from coterie.record.tree import Tree
from coterie.record.turn import SAMPLED, Message, digest

if TYPE_CHECKING:
    from coterie.engines.inprocess import InProcessEngine

T = TypeVar("T")
NOBODY = "nobody"
"""Model of a judge that is not used."""
TRIES = 2
"""Requests for a judgment, until one can be parsed."""
_OBJECT = re.compile(r"\{[^{}]*\}")


class ChatModelSettings(RequestSettings):
    """Settings of a chat model."""

    main: ClassVar[str] = "model"

    model: str = key(
        ...,
        "A model that coterie loads, or with a `url` the name of a model on that server.",
        min_length=1,
    )
    url: str | None = key(
        None, "An OpenAI-compatible server, up to and including `/v1`.", quiet=True
    )
    temperature: float = key(0.0, "Sampling temperature; 0 is greedy.", ge=0, le=2)
    max_tokens: int = key(128, "Maximum number of tokens of a reply.", ge=1)
    device: str = key(
        "auto",
        "Device of a model that coterie loads: `auto`, `cpu`, `cuda`, `cuda:1`, ...",
        pattern=DEVICE,
    )

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        if self.model.startswith(("http://", "https://")):
            raise ValueError(
                "model is a URL; use url=URL model=NAME with the name of a model on the server"
            )
        if self.url is not None and self.model == type(self).model_fields["model"].default:
            raise ValueError(f"url={self.url} needs model=NAME, the name of a model on the server")
        _ = self.endpoint
        return self

    @property
    def endpoint(self) -> EndpointSettings | None:
        if self.url is None:
            return None
        common = {name: getattr(self, name) for name in RequestSettings.model_fields}
        return EndpointSettings(url=self.url, model=self.model, **common)

    def identity(self) -> tuple[object, ...]:
        args = [sorted(self.template_args.items())] if self.template_args else []
        return (self.model, self.url, self.temperature, self.max_tokens, *args)


class JudgeSettings(ChatModelSettings):
    """Settings of a chat model that judges answers."""

    model: str = key(
        NOBODY,
        "`nobody` (no judge), a model that coterie loads, or, with `url`, the name of a model there.",
        source="GAP: GPT-4.1 mini; AFM: Qwen2.5-72B-Instruct",
        min_length=1,
    )
    max_tokens: int = key(256, "Maximum tokens of a judgment.", ge=1)

    @property
    def judges(self) -> bool:
        return self.model != NOBODY


def check_chat(key: str, settings: ChatModelSettings, unset: str) -> None:
    """Raise ``UserError`` if the model or its API key is unavailable.

    ``key`` is the name of the setting in messages; the model called ``unset`` needs no loading.
    """
    if settings.key_variable is not None:
        find_key(settings.key_variable, Path())
    if settings.url is not None or settings.model == unset:
        return
    from coterie.models.loading import checked_skeleton, resolve

    try:
        resolve(settings.model)
        checked_skeleton(settings.model)
    except UserError as error:
        hint = did_you_mean(settings.model, [unset])
        raise UserError(f"{key}={settings.model}: {error.what}", hint + error.todo) from error


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a chat model."""

    text: str
    truncated: bool
    """True if the answer reached its token limit."""


class ChatModel(Protocol):
    """Model that answers chats."""

    name: str
    """Author name: ``model:NAME`` or ``endpoint:NAME``."""

    async def ask(self, chat: Sequence[Utterance], seed: int) -> Answer: ...


class EndpointChat:
    """Chat model behind an endpoint."""

    def __init__(self, endpoint: Endpoint, settings: ChatModelSettings) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.name = f"endpoint:{settings.model}"

    async def ask(self, chat: Sequence[Utterance], seed: int) -> Answer:
        s = self.settings
        reply = await self.endpoint.chat(
            chat, max_tokens=s.max_tokens, temperature=s.temperature, top_p=1.0, seed=seed % 2**31
        )
        return Answer(reply.text, reply.finish == "length")


class LoadedChat:
    """Chat model in this process."""

    def __init__(self, engine: "InProcessEngine", settings: ChatModelSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.name = f"model:{settings.model}"

    async def ask(self, chat: Sequence[Utterance], seed: int) -> Answer:
        s, model = self.settings, self.engine.loaded
        messages = [Message.of(utterance.role, utterance.text) for utterance in chat]
        prompt = model.renderer.render(messages, Tree("", "chat", 0), "")
        room = model.context_length - len(prompt)
        if room < 1:
            raise EngineError(
                f"the prompt has {len(prompt)} tokens, but the context of {s.model} is {model.context_length}"
            )
        sampling = Sampling(s.temperature, 1.0, min(s.max_tokens, room), (), s.timeout)
        (completion,) = await self.engine.sample(prompt, [seed], sampling)
        content = model.renderer.parts(completion.text, "", SAMPLED)[-1].text
        return Answer(content, completion.finish == "length")


@asynccontextmanager
async def open_chat(settings: ChatModelSettings) -> AsyncIterator[ChatModel]:
    """Open a chat model. Raises ``UserError`` for a missing key or model."""
    if settings.endpoint is not None:
        async with Endpoint(settings.endpoint) as endpoint:
            yield EndpointChat(endpoint, settings)
        return
    from coterie.engines.inprocess import InProcessEngine
    from coterie.models.loading import load

    device = device_name(settings.device)
    loaded = load(settings.model, device=device, template_args=settings.template_args)
    yield LoadedChat(InProcessEngine(loaded), settings)


@asynccontextmanager
async def open_as(role: Callable[[ChatModel], T], settings: ChatModelSettings) -> AsyncIterator[T]:
    """Open a chat model in a role, such as a judge."""
    async with open_chat(settings) as chat:
        yield role(chat)


async def ask_judge(
    chat: ChatModel, rules: str, prompt: str, read: Callable[[str], T | None], *seed: object
) -> T | None:
    """Return the judgment that ``read`` parses from a reply, or ``None`` if it can't be parsed.

    Args:
        chat: Judge.
        rules: System prompt.
        prompt: Prompt.
        read: Parser of a reply, which returns ``None`` for a reply without a judgment.
        seed: Values from which the seed is derived, so that equal questions get equal judgments.
    """
    messages = [Utterance("system", rules), Utterance("user", prompt)]
    for attempt in range(TRIES):
        # With the same seed the second try would repeat the unreadable reply.
        reply = await chat.ask(messages, int(digest(*seed, attempt)[:8], 16) % 2**31)
        if (judgment := read(reply.text)) is not None:
            return judgment
    return None


def json_objects(reply: str) -> Iterator[dict[str, Any]]:
    """Yield the flat JSON objects in a reply, the last one first, also those within prose or a fence."""
    # Models may reason or draft before they decide, so the last object counts.
    for text in reversed(_OBJECT.findall(reply)):
        with suppress(ValueError):
            yield read_json(text)
