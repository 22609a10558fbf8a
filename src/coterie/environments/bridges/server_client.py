"""Client of environment servers (AgentGym, NeMo Gym, OpenEnv), whose replies are not trusted.

A reply is limited in bytes and time and checked against its schema. Every error begins with the server's URL, so that
neither the policy nor coterie is blamed for it.
"""

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Self, TypeVar

import httpx2
from pydantic import Field, TypeAdapter, ValidationError

from coterie.engines.endpoint import backoff, quote, retry_after
from coterie.engines.protocol import IDLE_SECONDS, EngineError, EngineGone, run_now

Value = TypeVar("Value")
Finite = Annotated[float, Field(allow_inf_nan=False)]
"""Reward or score: a number, but not a bool."""
REPLY_BYTES = 1 << 20
"""Maximum size of a reply. A text of this size is longer than any context, and takes 200 MiB to tokenize."""
CONTAINERS = 200_000
"""Maximum number of lists and objects in JSON, each of which takes 70 times the memory of its two brackets."""
CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 30.0
"""Maximum time for the end of a session, which a run waits for."""
BUSY = (429, 503)
"""Statuses of a server that did not carry out a request."""
PAUSE = 0.1
"""Maximum seconds before a request to a busy server is sent again, if the server requests no other pause."""


class EnvironmentServerError(EngineError):
    """A server that failed or sent an invalid reply. Only its branch fails."""


_adapter: Any = cache(TypeAdapter)


def parse_json(url: str, kind: type[Value], body: bytes) -> Value:
    """Return the JSON of a reply as a value of ``kind``, a model or another type.

    Types are strict: ``"false"`` is no bool. Raises :class:`EnvironmentServerError`, also for JSON that nests deeper
    than the parser's 200 levels.
    """
    if body.count(b"[") + body.count(b"{") > CONTAINERS:
        raise EnvironmentServerError(f"{url} sent more than {CONTAINERS} lists and objects")
    return _validated(url, lambda: _adapter(kind).validate_json(body, strict=True), body)


def check_type(url: str, kind: type[Value], value: object, reply: object) -> Value:
    """Return a value of a parsed ``reply``. Raises :class:`EnvironmentServerError` if it is not of ``kind``."""
    return _validated(url, lambda: _adapter(kind).validate_python(value, strict=True), reply)


def _validated(url: str, validate: Callable[[], Value], reply: object) -> Value:
    try:
        return validate()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        text = reply if isinstance(reply, bytes) else str(reply)
        key = "".join(f"{quote(str(name))}: " for name in first["loc"])
        raise EnvironmentServerError(
            f"{url} sent an invalid reply: {key}{first['msg']}: {quote(text)}"
        ) from None


class ServerClient:
    """HTTP client of one server, opened with ``async with``. A request ends within ``seconds``, whatever is sent."""

    def __init__(self, url: str, seconds: float, reply_bytes: int = REPLY_BYTES) -> None:
        self.url = url.rstrip("/")
        self._seconds, self._reply_bytes = seconds, reply_bytes
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(keepalive_expiry=IDLE_SECONDS),
            # A packed reply of 2 MiB may have gigabytes, so packed ones are refused.
            headers={"Accept-Encoding": "identity"},
            trust_env=False,
            verify=self.url.startswith("https:"),  # certificates take 20 ms to load
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        seconds: float | None = None,
        tries: int = 1,
        **content: Any,
    ) -> tuple[int, bytes]:
        """Return the status and the body of a reply, after up to ``tries`` requests while the server is busy.

        All tries together end within ``seconds``. Raises ``EngineGone`` if nothing listens, and
        :class:`EnvironmentServerError` for other faults.
        """
        url, limit, status = f"{self.url}{path}", seconds or self._seconds, 0
        try:
            async with asyncio.timeout(limit):
                for attempt in range(tries):
                    status, body, pause = await self._send(method, url, content)
                    if status not in BUSY or attempt == tries - 1:
                        break
                    await asyncio.sleep(backoff(attempt, PAUSE) if pause is None else pause)
                return status, body
        except TimeoutError as error:
            busy = f", and status {status} before" if status else ""
            raise EnvironmentServerError(
                f"{url} did not answer within {limit:g} s{busy}"
            ) from error
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise EngineGone(f"no environment server answers at {self.url}: {error}") from error
        except (httpx2.HTTPError, OSError) as error:
            raise EnvironmentServerError(f"{url}: {quote(repr(error))}") from error

    async def _send(
        self, method: str, url: str, content: dict[str, Any]
    ) -> tuple[int, bytes, float | None]:
        """Return the status and the body of a reply, and the seconds after which the server wants the next request."""
        async with self._http.stream(method, url, **content) as response:
            headers = response.headers
            if (coding := headers.get("Content-Encoding", "identity")) != "identity":
                raise EnvironmentServerError(
                    f"{url} packs its reply as {quote(coding)}, which was not asked for"
                )
            if response.has_redirect_location:
                target = quote(headers["Location"])
                raise EnvironmentServerError(f"{url} redirects to {target}; use that address")
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > self._reply_bytes:
                    raise EnvironmentServerError(
                        f"{url} sent more than {self._reply_bytes >> 20} MiB in a reply"
                    )
            pause = retry_after(headers.get("Retry-After"), headers.get("Date"))
            return response.status_code, bytes(body), pause

    async def ask(self, method: str, path: str, kind: type[Value], **content: Any) -> Value:
        """Return the JSON of a reply with status 200. Raises as :meth:`request`."""
        status, body = await self.request(method, path, **content)
        if status != 200:
            raise self.failure(path, status, body)
        return parse_json(f"{self.url}{path}", kind, body)

    def failure(self, path: str, status: int, body: bytes) -> EnvironmentServerError:
        """Return the error of a reply, which quotes the body."""
        return EnvironmentServerError(f"{self.url}{path}: status {status}: {quote(body)}")


def ask_now(url: str, path: str, kind: type[Value], seconds: float) -> Value:
    """Return the JSON of a reply to GET, from a new connection."""

    async def ask() -> Value:
        async with ServerClient(url, seconds) as server:
            return await server.ask("GET", path, kind)

    return run_now(ask())
