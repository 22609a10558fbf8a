"""HTTP server of OpenAI's protocols for programs whose model calls a run answers.

A session is one program. Its random id is its key and a part of its URL, ``/sessions/ID/v1``; ``/v1`` with the key
works, too. Requests wait in the session until the run answers them, which is in the order of their arrival.

A request is a client's retry if its client says so (``x-stainless-retry-count``, which OpenAI's libraries send), or if
the client of an equal request hung up before it got the reply. A retry gets the reply that was sampled already. Other
equal requests each get a sample. A request that no client waits for any more is withdrawn: its reply is no turn.
"""

import asyncio
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from coterie.environments.openai_api import (
    ModelReply,
    ModelRequest,
    Protocol,
    RequestError,
    read_request,
    reply_body,
    reply_events,
)
from coterie.environments.protocol import RequestWithdrawn

HOST = "127.0.0.1"
MAX_BYTES = 32 * 2**20
"""Maximum size of a request's body."""
RETRY = "x-stainless-retry-count"
CLOSE_SECONDS = 1
"""Seconds that open connections have to end when the server stops."""
RETRY_SECONDS = 10.0
"""Seconds that a client has to repeat a request after it hung up; OpenAI's libraries wait up to 8."""
POLL_SECONDS = 0.1
HUNG_UP = Response(status_code=499)
T = TypeVar("T")


class PendingRequest:
    """A request that waits for its replies."""

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.replies: list[ModelReply] = []
        self.answered: asyncio.Future[list[ModelReply]] = asyncio.get_running_loop().create_future()
        self.clients = 0
        """Connections that wait for the reply; a retry may come before the first one is closed."""
        self.has_hung_up = False
        """True if all clients left before they got the reply."""
        self._deadline: asyncio.Timeout | None = None
        self._leaves_at: float | None = None
        """Time on the loop's clock at which the request is withdrawn, if its client does not return."""

    async def deliver(self, sampling: Awaitable[T]) -> T:
        """Return what is sampled, if a client waits for it.

        Raises ``RequestWithdrawn``, and cancels the sampling, once no client has waited for :data:`RETRY_SECONDS`.
        """
        deadline = asyncio.timeout_at(self._leaves_at)
        try:
            async with deadline as self._deadline:
                reply = await sampling
                # Only a retry can still get it.
                while self.has_hung_up:
                    await asyncio.sleep(POLL_SECONDS)
                return reply
        except TimeoutError as error:
            if not deadline.expired():
                raise
            problem = "its program ended or its client left before the reply"
            raise RequestWithdrawn(problem) from error
        finally:
            self._deadline = None

    def leave(self, seconds: float | None) -> None:
        """Withdraw the request in ``seconds``; ``None``: its client has returned."""
        self.has_hung_up = seconds is not None
        self._leaves_at = None if seconds is None else asyncio.get_running_loop().time() + seconds
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(self._leaves_at)

    def answer(self, reply: ModelReply) -> bool:
        """Add a reply. Return True if it is the last one that the request asks for."""
        self.replies.append(reply)
        is_last = len(self.replies) == self.request.count
        if is_last and not self.answered.done():
            self.answered.set_result(self.replies)
            # A retry needs only the replies, and each request has the whole history.
            self.request = replace(self.request, messages=())
        return is_last

    def refuse(self, error: RequestError) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)
            self.answered.exception()  # mark it as retrieved: its client may have left


class GatewaySession:
    """Requests of one program.

    Args:
        url: Address of the gateway.
        models: Names of the roles, which requests give as their ``model``.
    """

    def __init__(self, url: str, models: Iterable[str]) -> None:
        self.api_key = secrets.token_urlsafe(18)
        self.base_url = f"{url}/sessions/{self.api_key}/v1"
        """Address for OpenAI's clients."""
        self.models = tuple(models)
        self.waiting: deque[PendingRequest] = deque()
        self._by_fingerprint: dict[str, list[PendingRequest]] = {}
        self.news = asyncio.Event()
        """Set when a request has arrived, or its program has ended."""
        self._closed: RequestError | None = None

    def add(self, request: ModelRequest, is_retry: bool) -> PendingRequest:
        """Return the request as a waiting one, or the earlier request that it repeats. Raises ``RequestError``."""
        if self._closed is not None:
            raise self._closed
        self.check_model(request.model)
        equal = self._by_fingerprint.setdefault(request.fingerprint, [])
        # Refused requests have no reply that could be given again.
        equal[:] = [p for p in equal if not (p.answered.done() and p.answered.exception())]
        abandoned = [pending for pending in equal if pending.has_hung_up]
        if repeated := abandoned[:1] or (equal[-1:] if is_retry else []):
            repeated[0].leave(None)
            return repeated[0]
        pending = PendingRequest(request)
        equal.append(pending)
        self.waiting.append(pending)
        self.news.set()
        return pending

    def check_model(self, name: str) -> None:
        if name not in self.models:
            problem = f"there is no model {name!r}; the models are: {', '.join(self.models)}"
            raise RequestError(problem, 404, "model_not_found")

    def hang_up(self, pending: PendingRequest) -> None:
        """Forget a request that still waits, since a retry can take its place; keep one that is being answered."""
        pending.leave(RETRY_SECONDS)
        if pending in self.waiting:
            self.waiting.remove(pending)
            self._by_fingerprint[pending.request.fingerprint].remove(pending)

    def close(self, error: RequestError) -> None:
        """Refuse all requests without a reply, and later ones."""
        self._closed = error
        for pending in [pending for equal in self._by_fingerprint.values() for pending in equal]:
            pending.refuse(error)


class Gateway:
    """Open sessions and their HTTP application."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sessions: dict[str, GatewaySession] = {}
        routes = []
        for prefix in ("/sessions/{session}/v1", "/v1"):
            for path, function, method in (
                ("/models", self._models, "GET"),
                ("/models/{model:path}", self._model, "GET"),
                ("/chat/completions", partial(self._complete, "chat"), "POST"),
                ("/responses", partial(self._complete, "responses"), "POST"),
            ):
                routes.append(Route(prefix + path, or_refusal(function), methods=[method]))
        unknown = RequestError("the routes are models, chat/completions and responses", 404)
        self.app = Router(routes, default=JSONResponse(unknown.body, 404))

    def open_session(self, models: Iterable[str]) -> GatewaySession:
        """Open a session for a program that may ask these models."""
        session = GatewaySession(self.url, models)
        self.sessions[session.api_key] = session
        return session

    def close_session(self, session: GatewaySession, reason: str = "") -> None:
        del self.sessions[session.api_key]
        session.close(RequestError(f"the session has ended{reason}", 410))

    def find(self, request: Request) -> GatewaySession:
        """Return the session of a request. Raises ``RequestError``."""
        key = key_of(request)
        id_ = request.path_params.get("session", key)
        if id_ != key:
            raise RequestError("the API key is not the key of this session", 401, "invalid_api_key")
        if id_ not in self.sessions:
            problem = (
                "no open session has this key (at `coterie gateway`, POST /sessions opens one)"
            )
            raise RequestError(problem, 401, "invalid_api_key")
        return self.sessions[id_]

    async def _models(self, request: Request) -> Response:
        data = [_model_entry(name) for name in self.find(request).models]
        return JSONResponse({"object": "list", "data": data})

    async def _model(self, request: Request) -> Response:
        session, name = self.find(request), request.path_params["model"]
        session.check_model(name)
        return JSONResponse(_model_entry(name))

    async def _complete(self, protocol: Protocol, request: Request) -> Response:
        session = self.find(request)
        body = read_request(protocol, await read_body(request))
        pending = session.add(body, request.headers.get(RETRY, "0") != "0")
        # After the whole body, the next message is the end of the connection.
        disconnect = asyncio.ensure_future(request.receive())
        pending.clients += 1
        try:
            await asyncio.wait((pending.answered, disconnect), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect.cancel()
            pending.clients -= 1
        if not pending.answered.done():
            if not pending.clients:
                session.hang_up(pending)
            return HUNG_UP
        replies = pending.answered.result()
        if body.streams:
            return Response("".join(reply_events(body, replies)), media_type="text/event-stream")
        return JSONResponse(reply_body(body, replies))


def key_of(request: Request) -> str:
    """Return the API key of a request, or an empty text."""
    key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return key or request.headers.get("x-api-key", "")


def _model_entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "coterie"}


def or_refusal(function: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """Return the route with refusals as OpenAI's error bodies."""

    async def answer(request: Request) -> Response:
        try:
            response: Response = await function(request)
            return response
        except RequestError as error:
            return JSONResponse(error.body, error.status)
        except ClientDisconnect:
            return HUNG_UP

    return answer


async def read_body(request: Request) -> bytes:
    """Return the body of a request. Raises ``RequestError`` if it is too large."""
    too_large = RequestError(f"the body has more than {MAX_BYTES:,} bytes", 413)
    if int(request.headers.get("content-length", 0)) > MAX_BYTES:
        raise too_large
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BYTES:
            raise too_large
    return bytes(body)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The run handles Ctrl-C itself.
        yield


@asynccontextmanager
async def open_gateway(listener: socket.socket | None = None) -> AsyncIterator[Gateway]:
    """Serve a gateway in this event loop, by default on a free port."""
    with listener or socket.create_server((HOST, 0), backlog=1024) as listener:
        # Connections inherit this. Otherwise each reply waits 40 ms for the client to confirm its head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        gateway = Gateway(f"http://{HOST}:{listener.getsockname()[1]}")
        config = uvicorn.Config(
            gateway.app,
            lifespan="off",
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield gateway
        finally:
            server.should_exit = True
            await serving
