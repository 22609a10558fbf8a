"""Client of an OpenAI-compatible server, for models that are not trained: judges, simulated users, policies in
evaluation.

    async with Endpoint(EndpointSettings(url="http://127.0.0.1:8000/v1", model="tiny")) as judge:
        reply = await judge.chat([Utterance("user", "Hello")], max_tokens=50)
    print(judge.usage)
"""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import httpx2
from pydantic import field_validator

from coterie.config.settings import Settings, key
from coterie.config.urls import server_url
from coterie.engines.keys import find_key
from coterie.engines.limits import MAX_WAIT, Limits, retry_after
from coterie.engines.messages import Reply, Utterance, estimate, read_reply
from coterie.engines.protocol import EngineError, EngineGone
from coterie.engines.servers.settings import OptionValue
from coterie.models.tool_calls import openai_tool
from coterie.trajectories.calls import Tool

SHOWN = 300
"""Maximum characters of a server's message in an error."""
MAX_BACKOFF = 30.0
"""Maximum seconds between two tries, unless the server requests more."""
AGAIN = (408, 409, 425, 429)
"""Statuses below 500 that are worth a retry."""
REFUSED = (401, 403)
"""Statuses of a wrong key, with which all requests fail."""
NO_CREDIT = "insufficient_quota"
"""Code of a 429 that is not worth a retry."""


class RequestSettings(Settings):
    """Key, limits, retries and prices of requests to a chat server."""

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
    backoff: float = key(
        1.0, "Seconds before the first retry (randomly up to half less); doubles each time.", gt=0
    )
    limit_name: Literal["max_tokens", "max_completion_tokens"] = key(
        "max_tokens", "The server's name of the token limit; newer models of OpenAI differ."
    )
    template_args: dict[str, OptionValue] = key(
        {},
        "Arguments of the model's chat template, such as `enable_thinking: false`, sent to a server as "
        "`chat_template_kwargs`.",
    )
    prompt_price: float | None = key(None, "Price of a million prompt tokens.", ge=0)
    cached_price: float | None = key(
        None, "Price of a million cached prompt tokens; none: same as uncached.", ge=0
    )
    completion_price: float | None = key(None, "Price of a million completion tokens.", ge=0)


class EndpointSettings(RequestSettings):
    """Settings of a model on a server."""

    url: str = key(
        ...,
        "URL such as https://api.openai.com/v1; `/v1` is added to a URL without a path.",
        quiet=True,
    )
    model: str = key(..., "Name of the model on the server.", min_length=1)

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
        parts = ((uncached, s.prompt_price), (self.cached_tokens, cached))
        total = sum(count * price for count, price in parts)
        return (total + self.completion_tokens * s.completion_price) / 1e6

    def __str__(self) -> str:
        text = (
            f"{self.settings.model}: {self.requests:,} requests, {self.prompt_tokens:,} prompt "
            f"tokens ({self.cached_tokens:,} cached), {self.completion_tokens:,} of replies"
        )
        text += f"; {self.estimated:,} requests by estimate" if self.estimated else ""
        return text if self.cost is None else f"{text}; cost {self.cost:.4f}"


class Endpoint:
    """Client of a chat model on a server, opened with ``async with``.

    Raises :class:`~coterie.errors.UserError` if the key is missing in the environment and in ``folder/.env``.
    """

    def __init__(self, settings: EndpointSettings, *, folder: Path = Path()) -> None:
        self.settings = settings
        self.usage = EndpointUsage(settings)
        name = settings.key_variable
        self._key = None if name is None else find_key(name, folder)
        self._limits = Limits(settings.requests_per_minute, settings.tokens_per_minute)
        self._places = asyncio.Semaphore(settings.concurrency)
        self._chance = random.Random()
        self._client = httpx2.AsyncClient(
            headers=self._key.header if self._key else {},
            timeout=settings.timeout,
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
        """Answer a chat. Raises :class:`EngineError` after a permanent failure or the last retry."""
        body: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [one.body for one in messages],
            self.settings.limit_name: max_tokens,
        }
        # Defaults of the protocol are omitted: some models accept no other value.
        body |= {"temperature": temperature} if temperature != 1 else {}
        body |= {"top_p": top_p} if top_p != 1 else {}
        body |= {"stop": list(stop)} if stop else {}
        body |= {} if seed is None else {"seed": seed}
        body |= {"tools": [openai_tool(tool) for tool in tools]} if tools else {}
        args = self.settings.template_args
        body |= {"chat_template_kwargs": args} if args else {}
        prompt = estimate("".join(one.text for one in messages) + str(body.get("tools", "")))
        async with self._places:
            try:
                reply = await self._retry(body, prompt, prompt + max_tokens)
            except EngineError:
                self.usage.failures += 1
                raise
        self.usage.add(reply)
        return reply

    async def _retry(self, body: dict[str, Any], prompt: int, tokens: int) -> Reply:
        """Try until success, a permanent failure, or the last retry."""
        for attempt in range(self.settings.retries + 1):
            await self._limits.admit(tokens)
            try:
                reply = await self._try(body, prompt)
            except _Transient as error:
                self._limits.settle(tokens, 0)
                failure = error
            except BaseException:
                self._limits.settle(tokens, 0)
                raise
            else:
                self._limits.settle(tokens, reply.prompt_tokens + reply.completion_tokens)
                return reply
            if failure.wait is not None:
                self._limits.pause(failure.wait)
            if attempt < self.settings.retries:
                self.usage.retries += 1
                await asyncio.sleep(self._backoff(attempt))
        tries = f"after {self.settings.retries + 1} tries" if self.settings.retries else "at once"
        raise self._error(f"{failure} ({tries})") from failure

    async def _try(self, body: dict[str, Any], prompt: int) -> Reply:
        """Send one request. Raises :class:`_Transient`, or ``EngineError`` for a permanent failure."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                answer = await self._client.post(f"{self.settings.url}/chat/completions", json=body)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise _Transient(f"no answer within {self.settings.timeout:g} s") from error
        except httpx2.RequestError as error:
            raise _Transient(f"no connection: {self._quote(str(error) or repr(error))}") from error
        if answer.is_success:
            return self._read(answer, prompt)
        text, kind = _message(answer)
        problem = f"status {answer.status_code}: {self._quote(text)}"
        again = answer.status_code in AGAIN or answer.status_code >= 500
        if answer.status_code in REFUSED or kind == NO_CREDIT:
            raise EngineGone(f"{self.settings.model} at {self.settings.url}: {problem}")
        if not again:
            raise self._error(problem)
        headers = answer.headers
        raise _Transient(problem, retry_after(headers.get("Retry-After"), headers.get("Date")))

    def _backoff(self, attempt: int) -> float:
        longest = min(self.settings.backoff * 2.0**attempt, MAX_BACKOFF, MAX_WAIT)
        return longest * self._chance.uniform(0.5, 1)

    def _read(self, answer: httpx2.Response, prompt: int) -> Reply:
        """Parse the reply; its usage is estimated if the server does not report it."""
        reply = read_reply(answer.content, prompt)
        if reply is None:
            raise _Transient(f"invalid reply: {self._quote(answer.text)}")
        return reply

    def _quote(self, text: str) -> str:
        text = " ".join((self._key.redact(text) if self._key else text).split())
        return text if len(text) <= SHOWN else text[:SHOWN] + " ..."

    def _error(self, what: str) -> EngineError:
        return EngineError(f"{self.settings.model} at {self.settings.url}: {what}")


class _Transient(Exception):
    """Failure that is worth a retry, after ``wait`` seconds if the server requests them."""

    def __init__(self, what: str, wait: float | None = None) -> None:
        super().__init__(what)
        self.wait = wait


def _message(answer: httpx2.Response) -> tuple[str, str]:
    try:
        error = json.loads(answer.content)["error"]
        return str(error["message"]), str(error.get("code") or error.get("type"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return answer.text, ""
