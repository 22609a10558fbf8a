"""A client of one inference server: token ids in, token ids and log-probs out, nothing taken on trust.

Every reply is validated before anyone sees it. What fails is a
:class:`~coterie.engines.servers.faults.TransientFault` (try again, elsewhere if possible) or a
:class:`~coterie.engines.servers.faults.FinalFault`. Time limits are the caller's
(``asyncio.timeout``): cancelling a call closes its connection, on which servers abort the request.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from coterie.engines.limits import retry_after
from coterie.engines.protocol import Completion, Sampling
from coterie.engines.sequence import Decode, ending
from coterie.engines.servers.faults import FinalFault, TransientFault
from coterie.engines.servers.wire import (
    CacheReset,
    CompletionReply,
    ErrorReply,
    ReportedChoice,
    ReportedUsage,
    ServedModel,
    ServedModels,
)
from coterie.trajectories.turn import Finish

# Connections to a server, found in constant time however many are open.
#
# httpx2's own pool looks at every connection whenever a request begins and whenever one ends. With 384 dialogues that
# was two thirds of this process's time (``bench/results/rollout-2026-11-21.md``). Here each request takes an idle
# connection, or opens one, and gives it back.


class Connections(httpx2.AsyncBaseTransport):
    """A transport with one connection for each request in flight.

    A connection that was idle for ``kept_seconds`` is not used again, and closed when the next request ends.
    """

    def __init__(self, kept_seconds: float) -> None:
        self._kept_seconds = kept_seconds
        self._verify = httpx2.create_ssl_context(trust_env=False)
        self._all: set[httpx2.AsyncHTTPTransport] = set()
        self._idle: deque[tuple[float, httpx2.AsyncHTTPTransport]] = deque()
        """Since when (the loop's clock), and which; the last one used last."""

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
        """Close all connections, those in use too."""
        self._idle.clear()
        for connection in list(self._all):
            await self._close(connection)

    def _open(self) -> httpx2.AsyncHTTPTransport:
        limits = httpx2.Limits(max_connections=1, keepalive_expiry=self._kept_seconds)
        connection = httpx2.AsyncHTTPTransport(verify=self._verify, trust_env=False, limits=limits)
        self._all.add(connection)
        return connection

    async def _close(self, connection: httpx2.AsyncHTTPTransport) -> None:
        self._all.discard(connection)
        await connection.aclose()

    async def _give_back(self, connection: httpx2.AsyncHTTPTransport) -> None:
        now = asyncio.get_running_loop().time()
        if connection in self._all:  # else all of them were closed meanwhile
            self._idle.append((now, connection))
        while self._idle and self._idle[0][0] < now - self._kept_seconds:
            await self._close(self._idle.popleft()[1])


class _Body(httpx2.AsyncByteStream):
    """The body of a reply, after which its connection is given back."""

    def __init__(self, body: httpx2.AsyncByteStream, done: Callable[[], Awaitable[None]]) -> None:
        self._body = body
        self._done = done

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            yield piece

    async def aclose(self) -> None:
        """Close the body; called once by httpx2, also when its reader was cancelled."""
        try:
            await self._body.aclose()
        finally:
            await self._done()


Reply = TypeVar("Reply", bound=BaseModel)
CONNECT_SECONDS = 10.0
HEALTH_SECONDS = 5.0
KEPT_SECONDS = 2.0
"""An idle connection is dropped before a server would do so (uvicorn: 5 s)."""
AGAIN = {408, 409, 425, 429}
"""Client errors that a later try may not meet."""


@dataclass(frozen=True, slots=True)
class ScoredIds:
    """Log-probs (nats, temperature 1) of the ids of a sequence from ``start`` on."""

    logprobs: list[float]
    usage: ReportedUsage


class ServerClient:
    """Speaks to the server at ``url`` as ``model``, whose text is cut with our own tokenizer.

    ``decode`` and ``end_ids`` are the tokenizer's, as in
    :class:`~coterie.models.chat.ChatRenderer`.
    """

    def __init__(self, url: str, model: str, decode: Decode, end_ids: frozenset[int]) -> None:
        self.url = url.rstrip("/")
        self.model = model
        self._decode = decode
        self._ends = end_ids
        self._http = httpx2.AsyncClient(
            base_url=self.url,
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            transport=Connections(KEPT_SECONDS),
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
            raise TransientFault("the completion goes on after an end-of-turn token")
        if (end := self._ended(ids, sampling)) is None:
            raise TransientFault(
                f"wrong token count: {len(ids)} of up to {sampling.max_tokens} tokens, and no end "
                "of turn or stop string among them"
            )
        count, finish, text, stop = end
        output, cached = tuple(ids[:count]), usage.cached_tokens
        return Completion(output, tuple(logprobs[:count]), text, finish, seed, cached, stop), usage

    async def score(self, ids: Sequence[int], start: int) -> ScoredIds:
        """Log-probs of ``ids[start:]``, each given all before it. Raises a ``ServerFault``."""
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
        """Whether the server says, within a few seconds, that it is well."""
        try:
            reply = await self._http.get("/health", timeout=HEALTH_SECONDS)
        except (httpx2.HTTPError, OSError):
            return False
        return reply.status_code == httpx2.codes.OK

    async def models(self) -> list[ServedModel]:
        return _parsed(ServedModels, await self._send("GET", "/v1/models", None)).data

    async def reset_cache(self) -> bool:
        """Have the server drop its prefix cache; whether it could. Raises a ``ServerFault``."""
        return _parsed(CacheReset, await self._send("POST", "/reset_prefix_cache", None)).success

    async def post(self, path: str, body: Mapping[str, Any]) -> None:
        """Have the server do something whose answer is only a status. Raises a ``ServerFault``."""
        await self._send("POST", path, body)

    def _request(self, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }

    def _ended(self, ids: list[int], sampling: Sampling) -> tuple[int, Finish, str, str] | None:
        """Where and how a completion ends, its text, and its stop string.

        A server decodes token by token, and may miss a stop string that the whole text has; what it
        sampled after it is dropped, as if it had stopped.
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
            raise TransientFault("the server answers another prompt than it was sent")
        if reply.usage.prompt_tokens != len(prompt):
            raise TransientFault(
                f"wrong token count: a prompt of {len(prompt)} tokens, and the server counts "
                f"{reply.usage.prompt_tokens}"
            )
        return choice, reply.usage

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> httpx2.Response:
        if self._http.is_closed:
            raise TransientFault(f"{self.url} is gone")
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
    """Ids and log-probs of a choice, counted and checked."""
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
            f"{response.url} gave a broken reply: {where} {first['msg']}: {response.text[:200]!r}"
        ) from error


def _message(response: httpx2.Response) -> str:
    try:
        return ErrorReply.model_validate_json(response.content).error.message
    except ValidationError:
        return response.text[:500]
