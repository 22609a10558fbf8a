"""Hostile OpenEnv servers: every message is limited and checked, sessions end, and the error names the server."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
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
from tests.playing import converse

STEP = {"observation": {"text": "You see it."}, "reward": 1.0, "done": True}
MIB = 1 << 20


def observed(**changes: Any) -> str:
    return json.dumps({"type": "observation", "data": {**STEP, **changes}})


def failed(**data: Any) -> str:
    return json.dumps({"type": "error", "data": data})


@contextmanager
def serving(
    step: str | bytes | None, reset: str | None = None, *, closes: bool = True
) -> Iterator[str]:
    """Serve an environment that replies with ``step`` (``None``: not at all) to each step, and yield its URL."""
    get = {"/schema": {"action": {"properties": {"text": {"type": "string"}}}}, "/metadata": {}}

    def routes(connection: ServerConnection, request: Any) -> Any:
        if request.path in get:
            return connection.respond(HTTPStatus.OK, json.dumps(get[request.path]))
        return None

    def play(connection: ServerConnection) -> None:
        for text in connection:
            match json.loads(text)["type"]:
                case "reset":
                    connection.send(reset or observed(reward=None, done=False))
                case "step" if step is not None:
                    connection.send(step)
                case "state":
                    connection.send('{"type": "state", "data": {"step_count": 1}}')
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
        (None, "connection to the OpenEnv server is lost: TimeoutError"),
    ],
)
def test_a_hostile_message_ends_in_an_error_with_the_url(
    step: str | bytes | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openenv, "SECONDS", 1.0)
    with serving(step) as url, pytest.raises(EngineError) as caught:
        play(url)
    assert url.partition(":")[2] in str(caught.value) and expected in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("closes", [True, False])
def test_a_session_ends_also_if_the_server_does_not_end_it(
    closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openenv, "CLOSE_SECONDS", 0.2)
    with serving(observed(), closes=closes) as url:
        assert play(url) == 1


def test_a_server_with_a_wrong_reply_to_reset_is_refused_before_the_run() -> None:
    with serving(observed(), reset=observed(done=0)) as url, pytest.raises(UserError, match="done"):
        play(url)
