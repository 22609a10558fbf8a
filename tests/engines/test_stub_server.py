"""The stub of ``vllm serve``: what clients of vLLM rely on."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.models.loading import load, resolve
from tests.helpers.stub_server import serve_stub, stub_process

MODEL = "tiny-exchange"
PROMPT = list(range(10, 60))


def request_of(seed: int, max_tokens: int, **more: Any) -> dict[str, Any]:
    options = {"temperature": 1.0, "max_tokens": max_tokens, "seed": seed, "logprobs": 0, **more}
    return {"model": "talker", "token_ids": PROMPT, "sampling_params": options}


def test_a_model_gives_the_tokens_and_logprobs_of_the_engine_in_process_by_both_routes() -> None:
    engine = InProcessEngine(load(MODEL))

    async def run() -> None:
        (expected,) = await engine.sample(PROMPT, [3], Sampling(max_tokens=12))
        (scores,) = await engine.logprobs(PROMPT[:1], [PROMPT[1:]])
        async with serve_stub(MODEL, "talker") as url, httpx2.AsyncClient(base_url=url) as client:
            body = request_of(3, 12, prompt_logprobs=0)
            reply = (await client.post("/inference/v1/generate", json=body)).json()
            (choice,) = reply["choices"]
            content = choice["logprobs"]["content"]
            assert choice["token_ids"] == [one["token_id"] for one in content] == [*expected.ids]
            assert [one["logprob"] for one in content] == [*expected.logprobs]
            spans = [{"version": "default", "start": 0, "end": len(expected.ids)}]
            assert choice["weight_versions"] == spans
            given = [
                one[str(id)]["logprob"]
                for one, id in zip(reply["prompt_logprobs"][1:], PROMPT[1:], strict=True)
            ]
            assert given == scores
            old = {"model": "talker", "prompt": PROMPT, **body["sampling_params"]}
            (choice,) = (await client.post("/v1/completions", json=old)).json()["choices"]
            assert choice["token_ids"] == [*expected.ids]
            assert choice["logprobs"]["token_logprobs"] == [*expected.logprobs]

    asyncio.run(run())


def test_a_request_in_flight_spans_an_update_and_its_text_names_the_versions(
    tmp_path: Path,
) -> None:
    decode = load(MODEL).renderer.decode
    seed = 153  # the first with more than 2.5 s

    async def run() -> None:
        async with (
            serve_stub(MODEL, "talker", slots=2, show_version=True) as url,
            httpx2.AsyncClient(base_url=url, timeout=60) as client,
        ):

            async def post(path: str, body: Any = None) -> None:
                (await client.post(path, json=body)).raise_for_status()

            asked = client.post("/inference/v1/generate", json=request_of(seed, 200))
            task = asyncio.ensure_future(asked)
            await asyncio.sleep(0.2)  # of more than 2.5 s
            await post("/pause?mode=keep")
            await post("/start_weight_update")
            await post("/update_weights", {"update_info": {"folder": str(tmp_path)}})
            await post("/finish_weight_update", {"weight_version": "7"})
            await post("/resume")
            assert (await client.get("/weight_info")).json()["weight_version"] == "7"
            (choice,) = (await task).json()["choices"]
            first, second = choice["weight_versions"]
            assert (first["version"], second["version"]) == ("default", "7")
            assert 0 < first["end"] == second["start"] < second["end"] == len(choice["token_ids"])
            ids = choice["token_ids"]
            assert ("default " * 99).startswith(decode(ids[: first["end"]]))
            assert set(decode(ids[first["end"] : -1]).split()) == {"7"}
            left = asyncio.ensure_future(
                client.post("/inference/v1/generate", json=request_of(seed, 200))
            )
            await asyncio.sleep(0.2)
            await post("/pause?mode=abort")
            (choice,) = (await left).json()["choices"]
            assert choice["finish_reason"] == "abort"

    asyncio.run(run())


def test_a_process_has_many_servers_with_weights_of_their_own(tmp_path: Path) -> None:
    with stub_process(resolve(MODEL), "talker", 3, "--latencies") as (urls, _):
        body = {"new_version": "5"}
        httpx2.post(f"{urls[1]}/update_weight_version", json=body).raise_for_status()
        labels = [httpx2.get(f"{url}/weight_info").json()["weight_version"] for url in urls]
        assert labels == ["default", "5", "default"]
