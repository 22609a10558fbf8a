"""The command ``coterie serve``: until Ctrl-C, ports, addresses, runs."""

import asyncio
import contextlib
import signal
import socket
from pathlib import Path

import httpx2
import pytest
import torch

from coterie.cli.serving import open_policies
from coterie.errors import UserError
from coterie.models.loading import load
from tests.conftest import SMALL, Cli
from tests.serving import started
from tests.test_serving import CHATS, NAME, chatting, completing


def test_the_command_serves_until_ctrl_c() -> None:
    with started("model", NAME, "--host", "127.0.0.1", "--port", "0", "--name", "tiny") as (
        child,
        url,
    ):
        answer = httpx2.post(f"{url}/v1/chat/completions", json=chatting(model="tiny"), timeout=60)
        assert answer.status_code == 200, answer.text
        listed = httpx2.get(f"{url}/v1/models").json()
        assert [card["id"] for card in listed["data"]] == ["tiny"]
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 0
    assert "curl" in err and url in err and err.endswith("stopped\n")
    assert "Traceback" not in err and "warning" not in err


@pytest.mark.slow
def test_ctrl_c_ends_requests_in_flight_without_a_traceback() -> None:
    with started("model", NAME, "--port", "0") as (child, url):

        async def talk() -> httpx2.Response:
            async with httpx2.AsyncClient(base_url=url, timeout=60) as one:
                many = completing(max_tokens=900, n=200, temperature=100)
                task = asyncio.create_task(one.post("/v1/completions", json=many))
                grown = chatting(max_tokens=1000, stream=True, temperature=100)
                async with one.stream("POST", CHATS, json=grown) as answer:
                    lines = answer.aiter_lines()
                    assert (await anext(lines)).startswith("data: ")
                    child.send_signal(signal.SIGINT)
                    assert [line async for line in lines]
                return await task

        cut = asyncio.run(talk())
        _, err = child.communicate(timeout=60)
    assert child.returncode == 0
    assert cut.status_code in (200, 503), cut.text
    assert "Traceback" not in err and err.endswith("stopped\n"), err


def test_a_port_in_use_is_refused_before_anything_is_loaded(cli: Cli) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        said = cli("serve", "model", "no-such-model-either", "--port", port)
    assert said.code == 2
    assert f"port {port} of 127.0.0.1 is in use" in said.err and "--port 0" in said.err


def test_bad_words_of_the_command_are_refused(cli: Cli) -> None:
    for words, said in {
        (NAME, "--iteration", "1"): "not a run folder",
        (NAME, "--device", "toaster"): "cpu",
        ("./nowhere",): "no folder nowhere",
        (NAME, "--host", "no.such.host.invalid"): "--host",
    }.items():
        found = cli("serve", "model", *words, "--port", "0")
        assert found.code == 2 and said in found.err and "->" in found.err, found


def test_other_addresses_than_loopback_are_warned_of(cli: Cli) -> None:
    said = cli("serve", "model", "./nowhere", "--host", "0.0.0.0", "--port", "0")
    assert "asks for no key" in said.err


def test_a_run_serves_its_newest_policy_or_the_one_asked_for(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert cli("run", "optima/isft", *SMALL, "--folder", folder).code == 0
    newest = open_policies(str(folder), None, "run", "cpu").base
    assert newest.engine.version == "1"
    final = folder / "training/policy/iteration-00/final"
    assert newest.root == str(final)
    name = "model.layers.0.mlp.up_proj.weight"
    trained = load(final).model.get_parameter(name)
    assert torch.equal(newest.engine.loaded.model.get_parameter(name), trained)
    base = open_policies(str(folder), 0, "run", "cpu").base
    assert base.engine.version == "0"
    assert not torch.equal(base.engine.loaded.model.get_parameter(name), trained)
    with pytest.raises(UserError, match=r"no policy 2 \(it has 0, 1"):
        open_policies(str(folder), 2, "run", "cpu")
