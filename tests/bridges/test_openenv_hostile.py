"""Hostile OpenEnv servers: every message is limited and checked, sessions end, and the error names the server."""

import asyncio
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("websockets")
from websockets.sync.server import Server, ServerConnection, serve

from coterie.engines.protocol import EngineError
from coterie.environments.acting import write_action
from coterie.environments.bridges import openenv
from coterie.environments.protocol import Shared
from coterie.errors import UserError
from tests.helpers.converse import converse

STEP = {"observation": {"text": "You see it."}, "reward": 1.0, "done": True}
MIB = 1 << 20


def observed(**changes: Any) -> str:
    return json.dumps({"type": "observation", "data": {**STEP, **changes}})


def failed(**data: Any) -> str:
    return json.dumps({"type": "error", "data": data})


TEXT = {"properties": {"text": {"type": "string"}}}
PINGS = (b"\x89\x7d" + bytes(125)) * 1000
"""Frames of pings, whose answers are as long."""


def deflated(mebibytes: int) -> bytes:
    """Return zeros as the payload of a compressed message, a thousandth of their size."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    pieces = [packer.compress(bytes(MIB)) for _ in range(mebibytes)]
    return b"".join((*pieces, packer.flush(zlib.Z_SYNC_FLUSH)))[:-4]


def frames(payload: bytes, size: int) -> Callable[[ServerConnection], None]:
    """Send a compressed message in frames of ``size`` bytes."""

    def send(connection: ServerConnection) -> None:
        for start in range(0, len(payload), size):
            piece = payload[start : start + size]
            # The first frame is compressed text, the others continue it, and the last one ends it.
            first = (0x40 | 1) * (start == 0) | 0x80 * (start + size >= len(payload))
            connection.socket.sendall(struct.pack(">BBH", first, 126, len(piece)) + piece)

    return send


BOMB = deflated(48)


def flood(connection: ServerConnection) -> None:
    """Send pings without reading the answers until the client has gone."""
    while True:
        connection.socket.sendall(PINGS)


@contextmanager
def serving(
    step: str | bytes | Callable[[ServerConnection], None] | None = None,
    reset: str | None = None,
    *,
    closes: bool = True,
    schema: object = TEXT,
    redirect: str = "",
    steps: int = 1,
) -> Iterator[str]:
    """Serve an environment that replies with ``step`` (``None``: not at all) to each step, and yield its URL."""
    get = {"/schema": {"action": schema}, "/metadata": {}}

    def routes(connection: ServerConnection, request: Any) -> Any:
        if request.path in get:
            return connection.respond(HTTPStatus.OK, json.dumps(get[request.path]))
        if redirect:
            response = connection.respond(HTTPStatus.FOUND, "")
            response.headers["Location"] = redirect
            return response
        return None

    def play(connection: ServerConnection) -> None:
        for text in connection:
            match json.loads(text)["type"]:
                case "reset":
                    connection.send(reset or observed(reward=None, done=False))
                case "step" if callable(step):
                    with suppress(OSError):
                        step(connection)
                case "step" if step is not None:
                    connection.send(step)
                case "state":
                    connection.send(json.dumps({"type": "state", "data": {"step_count": steps}}))
                case "close" if closes:
                    return

    server: Server = serve(play, "127.0.0.1", 0, process_request=routes)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
    finally:
        server.shutdown()
        thread.join()


def play(url: str) -> float | None:
    environment = openenv.OpenEnv(openenv.OpenEnvSettings(url=url))
    (task,) = environment.tasks("heldout", 1, 0)
    _, grade = asyncio.run(converse(environment, task, [write_action("look")], Shared()))
    return grade and grade.score


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (observed(reward=float("inf")), "finite number"),
        (observed(reward="1"), "valid number"),
        (observed(done="false"), "valid boolean"),
        (observed(observation=["x"]), "valid dictionary"),
        ('{"type": "observation", "data": {"observation": {}}}', "Field required"),
        ('{"type": "observation", "data": []}', "should be an object"),
        ("[" * 100_000, "recursion limit"),
        ("<html>", "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        ("x" * (17 * MIB), "message too big"),
        (failed(code="VALIDATION_ERROR", errors=[1]), "valid dictionary"),
        (failed(message="broken", code="EXECUTION_ERROR"), "broken (EXECUTION_ERROR)"),
        (failed(message="\x1b" + "x" * 100_000, code="x" * 100_000), "\ufffdxxx"),
        (frames(BOMB, 65_000), "frame exceeds limit of 1048576 bytes"),
        (frames(BOMB, 5000), "frame exceeds limit of 1048576 bytes"),
        (frames(b"\xff" * 100, 100), "decompression failed"),
        (flood, "lost: ConnectionClosedError"),
        (None, "connection to the OpenEnv server is lost: TimeoutError"),
    ],
)
def test_a_hostile_message_ends_in_an_error_with_the_url(
    step: str | bytes | Callable[[ServerConnection], None] | None,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openenv, "SECONDS", 1.0)
    monkeypatch.setattr(openenv, "FRAMES", 100)
    with serving(step) as url, pytest.raises(EngineError) as caught:
        play(url)
    assert url.partition(":")[2] in str(caught.value) and expected in str(caught.value)
    assert len(str(caught.value)) < 1000 and str(caught.value).isprintable()


@pytest.mark.parametrize("closes", [True, False])
def test_a_session_ends_also_if_the_server_does_not_end_it(
    closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openenv, "CLOSE_SECONDS", 0.2)
    with serving(observed(), closes=closes) as url:
        assert play(url) == 1


def test_a_server_that_never_reads_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SECONDS": 1.0, "CLOSE_SECONDS": 0.2, "FRAMES": 10**9}.items():
        monkeypatch.setattr(openenv, name, value)
    with serving(flood) as url, pytest.raises(EngineError, match="TimeoutError"):
        play(url)


def test_no_redirect_is_followed() -> None:
    with serving(observed()) as right:
        for address in (
            right.replace("http", "ws") + "/ws",
            "ws://a:99999999/",
            "file:///dev/zero",
        ):
            with serving(redirect=address) as url, pytest.raises(UserError, match="HTTP 302"):
                play(url)


def test_a_server_with_a_wrong_reply_to_reset_is_refused_before_the_run() -> None:
    with serving(observed(), reset=observed(done=0)) as url, pytest.raises(UserError, match="done"):
        play(url)
