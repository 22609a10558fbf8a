"""Client of OpenAI-compatible servers, with keys and rate limits, for models that coterie does not load.

    async with Endpoint(EndpointSettings(url="http://127.0.0.1:8000/v1", model="tiny")) as judge:
        reply = await judge.chat([Utterance("user", "Hello")], max_tokens=50)
    print(judge.usage)

Keys come from the environment or from ``.env`` in the working folder; the environment has priority. Settings, which are
written to run folders, have the name of the variable, never the key.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from dotenv import dotenv_values
from pydantic import BaseModel, Field, ValidationError, field_validator

from coterie.config.settings import Settings, key, server_url
from coterie.engines.protocol import EngineError, EngineGone, RequestSlots
from coterie.engines.settings import OptionValue
from coterie.errors import UserError
from coterie.models.call_syntaxes import json_text, openai_tool
from coterie.record.turn import Tool, ToolCall

if TYPE_CHECKING:  # settings of endpoints are read by commands that ask none
    import httpx2

FILE = ".env"
ENDING = "_API_KEY"
USUAL = "OPENAI_API_KEY"
"""Listed by ``coterie doctor`` even if it is not set."""


class ApiKey:
    """API key that is redacted when printed; ``name`` is the name of its variable."""

    __slots__ = ("_text", "name")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text

    @property
    def header(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._text}"}

    def in_header(self, name: str) -> dict[str, str]:
        return {name: self._text}

    def redact(self, text: str) -> str:
        return text.replace(self._text, repr(self))

    def __repr__(self) -> str:
        return f"<{self.name}>"


def find_key(name: str, folder: Path) -> ApiKey:
    """Read the key of a variable from the environment or the ``.env`` of a folder.

    Raises :class:`UserError` if it is not set or not a valid key (the message does not have its value).
    """
    text = (os.environ.get(name) or _file(folder).get(name) or "").strip()
    if not text:
        raise UserError(
            f"{name} is not set",
            f"export {name}=..., or write the line {name}=... into {folder.resolve() / FILE}",
        )
    if not all("!" <= letter <= "~" for letter in text):
        raise UserError(
            f"the value of {name} is not a key: it has spaces or characters other than ASCII",
            "copy the key again",
        )
    return ApiKey(name, text)


def configured(folder: Path) -> dict[str, bool]:
    """Return the names of all ``..._API_KEY`` variables of the environment and ``.env``, with True if set."""
    values = {**_file(folder), **os.environ}
    names = sorted({USUAL, *(name for name in values if name.endswith(ENDING))})
    return {name: bool(values.get(name)) for name in names}


def _file(folder: Path) -> dict[str, str | None]:
    return dotenv_values(folder / FILE, interpolate=False, encoding="utf-8-sig")


MAX_WAIT = 120.0
"""Upper bound in seconds for a server's ``Retry-After``."""
LOOK = 0.5
"""Seconds between checks while waiting, because other requests may return tokens."""


class Limits:
    """Limits of requests and tokens per minute: requests start one after the other at an even pace."""

    def __init__(self, requests: float | None, tokens: float | None) -> None:
        self._request_seconds = 60 / requests if requests else 0.0
        self._token_seconds = 60 / tokens if tokens else 0.0
        self._requests_at = self._tokens_at = 0.0
        """Times (``time.monotonic``) from which the next request is within each limit."""
        self._turn = asyncio.Lock()

    async def admit(self, tokens: float) -> None:
        """Wait until a request with this number of tokens is allowed."""
        async with self._turn:
            while (wait := max(self._requests_at, self._tokens_at) - time.monotonic()) > 0:
                await asyncio.sleep(min(wait, LOOK))
            now = time.monotonic()
            self._requests_at = now + self._request_seconds
            self._tokens_at = now + tokens * self._token_seconds

    def settle(self, estimated: float, used: float) -> None:
        self._tokens_at += (used - estimated) * self._token_seconds

    def pause(self, seconds: float) -> None:
        """Stop all requests for this time, as the server requests."""
        self._requests_at = max(self._requests_at, time.monotonic() + seconds)


def retry_after(value: str | None, date: str | None) -> float | None:
    """Parse a ``Retry-After`` header to bounded seconds; a date is compared with the ``Date`` of the reply."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            until, since = parsedate_to_datetime(value), parsedate_to_datetime(date or "")
            seconds = (until - since).total_seconds()
        except (ValueError, TypeError, OverflowError):  # no date, or one without a time zone
            return None
    return min(max(seconds, 0.0), MAX_WAIT) if seconds == seconds else None


RETRY_STATUSES = (408, 409, 425, 429)
"""Statuses below 500 that are worth a retry."""
REFUSED = (401, 403)
"""Statuses of a wrong key, with which all requests fail."""
NO_CREDIT = "insufficient_quota"
"""Code of a 429 that is not worth a retry."""
SHOWN = 300
"""Maximum characters of a server's message in an error."""


class ServerFault(Exception):
    """Failure of one request to one server."""


class TransientFault(ServerFault):
    """Fault that is worth a retry: lost connection, status 5xx, invalid reply, too many requests.

    ``retry_after`` is the server's requested pause in seconds, if any.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class FinalFault(ServerFault):
    """Fault that would repeat: context overflow, unknown model, malformed request.

    If it is ``fatal``, all requests fail: wrong key, no credit. ``status`` is the HTTP status, if any.
    """

    def __init__(self, reason: str, *, fatal: bool = False, status: int = 0) -> None:
        super().__init__(reason)
        self.fatal, self.status = fatal, status


def quote(text: str | bytes) -> str:
    """Return the beginning of a stranger's text in one line, without characters that control a terminal."""
    if isinstance(text, bytes):
        text = text[: 4 * SHOWN].decode(errors="replace")
    text = " ".join(text.split())
    excerpt = "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:SHOWN])
    return excerpt if len(text) <= SHOWN else f"{excerpt} ..."


async def request(
    client: "httpx2.AsyncClient",
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    where: str = "",
    key: ApiKey | None = None,
) -> "httpx2.Response":
    """Return the answer of a request. Raise a :class:`ServerFault`, with the server's message, if it failed."""
    from httpx2 import HTTPError

    if client.is_closed:
        raise TransientFault(f"{where}the connection is closed")
    try:
        answer = await client.request(method, path, json=body)
    except (HTTPError, OSError) as error:
        raise TransientFault(f"{where}no connection: {error!r}") from error
    if answer.is_success:
        return answer
    text, code, status = answer.text, "", answer.status_code
    try:
        details = json.loads(answer.content)["error"]
        text, code = str(details["message"]), details.get("code")
    except (ValueError, TypeError, KeyError):
        pass
    problem = f"{where}status {status}: {quote(key.redact(text) if key else text)}"
    if status in REFUSED or code == NO_CREDIT:
        raise FinalFault(problem, fatal=True, status=status)
    if status in RETRY_STATUSES or status >= 500:
        headers = answer.headers
        raise TransientFault(problem, retry_after(headers.get("Retry-After"), headers.get("Date")))
    raise FinalFault(problem, status=status)


SLACK = 16
"""Tokens over the limit that a reply may have, since servers count the end of a turn in different ways."""
MAX_BACKOFF = 30.0
"""Maximum seconds between two tries, unless the server requests more."""
_JITTER = random.Random()


def backoff(attempt: int, base_seconds: float) -> float:
    """Return the seconds before a retry: double each time, and randomly up to half less."""
    return min(base_seconds * 2.0**attempt, MAX_BACKOFF) * _JITTER.uniform(0.5, 1)


BYTES_PER_TOKEN = 4
"""Estimate for a server that does not report tokens."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """Message of a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    calls: tuple[ToolCall, ...] = ()
    """Tool calls of an assistant message."""
    call_id: str = ""
    """Call that a tool message answers."""
    images: tuple[str, ...] = ()
    """URLs (also ``data:`` URLs) of images before the text, for vision models."""

    @property
    def body(self) -> dict[str, Any]:
        """Message in OpenAI's form."""
        calls = [
            {"id": call.id, "type": "function",
             "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.calls
        ]  # fmt: skip
        images = [{"type": "image_url", "image_url": {"url": url}} for url in self.images]
        return {
            "role": self.role,
            "content": [*images, {"type": "text", "text": self.text}] if images else self.text,
            **({"tool_calls": calls} if calls else {}),
            **({"tool_call_id": self.call_id} if self.call_id else {}),
        }


Finished = Literal["stop", "length", "other"]
"""Reason of an end; ``other``: for example a content filter."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply of a model."""

    text: str
    finish: Finished
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    estimated: bool
    """True if the server reports no tokens, and they are estimated from the bytes."""
    stop: str = ""
    """Stop string that ended the reply, which ``text`` does not have; empty if the server does not report it."""
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""
    """Thought of the reply with its tags, from the server's field or the text."""
    thought_tokens: int = 0
    """Completion tokens of the thought, reported by the server."""


class _Function(BaseModel):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _ToolCall(BaseModel):
    id: str | None = None
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Details(BaseModel):
    cached_tokens: int | None = Field(None, ge=0)
    reasoning_tokens: int | None = Field(None, ge=0)


class ReportedUsage(BaseModel):
    """Tokens of one request."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(0, ge=0)
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens from the server's prefix cache."""
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0


_FINISHES: dict[str, Finished] = {"stop": "stop", "tool_calls": "stop", "length": "length"}


class _Answer(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: ReportedUsage | None = None


def read_reply(content: bytes, prompt: int) -> Reply | None:
    """Parse the reply in a server's answer, if there is one; ``prompt`` estimates the prompt tokens without usage."""
    try:
        body = _Answer.model_validate_json(content)
    except ValidationError:  # dropped, because it may quote the API key
        return None
    choice, usage = body.choices[0], body.usage
    message, reason = choice.message, choice.finish_reason
    finish = _FINISHES.get(reason or "", "other")
    thought, text = split_thought(message.content or "")
    if reasoning_text := message.reasoning_content or message.reasoning:
        thought = f"<think>\n{reasoning_text}\n</think>\n\n"
    stop = choice.stop_reason if isinstance(choice.stop_reason, str) else ""
    calls = tuple(map(_call, message.tool_calls or ()))
    if usage is None:
        output = text + "".join(call.name + call.arguments for call in calls) + thought
        return Reply(text, finish, prompt, estimate(output), 0, True, stop, calls, thought)
    outputs = usage.completion_tokens_details
    tokens = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    reasoning = (outputs and outputs.reasoning_tokens) or 0
    return Reply(text, finish, *tokens, False, stop, calls, thought, reasoning)


def _call(call: _ToolCall) -> ToolCall:
    """Return a tool call; some servers send arguments as an object, or an empty text for no arguments."""
    arguments = call.function.arguments or "{}"
    text = arguments if isinstance(arguments, str) else json_text(arguments)
    return ToolCall(call.id or "", call.function.name or "", text)


def split_thought(text: str) -> tuple[str, str]:
    """Split a text into its thought and the rest; the start tag of the thought may be in the prompt."""
    thought, closed, content = text.partition("</think>")
    has_start = thought.lstrip().startswith("<think>")
    if not has_start and (not closed or "<think>" in thought):
        return "", text
    content = content.lstrip()
    return text[: len(text) - len(content)], content


def estimate(text: str) -> int:
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


BACKOFF = 1.0
"""Maximum seconds before the first retry."""


class RequestSettings(Settings):
    """Key, limits and retries of requests to a chat server."""

    key_variable: str | None = key(
        None,
        "Environment variable (or name in `.env`) of the API key, such as OPENAI_API_KEY; none: a server "
        "without keys. Not the key itself.",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        quiet=True,
    )
    requests_per_minute: float | None = key(None, "Maximum number of requests per minute.", ge=1)
    tokens_per_minute: float | None = key(
        None, "Maximum number of tokens per minute, prompts and replies together.", ge=1
    )
    concurrency: int = key(16, "Maximum number of concurrent requests.", ge=1)
    timeout: float = key(120.0, "Timeout of one try, in seconds.", gt=0)
    retries: int = key(5, "Number of retries after a transient failure.", ge=0, le=20)
    limit_name: Literal["max_tokens", "max_completion_tokens"] = key(
        "max_tokens", "The server's name of the token limit; newer models of OpenAI differ."
    )
    template_args: dict[str, OptionValue] = key(
        {},
        "Arguments of the model's chat template, such as `enable_thinking: false`, sent to a server as "
        "`chat_template_kwargs`.",
    )


class EndpointSettings(RequestSettings):
    """Settings of a model on a server."""

    url: str = key(
        ...,
        "URL such as https://api.openai.com/v1; `/v1` is added to a URL without a path.",
        quiet=True,
    )
    model: str = key(..., "Name of the model on the server.", min_length=1)
    prompt_price: float | None = key(None, "Price of a million prompt tokens.", ge=0)
    cached_price: float | None = key(
        None, "Price of a million cached prompt tokens; none: same as uncached.", ge=0
    )
    completion_price: float | None = key(None, "Price of a million completion tokens.", ge=0)

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parsed = server_url(url)
        if parsed.userinfo or parsed.query:
            raise ValueError("has a password or key; set key_variable to the name of its variable")
        return url.rstrip("/") + "/v1" * (parsed.path in ("", "/"))


@dataclass(slots=True)
class EndpointUsage:
    """Usage and cost of an endpoint so far."""

    settings: EndpointSettings
    requests: int = 0
    failures: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    """Number of requests with estimated tokens."""

    def add(self, reply: Reply) -> None:
        self.requests += 1
        self.prompt_tokens += reply.prompt_tokens
        self.cached_tokens += reply.cached_tokens
        self.completion_tokens += reply.completion_tokens
        self.estimated += reply.estimated

    @property
    def cost(self) -> float | None:
        """Cost in the currency of the prices, without failed tries; ``None`` without prices."""
        s = self.settings
        if s.prompt_price is None or s.completion_price is None:
            return None
        cached = s.prompt_price if s.cached_price is None else s.cached_price
        uncached = self.prompt_tokens - self.cached_tokens
        total = uncached * s.prompt_price + self.cached_tokens * cached
        return (total + self.completion_tokens * s.completion_price) / 1e6

    def __str__(self) -> str:
        text = (
            f"{self.settings.model}: {self.requests:,} requests, {self.prompt_tokens:,} prompt "
            f"tokens ({self.cached_tokens:,} cached), {self.completion_tokens:,} of replies"
        )
        text += f"; {self.estimated:,} requests by estimate" if self.estimated else ""
        return text if self.cost is None else f"{text}; cost {self.cost:.4f}"


class Endpoint:
    """Client of a chat model on a server, opened with ``async with``; its key may be in ``folder/.env``."""

    def __init__(self, settings: EndpointSettings, *, folder: Path = Path()) -> None:
        import httpx2

        self.settings = settings
        self.usage = EndpointUsage(settings)
        name = settings.key_variable
        self._key = None if name is None else find_key(name, folder)
        self._limits = Limits(settings.requests_per_minute, settings.tokens_per_minute)
        self._slots = RequestSlots(settings.concurrency)
        self._sees = False
        self._client = httpx2.AsyncClient(
            headers=self._key.header if self._key else {},
            timeout=None,  # see _try
            limits=httpx2.Limits(max_connections=settings.concurrency),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def chat(
        self,
        messages: Sequence[Utterance],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """Answer a chat. Raises :class:`EngineError` after a permanent failure, the last retry, or ignored images."""
        args = self.settings.template_args
        # Defaults of the protocol are omitted: some models accept no other value.
        body = {
            "model": self.settings.model,
            "messages": [message.body for message in messages],
            self.settings.limit_name: max_tokens,
            **({"temperature": temperature} if temperature != 1 else {}),
            **({"top_p": top_p} if top_p != 1 else {}),
            **({"stop": list(stop)} if stop else {}),
            **({} if seed is None else {"seed": seed}),
            **({"tools": [openai_tool(tool) for tool in tools]} if tools else {}),
            **({"chat_template_kwargs": args} if args else {}),
        }
        prompt = estimate(
            "".join(message.text for message in messages) + str(body.get("tools", ""))
        )
        async with self._slots:
            try:
                reply = await self._retry(body, prompt, prompt + max_tokens)
            except EngineError:
                self.usage.failures += 1
                raise
        self.usage.add(reply)
        if not reply.estimated and reply.completion_tokens > max_tokens + SLACK:
            raise EngineGone(
                f"{self.settings.model} at {self.settings.url} ignores {self.settings.limit_name}={max_tokens}: its "
                f"reply has {reply.completion_tokens:,} tokens; give the server's name of the limit (limit_name)"
            )
        if not self._sees and any(message.images for message in messages):
            without = await self.chat(
                [replace(message, images=()) for message in messages], max_tokens=1
            )
            if not reply.estimated and reply.prompt_tokens <= without.prompt_tokens:
                raise EngineGone(
                    f"{self.settings.model} at {self.settings.url} ignores pictures, which add no tokens to its "
                    "prompts; use a vision model (a simulated user also takes environment.user_sees=descriptions)"
                )
            self._sees = True
        return reply

    async def _retry(self, body: dict[str, Any], prompt: int, tokens: int) -> Reply:
        s = self.settings
        where = f"{s.model} at {s.url}"
        for attempt in range(s.retries + 1):
            await self._limits.admit(tokens)
            used = 0
            try:
                reply = await self._try(body, prompt)
                used = reply.prompt_tokens + reply.completion_tokens
                return reply
            except TransientFault as error:
                fault = error
            except FinalFault as error:
                raise (EngineGone if error.fatal else EngineError)(f"{where}: {error}") from error
            finally:
                self._limits.settle(tokens, used)
            self._limits.pause(fault.retry_after or 0.0)
            if attempt < s.retries:
                self.usage.retries += 1
                await asyncio.sleep(backoff(attempt, BACKOFF))
        tries = f"after {s.retries + 1} tries" if s.retries else "at once"
        raise EngineError(f"{where}: {fault} ({tries})") from fault

    async def _try(self, body: dict[str, Any], prompt: int) -> Reply:
        seconds, url = self.settings.timeout, f"{self.settings.url}/chat/completions"
        try:
            async with asyncio.timeout(seconds):
                answer = await request(self._client, "POST", url, body, key=self._key)
        except TimeoutError as error:
            raise TransientFault(f"no answer within {seconds:g} s") from error
        if (reply := read_reply(answer.content, prompt)) is None:
            text = self._key.redact(answer.text) if self._key else answer.text
            raise TransientFault(f"invalid reply: {quote(text)}")
        return reply
