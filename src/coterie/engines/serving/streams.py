"""A chat's reply as it grows: server-sent events, as chat windows want them.

Text is sent once it is settled: not the half of a character, nor what may be the beginning of a
stop string or of a call. The pieces joined are the reply that comes without streaming; a call comes whole.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.serving.chats import new_id, reply_of, room
from coterie.engines.serving.completions import decoded, usage
from coterie.engines.serving.connection import while_connected
from coterie.engines.serving.requests import ChatRequest
from coterie.engines.serving.responses import (
    ChatChunk,
    ChatFinish,
    ChunkChoice,
    Delta,
    ErrorBody,
    ErrorResponse,
)

DONE = "data: [DONE]\n\n"


class Events(StreamingResponse):
    """A stream that sees by itself to clients that go away, and to the end of the server."""

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await self.stream_response(send)


async def stream_reply(
    engine: InProcessEngine, body: ChatRequest, prompt: tuple[int, ...], request: Request
) -> AsyncIterator[str]:
    """The events of one reply; if the client goes away, the sampling ends."""
    head = ChatChunk(id=new_id(), created=int(time.time()), model=body.model, choices=[])
    heard: asyncio.Queue[int | None] = asyncio.Queue()
    sampling = body.sampling(room(engine, body, prompt), engine.timeout)
    task = asyncio.ensure_future(
        engine.sample(prompt, body.seeds(), sampling, on_token=heard.put_nowait)
    )
    task.add_done_callback(lambda _: heard.put_nowait(None))
    with while_connected(request, task):
        yield _piece(head, Delta(role="assistant", content=""))
        ids: list[int] = []
        sent = ""
        while (token := await _next(heard)) is not None:
            ids.append(token)
            if len(text := _settled(engine, body, ids)) > len(sent):
                yield _piece(head, Delta(content=text[len(sent) :]))
                sent = text
        if not task.done() or task.cancelled():
            return
        if (error := task.exception()) is not None:
            yield _failure(error)
            return
        (completion,) = task.result()
        said, finish = reply_of(engine, body, completion)
        if rest := (said.content or "")[len(sent) :]:
            yield _piece(head, Delta(content=rest))
        for index, call in enumerate(said.tool_calls or ()):
            one = call.model_copy(update={"index": index})
            yield _piece(head, Delta(tool_calls=[one]))
        yield _piece(head, Delta(), finish)
        if body.stream_options.include_usage:
            yield _event(head.model_copy(update={"usage": usage([prompt], [[completion]])}))
    yield DONE


async def _next(heard: asyncio.Queue[int | None]) -> int | None:
    """The next id; none after the last, and when the server ends."""
    try:
        return await heard.get()
    except asyncio.CancelledError:
        return None


def _settled(engine: InProcessEngine, body: ChatRequest, ids: Sequence[int]) -> str:
    """The beginning of a reply's text that later ids won't change."""
    if ids[-1] in engine.loaded.renderer.end_ids:
        return ""
    text = decoded(engine, body, ids).rstrip("\ufffd")
    if any(stop in text for stop in body.stops):
        return ""
    if body.offered:
        if text != engine.loaded.renderer.decode(ids).rstrip("\ufffd"):
            return ""
        text = engine.loaded.renderer.tools.required().settled(text)
    held = max(map(len, body.stops), default=1) - 1
    return text[: len(text) - held]


def _piece(head: ChatChunk, delta: Delta, finish: ChatFinish | None = None) -> str:
    choice = ChunkChoice(delta=delta, finish_reason=finish)
    return _event(head.model_copy(update={"choices": [choice]}))


def _failure(error: BaseException) -> str:
    body = ErrorBody(message=str(error), type="server_error", code=500)
    return _event(ErrorResponse(error=body))


def _event(body: BaseModel) -> str:
    return f"data: {body.model_dump_json(exclude_none=True)}\n\n"
