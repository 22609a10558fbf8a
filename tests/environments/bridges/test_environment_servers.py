"""Hostile environment servers: every reply is limited and checked, and the error names the server."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.acting import write_action
from coterie.environments.bridges import agentgym as agentgym_bridge
from coterie.environments.bridges.agentgym import AgentGym, AgentGymSettings
from coterie.environments.bridges.nemo_gym import NemoGym, NemoGymSettings
from coterie.environments.bridges.server_client import EnvironmentServerError, ServerClient
from coterie.environments.protocol import Environment, Shared
from coterie.errors import UserError
from coterie.record.tree import Task
from tests.helpers.converse import converse
from tests.helpers.environment_server import (
    HOSTILE,
    Reply,
    reply_in_pieces,
    reply_with,
    serve_replies,
)

NAN = b'{"reward": NaN}'


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_reply_ends_early_in_an_error_with_the_url(name: str) -> None:
    reply, expected = HOSTILE[name]

    seconds = 0.5 if "within" in expected else 5

    async def ask(url: str) -> dict[str, Any]:
        async with ServerClient(url, seconds) as server:
            return await server.ask("POST", "/step", dict[str, Any], json={})

    with serve_replies({"/step": reply}) as url, pytest.raises(EnvironmentServerError) as caught:
        asyncio.run(asyncio.wait_for(ask(url), 10))
    assert str(caught.value).startswith(f"{url}/step") and expected in str(caught.value)
    assert len(str(caught.value)) < 1000 and str(caught.value).isprintable()


def test_a_server_that_is_gone_ends_the_command() -> None:
    async def ask() -> None:
        async with ServerClient("http://127.0.0.1:9", 5) as server:
            await server.request("GET", "/")

    with pytest.raises(EngineGone, match=r"no environment server answers at http://127.0.0.1:9"):
        asyncio.run(ask())


def play(environment: Environment, task: Task, *messages: str) -> float | None:
    _, grade = asyncio.run(converse(environment, task, messages, Shared()))
    return grade and grade.score


def nemo_gym(url: str, folder: Path) -> tuple[Environment, Task]:
    request = {"input": "Look.", "tools": [{"name": "look", "parameters": {"type": "object"}}]}
    (folder / "rows.jsonl").write_text(json.dumps({"responses_create_params": request}))
    rows = str(folder / "rows.jsonl")
    settings = NemoGymSettings(url=url, rows=rows, heldout=rows, calls="tags")
    environment = NemoGym(settings)
    return environment, environment.tasks("heldout", 1, 0)[0]


NEMO_GYM: Mapping[str, Reply] = {
    "/openapi.json": reply_with({"paths": {"/seed_session": {}, "/verify": {}, "/look": {}}}),
    "/seed_session": reply_with({}),
    "/verify": reply_with({"reward": 0.5}),
    "/look": reply_with(b"a lamp"),
}


@pytest.mark.parametrize(
    ("path", "reply", "expected"),
    [
        ("/verify", reply_with(NAN), "reward: Input should be a finite number"),
        ("/verify", reply_with({"reward": True}), "reward: Input should be a valid number"),
        ("/verify", reply_with({"reward": "1"}), "reward: Input should be a valid number"),
        ("/verify", reply_with({}), "reward: Field required"),
        ("/verify", *HOSTILE["bomb"]),
        ("/verify", *HOSTILE["many lists"]),
        ("/seed_session", *HOSTILE["null"]),
        ("/look", *HOSTILE["bomb"]),
        ("/look", *HOSTILE["redirect"]),
        ("/look", *HOSTILE["busy"]),
        ("/look", *HOSTILE["too many"]),
        ("/verify", HOSTILE["endlessly busy"][0], "more than 4 MiB"),
    ],
)
def test_nemo_gym_servers(path: str, reply: Reply, expected: str, tmp_path: Path) -> None:
    with serve_replies({**NEMO_GYM, path: reply}) as url:
        environment, task = nemo_gym(url, tmp_path)
        with pytest.raises(EngineError) as caught:
            play(environment, task, "<look>{}</look>", "Done.")
    assert f"{url}{path}" in str(caught.value) and expected in str(caught.value)


def test_a_nemo_gym_server_with_right_replies_scores_a_dialogue(tmp_path: Path) -> None:
    with serve_replies(NEMO_GYM) as url:
        assert play(*nemo_gym(url, tmp_path), "<look>{}</look>", "Done.") == 0.5
    with (
        serve_replies({"/openapi.json": reply_with([])}) as url,
        pytest.raises(UserError, match=url),
    ):
        nemo_gym(url, tmp_path)


def agentgym(url: str) -> tuple[Environment, Task]:
    settings = AgentGymSettings(world="textcraft", url=url, train=(0, 8), heldout=(10, 18))
    return AgentGym(settings), Task("textcraft-10", {"index": 10})


STEP = {"observation": "You have it.", "reward": 1, "done": True}
AGENTGYM: Mapping[str, Reply] = {
    "/": reply_with("This is environment TextCraft."),
    "/create": reply_with({"id": 3}),
    "/reset": reply_with({"observation": "Craft it."}),
    "/step": reply_with(STEP),
    "/close": reply_with({}),
}


@pytest.mark.parametrize(
    ("path", "reply", "expected"),
    [
        ("/create", reply_with({"id": True}), "valid integer"),
        ("/create", reply_with({"id": "3"}), "valid integer"),
        ("/reset", reply_with({"observation": ["x"]}), "valid string"),
        ("/step", reply_with({**STEP, "reward": True}), "valid number"),
        (
            "/step",
            reply_with(b'{"observation": "", "done": true, "reward": 1e999}'),
            "finite number",
        ),
        ("/step", reply_with({**STEP, "done": "false"}), "valid boolean"),
        ("/step", reply_with({"observation": "", "reward": 1}), "valid boolean"),
        ("/step", reply_with({**STEP, "available_actions": [1]}), "valid string"),
        ("/step", *HOSTILE["bomb"]),
        ("/step", reply_with([]), "valid string"),
        ("/step", *HOSTILE["deep"]),
        ("/step", *HOSTILE["many lists"]),
    ],
)
def test_agentgym_servers(path: str, reply: Reply, expected: str) -> None:
    with serve_replies({**AGENTGYM, path: reply}) as url, pytest.raises(EngineError) as caught:
        play(*agentgym(url), write_action("get it"))
    assert url in str(caught.value) and expected in str(caught.value)


@pytest.mark.parametrize(
    "reply",
    [
        HOSTILE["drip"][0],
        reply_with(b"", 503),
        reply_with(b"", 429, Retry_After="100"),
        reply_in_pieces(b" ", 0.05, 503),
    ],
    ids=["drip", "busy", "too many", "busy drip"],
)
def test_an_agentgym_server_that_does_not_close_is_left(
    reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agentgym_bridge, "CLOSE_SECONDS", 0.2)
    with serve_replies({**AGENTGYM, "/close": reply}) as url:
        environment, task = agentgym(url)
        dialogue = converse(environment, task, [write_action("get it")], Shared())
        _, grade = asyncio.run(asyncio.wait_for(dialogue, 5))
    assert grade is not None and grade.score == 1


@pytest.mark.parametrize(
    ("status", "headers", "requests"),
    [
        (503, {}, 3),
        (429, {}, 3),
        (429, {"Retry_After": "0"}, 3),
        (429, {"Retry_After": "soon"}, 3),
        (500, {}, 1),
        (502, {}, 1),
    ],
)
def test_an_action_is_sent_again_only_if_the_server_did_not_carry_it_out(
    status: int, headers: dict[str, str], requests: int
) -> None:
    steps: list[Reply] = [*[reply_with(b"busy", status, **headers)] * 2, reply_with(STEP)]
    waiting = iter(steps)

    def step(handler: Any) -> None:
        next(waiting)(handler)

    with serve_replies({**AGENTGYM, "/step": step}) as url:
        if requests == 3:
            assert play(*agentgym(url), write_action("get it")) == 1
        else:
            with pytest.raises(EngineError, match=f"{url}/step: status {status}: busy"):
                play(*agentgym(url), write_action("get it"))
    assert len([*waiting]) == 3 - requests


def test_all_tries_of_a_busy_server_together_have_the_time_limit_of_a_request() -> None:
    async def ask(url: str) -> None:
        async with ServerClient(url, 0.5) as server:
            await server.request("GET", "/", tries=100)

    with serve_replies({"/": reply_with(b"", 429, Retry_After="100")}) as url:
        late = rf"{url}/ did not answer within 0.5 s, and status 429 before"
        with pytest.raises(EnvironmentServerError, match=late):
            asyncio.run(asyncio.wait_for(ask(url), 5))


def test_a_greeting_with_commands_for_a_terminal_is_shown_without_them() -> None:
    with serve_replies({"/": reply_with("\x1b[2J\x1b]0;owned\x07\x9b31mHello" * 1000)}) as url:
        with pytest.raises(UserError, match="no AgentGym server of textcraft") as caught:
            agentgym_bridge.check_server(url, "textcraft", 0)
        assert caught.value.what.isprintable() and len(caught.value.what) < 1000
