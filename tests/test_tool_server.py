"""The tool server: its limits, its errors, its file, and the command that runs it."""

import asyncio
import contextlib
import signal
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest

from coterie.errors import UserError
from coterie.tools.servers.config import read_tools
from tests.conftest import Cli
from tests.serving import started
from tests.tool_backends import WAITING, config, serving, until

JSON = {"Content-Type": "application/json"}


async def posted(url: str, body: Any, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=30, trust_env=False) as http:
        return await http.post(url, json=body, headers=headers)


def error_of(reply: httpx2.Response) -> dict[str, Any]:
    found: dict[str, Any] = reply.json()["error"]
    assert found["code"] == reply.status_code and set(found) == {"message", "type", "code", "param"}
    return found


# -- limits -------------------------------------------------------------------------------------


def test_requests_above_the_limit_are_refused_at_once_and_the_others_answered(
    tmp_path: Path,
) -> None:
    async def play() -> None:
        file = config(tmp_path, {"kind": WAITING, "name": "slow", "concurrent": 2, "queue": 3})
        async with serving(file) as (url, (tool,)):
            asked = [asyncio.create_task(posted(f"{url}/wait", {"say": str(n)})) for n in range(12)]
            await until(lambda: sum(one.done() for one in asked) == 7)
            refused = [one.result() for one in asked if one.done()]
            health = await posted_health(url)
            assert health["tools"]["slow"] == {"kind": WAITING, "running": 2, "waiting": 3}
            tool.go.set()
            answered = [one for one in await asyncio.gather(*asked) if one.status_code == 200]
            assert [one.status_code for one in refused] == [503] * 7 and len(answered) == 5
            assert all(one.headers["Retry-After"] == "1" for one in refused)
            assert "slow is full" in error_of(refused[0])["message"]
            assert tool.began == 5
            assert (await posted(f"{url}/wait", {"wait": False})).status_code == 200

    asyncio.run(play())


async def posted_health(url: str) -> dict[str, Any]:
    async with httpx2.AsyncClient(trust_env=False) as http:
        found: dict[str, Any] = (await http.get(f"{url}/health")).json()
        assert found["status"] == "ok"
        return found


def test_a_late_request_is_answered_with_408_and_its_work_is_stopped(tmp_path: Path) -> None:
    async def play() -> None:
        file = config(tmp_path, {"kind": WAITING, "seconds": 0.3, "concurrent": 1})
        async with serving(file) as (url, (tool,)):
            working, waiting = await asyncio.gather(
                posted(f"{url}/wait", {}), posted(f"{url}/wait", {})
            )
            for one in (working, waiting):
                assert one.status_code == 408
                assert "no answer within 0.3 seconds" in error_of(one)["message"]
            assert tool.cancelled == tool.began
            busy = (await posted_health(url))["tools"]["Waiting"]
            assert (busy["running"], busy["waiting"]) == (0, 0)
            again = await posted(f"{url}/wait", {"wait": False})
            assert again.status_code == 200

    asyncio.run(play())


def test_a_client_that_goes_away_gives_its_place_back(tmp_path: Path) -> None:
    async def play() -> None:
        file = config(tmp_path, {"kind": WAITING, "concurrent": 1})
        async with serving(file) as (url, (tool,)):
            asked = asyncio.create_task(posted(f"{url}/wait", {}))
            await until(lambda: tool.began == 1)
            asked.cancel()
            await until(lambda: tool.cancelled == 1)
            assert (await posted(f"{url}/wait", {"wait": False})).status_code == 200

    asyncio.run(play())


def test_bodies_that_are_too_long_are_refused_whether_they_say_so_or_not(tmp_path: Path) -> None:
    async def pieces() -> Any:
        for _ in range(100):
            yield b"x" * 1000

    async def play() -> None:
        async with serving(config(tmp_path, {"kind": WAITING, "body_bytes": 5000})) as (url, tools):
            said = await posted(f"{url}/wait", {"say": "x" * 50_000})
            async with httpx2.AsyncClient(timeout=30, trust_env=False) as http:
                unsaid = await http.post(f"{url}/wait", content=pieces(), headers=JSON)
            assert [said.status_code, unsaid.status_code] == [413, 413]
            assert "more than 5,000 bytes" in error_of(unsaid)["message"]
            fits = await posted(f"{url}/wait", {"say": "x" * 4000, "wait": False})
            assert fits.status_code == 200 and tools[0].began == 1

    asyncio.run(play())


def test_a_body_that_never_ends_takes_no_place_and_is_given_up(tmp_path: Path) -> None:
    async def play() -> None:
        file = config(tmp_path, {"kind": WAITING, "seconds": 0.5, "concurrent": 1, "queue": 0})
        async with serving(file) as (url, _):
            host, port = url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
                b"Content-Type: application/json\r\n\r\n{"
            )
            await writer.drain()
            await asyncio.sleep(0.1)
            assert (await posted(f"{url}/wait", {"wait": False})).status_code == 200
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
            writer.close()

    asyncio.run(play())


# -- ids and errors -----------------------------------------------------------------------------


def test_ids_of_requests_are_taken_or_made_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> list[httpx2.Response]:
        async with serving(config(tmp_path, {"kind": WAITING})) as (url, _):
            place, body = f"{url}/wait", {"wait": False}
            return [
                await posted(place, body, **{"X-Request-ID": "turn-7.c0"}),
                await posted(place, body),
                await posted(place, body, **{"X-Request-ID": "two words\tand a tab"}),
                await posted(f"{url}/nothing", body, **{"X-Request-ID": "lost"}),
            ]

    with caplog.at_level("INFO", "coterie.tools.servers"):
        given, made, forged, lost = asyncio.run(play())
    assert given.headers["X-Request-ID"] == "turn-7.c0" and lost.headers["X-Request-ID"] == "lost"
    ids = {made.headers["X-Request-ID"], forged.headers["X-Request-ID"]}
    assert len(ids) == 2 and all(one.isalnum() for one in ids)
    assert "turn-7.c0 POST /wait 200" in caplog.text and "two words" not in caplog.text
    assert lost.status_code == 404 and "POST /nothing" in error_of(lost)["message"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"nonsense", 400),
        (b"[1, 2]", 400),
        (b'{"say": 3}', 400),
        (b"[" * 100_000, 400),
        (b"\xff\xfe\x00", 400),
        (b'{"say": "' + b"\\u0000" * 10 + b'", "wait": false}', 200),
    ],
    ids=["empty", "no JSON", "a list", "a number", "deep", "no text", "null characters"],
)
def test_a_broken_body_is_refused_and_the_server_goes_on(
    tmp_path: Path, content: bytes, status: int
) -> None:
    async def play() -> httpx2.Response:
        async with (
            serving(config(tmp_path, {"kind": WAITING})) as (url, _),
            httpx2.AsyncClient(trust_env=False) as http,
        ):
            reply = await http.post(f"{url}/wait", content=content, headers=JSON)
            assert (await http.post(f"{url}/wait", json={"wait": False})).status_code == 200
            return reply

    reply = asyncio.run(play())
    assert reply.status_code == status
    assert status == 200 or error_of(reply)["type"] == "invalid_request_error"


def test_a_failure_inside_tells_clients_nothing_of_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> list[httpx2.Response]:
        async with serving(config(tmp_path, {"kind": WAITING})) as (url, _):
            return [
                await posted(f"{url}/wait", {"fail": "badly"}, **{"X-Request-ID": "r1"}),
                await posted(f"{url}/wait", {"fail": "unavailable"}),
            ]

    inside, behind = asyncio.run(play())
    assert inside.status_code == 500 and "r1" in error_of(inside)["message"]
    assert "secret" not in inside.text and "a secret of the process" in caplog.text
    assert behind.status_code == 502 and error_of(behind)["message"] == "what is behind it is gone"


# -- the file -----------------------------------------------------------------------------------


def test_a_tool_is_under_its_name_and_the_first_of_a_kind_at_the_root_too(tmp_path: Path) -> None:
    async def play() -> None:
        file = config(tmp_path, {"kind": WAITING, "name": "a"}, {"kind": WAITING, "name": "b"})
        async with serving(file) as (url, (first, second)):
            for place in ("wait", "a/wait", "b/wait"):
                assert (await posted(f"{url}/{place}", {"wait": False})).status_code == 200
            assert (first.began, second.began) == (2, 1)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([], "names no tools"),
        (["retrieve"], "tool 1 has no `kind`"),
        ([{"index": "x"}], "tool 1 has no `kind`"),
        ([{"kind": "retreive", "index": "x"}], "did you mean 'retrieve'"),
        ([{"kind": WAITING, "concurent": 3}], "did you mean 'concurrent'"),
        ([{"kind": WAITING, "concurrent": 0}], "must be at least 1"),
        ([{"kind": WAITING, "name": "a b"}], "name"),
        ([{"kind": WAITING}, {"kind": WAITING}], "two tools called Waiting"),
        ([{"kind": WAITING, "usable": False}], "the tool Waiting: it has no key"),
        ([{"kind": "retrieve"}], "index must be given"),
        ([{"kind": "retrieve", "index": "nowhere"}], "nowhere is not an index"),
        ([{"kind": "retrieve", "index": "x", "vectors": "y"}], "are for `search: dense`"),
    ],
)
def test_a_file_that_cannot_be_served_says_why(tmp_path: Path, tools: Any, said: str) -> None:
    with pytest.raises(UserError) as refused:
        read_tools(config(tmp_path, *tools))
    assert said in str(refused.value) and str(tmp_path / "tools.yaml") in str(refused.value)


def test_what_is_not_a_file_of_tools_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't read settings"):
        read_tools(tmp_path / "none.yaml")
    (tmp_path / "other.yaml").write_text("port: 3\n")
    with pytest.raises(UserError, match="unknown key 'port'"):
        read_tools(tmp_path / "other.yaml")


# -- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_ended(tmp_path: Path, how: signal.Signals) -> None:
    file = config(tmp_path, {"kind": WAITING})
    with started("tools", "--config", str(file), "--port", "0") as (child, url):
        reply = httpx2.post(
            f"{url}/wait", json={"say": "hello", "wait": False}, headers={"X-Request-ID": "x1"}
        )
        assert reply.json() == {"said": "hello"}
        child.send_signal(how)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 0 and err.endswith("stopped\n"), err
    assert "Traceback" not in err and "warning" not in err
    assert "x1 POST /wait 200" in err and url in err


def test_whoever_listens_beyond_this_machine_is_warned(tmp_path: Path) -> None:
    file = config(tmp_path, {"kind": WAITING})
    with started("tools", "--config", str(file), "--host", "0.0.0.0", "--port", "0") as (child, _):
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert "warning: whoever can reach 0.0.0.0" in err


def test_a_port_in_use_and_a_broken_file_are_refused(cli: Cli, tmp_path: Path) -> None:
    file = config(tmp_path, {"kind": WAITING, "usable": False})
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        ran = cli("serve", "tools", "--config", file, "--port", port)
        assert ran.code == 2 and f"port {port} of 127.0.0.1 is in use" in ran.err
    ran = cli("serve", "tools", "--config", file, "--port", 0)
    assert ran.code == 2 and "it has no key" in ran.err and not ran.out
