"""Client of one inference server: token ids in, token ids and log-probs out.

Unknown fields of a reply are ignored; a missing field or wrong type fails validation.

A failure is a :class:`TransientFault` (worth a retry, on another server if possible) or a :class:`FinalFault`. The
caller sets timeouts (``asyncio.timeout``): canceling a call closes its connection, and the server then aborts the
request.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, Field, ValidationError

from coterie.engines.endpoint import retry_after
from coterie.engines.protocol import Completion, Sampling
from coterie.engines.sequence import Decode, ending
from coterie.record.turn import Finish


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
    """Fault that would repeat: context overflow, unknown model, malformed request."""


class PromptTokensDetails(BaseModel):
    """Details of the prompt tokens."""

    cached_tokens: int | None = None


class ReportedUsage(BaseModel):
    """Tokens of one request."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens from the server's prefix cache."""
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0


class Logprobs(BaseModel):
    """Log-probabilities of the sampled ids."""

    token_logprobs: list[float]


class Logprob(BaseModel):
    """One id's log-probability."""

    logprob: float


class ReportedChoice(BaseModel):
    """One completion."""

    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None


class CompletionReply(BaseModel):
    """``POST /v1/completions``."""

    model: str
    choices: list[ReportedChoice] = Field(min_length=1, max_length=1)
    usage: ReportedUsage


class ServedModel(BaseModel):
    """Model or adapter of a server."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class ServedModels(BaseModel):
    """``GET /v1/models``."""

    data: list[ServedModel]


class CacheReset(BaseModel):
    """``POST /reset_prefix_cache``."""

    success: bool = True


class ErrorInfo(BaseModel):
    """Error of a refused request."""

    message: str


class ErrorReply(BaseModel):
    """Body of a reply with a status of 400 or above."""

    error: ErrorInfo


# Connection pool with constant time per request.
#
# httpx2's own pool scans all connections at the start and end of every request. With 384 dialogues that took two
# thirds of this process's time (``bench/results/rollout-2026-11-21.md``). Here each request takes an idle connection,
# or opens one, and returns it.


class Connections(httpx2.AsyncBaseTransport):
    """Transport with one connection per request in flight.

    A connection that is idle for ``idle_seconds`` is closed when the next request ends.
    """

    def __init__(self, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._verify = httpx2.create_ssl_context(trust_env=False)
        self._all: set[httpx2.AsyncHTTPTransport] = set()
        self._idle: deque[tuple[float, httpx2.AsyncHTTPTransport]] = deque()
        """Idle connections with the start of their idle time (the loop's clock), least recent first."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        connection = self._idle.pop()[1] if self._idle else self._open()
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await self._close(connection)
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Body(response.stream, lambda: self._give_back(connection))
        return response

    async def aclose(self) -> None:
        """Close all connections, including connections in use."""
        self._idle.clear()
        for connection in list(self._all):
            await self._close(connection)

    def _open(self) -> httpx2.AsyncHTTPTransport:
        limits = httpx2.Limits(max_connections=1, keepalive_expiry=self._idle_seconds)
        connection = httpx2.AsyncHTTPTransport(verify=self._verify, trust_env=False, limits=limits)
        self._all.add(connection)
        return connection

    async def _close(self, connection: httpx2.AsyncHTTPTransport) -> None:
        self._all.discard(connection)
        await connection.aclose()

    async def _give_back(self, connection: httpx2.AsyncHTTPTransport) -> None:
        now = asyncio.get_running_loop().time()
        if connection in self._all:  # else it is closed
            self._idle.append((now, connection))
        while self._idle and self._idle[0][0] < now - self._idle_seconds:
            await self._close(self._idle.popleft()[1])


class _Body(httpx2.AsyncByteStream):
    """Body of a reply, whose end returns the connection."""

    def __init__(self, body: httpx2.AsyncByteStream, done: Callable[[], Awaitable[None]]) -> None:
        self._body = body
        self._done = done

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            yield piece

    async def aclose(self) -> None:
        """Close the body; called once by httpx2, also if the reader is canceled."""
        try:
            await self._body.aclose()
        finally:
            await self._done()


Reply = TypeVar("Reply", bound=BaseModel)
CONNECT_SECONDS = 10.0
HEALTH_SECONDS = 5.0
IDLE_SECONDS = 2.0
"""Idle time after which a connection is closed, shorter than on servers (uvicorn: 5 s)."""
AGAIN = {408, 409, 425, 429}
"""Client errors that are worth a retry."""


@dataclass(frozen=True, slots=True)
class ScoredIds:
    """Log-probs (nats, temperature 1) of the ids of a sequence from a start index."""

    logprobs: list[float]
    usage: ReportedUsage


class ServerClient:
    """Client of ``model`` on the server at ``url``.

    ``decode`` and ``end_ids`` come from the tokenizer in this process, as in
    :class:`~coterie.models.chat.ChatRenderer`, to find the end and the text of a completion.
    """

    def __init__(self, url: str, model: str, decode: Decode, end_ids: frozenset[int]) -> None:
        self.url = url.rstrip("/")
        self.model = model
        self._decode = decode
        self._ends = end_ids
        self._http = httpx2.AsyncClient(
            base_url=self.url,
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            transport=Connections(IDLE_SECONDS),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def complete(
        self, prompt: Sequence[int], seed: int, sampling: Sampling
    ) -> tuple[Completion, ReportedUsage]:
        body = {
            **self._request(prompt, sampling.max_tokens),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(self._ends),
            "include_stop_str_in_output": True,
            "logprobs": 0,
        }
        choice, usage = await self._choice(body, prompt)
        ids, logprobs = _sampled(choice, usage, sampling)
        if any(token in self._ends for token in ids[:-1]):
            raise TransientFault("the completion continues after an end-of-turn token")
        if (end := self._find_end(ids, sampling)) is None:
            raise TransientFault(
                f"wrong token count: {len(ids)} of up to {sampling.max_tokens} tokens, without an "
                "end-of-turn token or stop string"
            )
        count, finish, text, stop = end
        output, cached = tuple(ids[:count]), usage.cached_tokens
        return Completion(output, tuple(logprobs[:count]), text, finish, seed, cached, stop), usage

    async def score(self, ids: Sequence[int], start: int) -> ScoredIds:
        """Compute the log-probs of ``ids[start:]``. Raises a ``ServerFault``."""
        body = {**self._request(ids, 1), "temperature": 1.0, "prompt_logprobs": 0}
        choice, usage = await self._choice(body, ids)
        positions = choice.prompt_logprobs
        if positions is None or len(positions) != len(ids):
            count = "no" if positions is None else str(len(positions))
            raise TransientFault(f"{count} prompt log-probs for {len(ids)} tokens")
        entries = [(at or {}).get(token) for token, at in zip(ids, positions, strict=True)][start:]
        values = [one.logprob for one in entries if one is not None]
        if len(values) != len(entries):
            raise TransientFault("log-probs of some prompt tokens are missing")
        _check_logprobs(values)
        return ScoredIds(values, usage)

    async def healthy(self) -> bool:
        """Return True if the server's health check succeeds within a few seconds."""
        try:
            reply = await self._http.get("/health", timeout=HEALTH_SECONDS)
        except (httpx2.HTTPError, OSError):
            return False
        return reply.status_code == httpx2.codes.OK

    async def models(self) -> list[ServedModel]:
        return _parsed(ServedModels, await self._send("GET", "/v1/models", None)).data

    async def reset_cache(self) -> bool:
        """Drop the server's prefix cache. Return True on success. Raises a ``ServerFault``."""
        return _parsed(CacheReset, await self._send("POST", "/reset_prefix_cache", None)).success

    async def post(self, path: str, body: Mapping[str, Any]) -> None:
        """Send a request whose reply is only a status. Raises a ``ServerFault``."""
        await self._send("POST", path, body)

    def _request(self, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }

    def _find_end(self, ids: list[int], sampling: Sampling) -> tuple[int, Finish, str, str] | None:
        """Return the number of ids of a completion, its finish reason, text and stop string.

        A server decodes token by token and may miss a stop string of the whole text; tokens after it are dropped.
        """
        for count in range(1 if sampling.stop else len(ids), len(ids) + 1):
            if end := ending(ids[:count], sampling, self._ends, self._decode):
                return count, *end
        return None

    async def _choice(
        self, body: Mapping[str, Any], prompt: Sequence[int]
    ) -> tuple[ReportedChoice, ReportedUsage]:
        response = await self._send("POST", "/v1/completions", body)
        reply = _parsed(CompletionReply, response)
        (choice,) = reply.choices
        if reply.model != self.model:
            raise TransientFault(f"asked {self.model}, but {reply.model} answered")
        if choice.prompt_token_ids not in (None, list(prompt)):
            raise TransientFault("the server answered another prompt")
        if reply.usage.prompt_tokens != len(prompt):
            raise TransientFault(
                f"wrong token count: the prompt has {len(prompt)} tokens, but the server reports "
                f"{reply.usage.prompt_tokens}"
            )
        return choice, reply.usage

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> httpx2.Response:
        if self._http.is_closed:
            raise TransientFault(f"the connection to {self.url} is closed")
        try:
            response = await self._http.request(method, path, json=body)
        except (httpx2.HTTPError, OSError) as error:
            raise TransientFault(f"no answer from {self.url}: {error!r}") from error
        status = response.status_code
        if status < 400:
            return response
        problem = f"{self.url}{path} answered {status}: {_message(response)}"
        if status >= 500 or status in AGAIN:
            headers = response.headers
            raise TransientFault(
                problem, retry_after(headers.get("retry-after"), headers.get("date"))
            )
        raise FinalFault(problem)


def _sampled(
    choice: ReportedChoice, usage: ReportedUsage, sampling: Sampling
) -> tuple[list[int], list[float]]:
    """Return the checked ids and log-probs of a choice."""
    ids = choice.token_ids
    logprobs = choice.logprobs.token_logprobs if choice.logprobs else None
    if ids is None or logprobs is None:
        raise TransientFault("the reply has no token ids or no log-probs")
    counts = {len(ids), len(logprobs), usage.completion_tokens}
    if len(counts) > 1 or not 1 <= len(ids) <= sampling.max_tokens:
        raise TransientFault(
            f"wrong token count: {len(ids)} ids, {len(logprobs)} log-probs and "
            f"{usage.completion_tokens} counted, of up to {sampling.max_tokens}"
        )
    _check_logprobs(logprobs)
    greedy = sampling.temperature == 0
    return ids, [0.0] * len(ids) if greedy else logprobs


def _check_logprobs(logprobs: Sequence[float]) -> None:
    if not all(math.isfinite(logprob) and logprob <= 0 for logprob in logprobs):
        raise TransientFault("some log-probs are not finite, or above 0")


def _parsed(kind: type[Reply], response: httpx2.Response) -> Reply:
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise TransientFault(
            f"{response.url} sent an invalid reply: {where} {first['msg']}: {response.text[:200]!r}"
        ) from error


def _message(response: httpx2.Response) -> str:
    try:
        return ErrorReply.model_validate_json(response.content).error.message
    except ValidationError:
        return response.text[:500]
