"""``coterie serve model``: the real ``transformers serve`` until it is ended, and refusals before it starts."""

import asyncio
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest
import torch
from starlette.responses import PlainTextResponse

from coterie.cli import serve
from coterie.engines import vllm
from coterie.engines.endpoint import Endpoint, EndpointSettings, Reply, Utterance
from coterie.engines.inside_vllm import coterie_guard
from coterie.engines.inside_vllm.coterie_guard import Guard
from coterie.engines.settings import VLLMSettings
from coterie.models.loading import load
from coterie.recipes.base import recorded_run
from tests.conftest import SMALL, Cli
from tests.helpers.serve_app import serve_app
from tests.helpers.serve_command import serve_command

NAME = "tiny-exchange"
QUESTION = "Who is the mentor of Paula?"


def replies(url: str, name: str) -> tuple[str | None, Reply]:
    """Return the replies to OpenAI's client and to ours."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": QUESTION}]
    theirs = client.chat.completions.create(model=name, messages=messages, max_tokens=20)

    async def ask() -> Reply:
        async with Endpoint(EndpointSettings(url=f"{url}/v1", model=name)) as endpoint:
            return await endpoint.chat([Utterance("user", QUESTION)], max_tokens=20)

    return theirs.choices[0].message.content, asyncio.run(ask())


def ask(url: str, temperature: float, seed: int) -> Reply:
    async def chat() -> Reply:
        async with Endpoint(EndpointSettings(url=f"{url}/v1", model=NAME)) as endpoint:
            messages = [Utterance("user", QUESTION)]
            return await endpoint.chat(messages, max_tokens=20, temperature=temperature, seed=seed)  # fmt: skip

    return asyncio.run(chat())


def end(child: "subprocess.Popen[str]", how: signal.Signals) -> str:
    """End the command. Return its standard error, when all that it started is gone."""
    processes = psutil.Process(child.pid).children(recursive=True)
    assert len(processes) >= 2, "the guard and the server"
    child.send_signal(how)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 0 and "stopped" in err and "Traceback" not in err, err
    assert not any(process.is_running() for process in processes)
    return err


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/health", {}, 200),
        ("POST", "/v1/chat/completions", {}, 200),
        ("GET", "/v1/models", {"Host": "LocalHost:9"}, 200),
        ("GET", "/v1/models", {"Host": "[::1]:9", "Origin": "http://localhost:3000"}, 200),
        ("GET", "/v1/models", {"Host": "rebound.example"}, 403),
        ("GET", "/v1/models", {"Host": "127.0.0.1.example"}, 403),
        ("GET", "/v1/models", {"Host": ""}, 403),
        ("POST", "/v1/completions", {"Origin": "https://page.example"}, 403),
        ("POST", "/v1/completions", {"Origin": "null"}, 403),
        ("POST", "/load_model", {}, 404),
        ("POST", "//load_model", {}, 404),
        ("POST", "/v1/%2e%2e/load_model", {}, 404),
        ("POST", "/reset", {}, 404),
        ("POST", "/v1/load_lora_adapter", {}, 404),
        ("GET", "/docs", {}, 404),
        ("POST", "/v1/completions", {"Content-Length": "16777217"}, 413),
        ("POST", "/v1/completions", {"Transfer-Encoding": "chunked"}, 413),
    ],
)
def test_only_openais_routes_are_served_to_this_machine_within_limits(
    method: str, path: str, headers: dict[str, str], status: int
) -> None:
    async def run() -> None:
        async with serve_app(Guard(PlainTextResponse("reached"))) as url:
            port = httpx2.URL(url).port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = {"Host": f"127.0.0.1:{port}", "Connection": "close", **headers}
            lines = [f"{method} {path} HTTP/1.1", *(f"{key}: {head[key]}" for key in head), "", ""]
            writer.write("\r\n".join(lines).encode())
            reply = await asyncio.wait_for(reader.read(), 5)
            writer.close()
            assert reply.startswith(f"HTTP/1.1 {status} ".encode())
            assert (b"reached" in reply) == (status == 200)

    asyncio.run(run())


def test_requests_over_the_limit_are_refused_until_others_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coterie_guard, "MAX_REQUESTS", 1)
    started, proceed = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        started.set()
        await proceed.wait()
        await PlainTextResponse("reached")(scope, receive, send)

    async def run() -> None:
        async with serve_app(Guard(slow)) as url, httpx2.AsyncClient(trust_env=False) as http:
            first = asyncio.ensure_future(http.get(f"{url}/health"))
            await started.wait()
            assert (await http.get(f"{url}/health")).status_code == 503
            proceed.set()
            assert (await first).status_code == 200
            assert (await http.get(f"{url}/health")).status_code == 200

    asyncio.run(run())


@pytest.mark.slow
def test_a_packaged_model_is_served_by_transformers_until_ctrl_c() -> None:
    with serve_command("model", NAME, "--port", "0", "--", "--device", "cpu") as (child, url):
        theirs, ours = replies(url, NAME)
        assert theirs and ours.text and ours.completion_tokens <= 20 and not ours.estimated
        assert httpx2.post(f"{url}/load_model", json={"model": "/"}).status_code == 404
        sampled = {ask(url, 2.0, seed).text for seed in range(3)}
        assert len(sampled) > 1 and len({ask(url, 0.0, seed).text for seed in range(3)}) == 1
        text = end(child, signal.SIGINT)
        assert f"curl {url}/v1/chat/completions" in text and "ignores n, logprobs" in text


@pytest.mark.slow
def test_an_adapter_of_a_run_is_merged_once_and_served(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lora = ("train.method=lora", "train.learning_rate=1e-2")
    assert cli("run", "optima/isft", *SMALL, *lora, "--folder", folder).code == 0
    with serve_command("model", str(folder), "--port", "0") as (child, url):
        theirs, ours = replies(url, "run")
        assert theirs and ours.text
        end(child, signal.SIGTERM)
    (merged,) = (folder / "served").iterdir()
    with recorded_run(folder) as (recipe, run):
        want = recipe.models(run).load("policy", 1).model.state_dict()
    weights = load(merged).model.state_dict()
    assert all(torch.equal(weights[name], want[name]) for name in want)
    _, path, merge = serve._policy(folder, None, None)
    assert Path(path) == merged and merge is not None
    assert serve._policy(folder, None, 0)[1:] == (load(NAME).source, None)


def test_vllm_serves_with_the_models_defaults_and_without_routes_that_load_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm, "check_vllm", lambda settings: None)
    command = serve._vllm_command(VLLMSettings(python="/env/python"), "/weights", "mine", 8000)
    assert command is not None
    words, variables = command
    assert words[:5] == ["/env/python", "-m", "vllm.entrypoints.cli.main", "serve", "/weights"]
    assert words[words.index("--served-model-name") + 1] == "mine"
    assert words[-2:] == ["--generation-config", "auto"]
    assert words[words.index("--middleware") + 1] == "coterie_guard.Guard"
    assert variables["PYTHONPATH"].startswith(str(vllm.INSIDE))
    assert variables["VLLM_SERVER_DEV_MODE"] == "0"
