"""Weights that our server loads while it answers: checkpoints, adapters, and in which order."""

import asyncio
from pathlib import Path

import httpx2
import pytest
import torch

from coterie.engines.protocol import Sampling
from coterie.engines.serving.policies import Loading, Policies
from coterie.models.adapters import add_lora, save_adapter
from coterie.models.loading import load
from tests.test_serving import NAME, PROMPT, ask, client, completing, directly, fresh_policies


@pytest.fixture
def policies() -> Policies:
    return fresh_policies()


def tuned(folder: Path, *, lora: bool, base: str = NAME) -> Path:
    """A checkpoint (or an adapter) that differs from its base."""
    one = load(base)
    torch.manual_seed(0)
    changed = add_lora(one.model, r=2, alpha=4) if lora else one.model
    with torch.no_grad():
        for name, weight in changed.named_parameters():
            if "lora_B" in name or (not lora and "q_proj" in name):
                weight.normal_(std=0.1)
    if lora:
        save_adapter(changed, folder)
    else:
        changed.save_pretrained(folder)
        one.tokenizer.save_pretrained(folder)
    return folder


def test_a_loaded_checkpoint_answers_under_its_version(policies: Policies, tmp_path: Path) -> None:
    folder = tuned(tmp_path / "new", lora=False)
    want = directly(load(folder), [3], Sampling(max_tokens=20))[0]
    asked = completing(seed=3, max_tokens=20)
    (before,) = ask(policies, "/v1/completions", asked)
    (said,) = ask(policies, "/load_checkpoint", {"path": str(folder), "version": "1"})
    assert said == {"model": NAME, "version": "1"}
    (after,) = ask(policies, "/v1/completions", asked)
    assert before["choices"][0]["token_ids"] != list(want.ids)
    assert after["choices"][0]["token_ids"] == list(want.ids)
    assert after["choices"][0]["logprobs"]["token_logprobs"] == list(want.logprobs)
    missing = {"path": str(tmp_path / "none"), "version": "2"}
    (refused,) = ask(policies, "/load_checkpoint", missing, status=400)
    assert "there is no folder" in refused["error"]["message"]
    assert (policies.base.engine.version, policies.base.root) == ("1", str(folder))


def test_adapters_answer_under_their_names_and_leave_the_model_as_it_is(
    policies: Policies, tmp_path: Path
) -> None:
    folder = tuned(tmp_path / "a", lora=True)
    asked = completing(seed=3, max_tokens=20)
    (base,) = ask(policies, "/v1/completions", asked)
    named = {"lora_name": "policy-1", "lora_path": str(folder)}
    ask(policies, "/v1/load_lora_adapter", named)
    (taken,) = ask(policies, "/v1/load_lora_adapter", named, status=409)
    assert "already" in taken["error"]["message"]
    merged = Policies(load(NAME), name="p", version="0", root=NAME).base.engine
    asyncio.run(merged.load(folder, "1"))
    (want,) = asyncio.run(merged.sample(PROMPT, [3], Sampling(max_tokens=20)))
    mine, again = ask(policies, "/v1/completions", {**asked, "model": "policy-1"}, asked)
    assert mine["choices"][0]["token_ids"] == list(want.ids)
    assert mine["choices"][0]["logprobs"]["token_logprobs"] == list(want.logprobs)
    assert mine["choices"][0]["token_ids"] != base["choices"][0]["token_ids"]
    assert again["choices"] == base["choices"]
    checkpoint = {"path": str(folder), "version": "1"}
    (refused,) = ask(policies, "/load_checkpoint", checkpoint, status=409)
    assert "policy-1" in refused["error"]["message"]
    ask(policies, "/v1/unload_lora_adapter", {"lora_name": "policy-1"})
    ask(policies, "/v1/unload_lora_adapter", {"lora_name": "policy-1"}, status=404)
    ask(policies, "/v1/completions", {**asked, "model": "policy-1"}, status=404)


def test_an_adapter_goes_onto_the_checkpoint_that_was_loaded(
    policies: Policies, tmp_path: Path
) -> None:
    new = tuned(tmp_path / "new", lora=False)
    named = {"lora_name": "a", "lora_path": str(tuned(tmp_path / "a", lora=True, base=str(new)))}
    (refused,) = ask(policies, "/v1/load_lora_adapter", named, status=400)
    assert "another base" in refused["error"]["message"]
    ask(policies, "/load_checkpoint", {"path": str(new), "version": "1"})
    ask(policies, "/v1/load_lora_adapter", named)


def test_while_weights_are_loaded_requests_are_to_come_again(policies: Policies) -> None:
    policies.gate.loading = "a checkpoint"

    async def talk() -> list[httpx2.Response]:
        async with client(policies) as one:
            completion = one.post("/v1/completions", json=completing())
            return [await one.get("/health"), await completion]

    for answer in asyncio.run(talk()):
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["message"] == "a checkpoint is being loaded"
    with pytest.raises(Loading):  # as of a request that was let in just before
        asyncio.run(policies.base.engine.sample(PROMPT, [1], Sampling()))


def test_requests_and_loads_in_any_order_never_mix_weights(
    policies: Policies, tmp_path: Path
) -> None:
    folder = tuned(tmp_path / "new", lora=False)
    sampling = Sampling(max_tokens=10)
    valid = [directly(load(source), [3], sampling)[0].ids for source in (NAME, folder)]

    async def talk() -> list[httpx2.Response]:
        async with client(policies, allow_loading=True) as one:
            loading = {"path": str(folder), "version": "1"}
            asked = completing(seed=3, max_tokens=10)
            calls = []
            for _ in range(10):
                calls += [one.post("/v1/completions", json=asked)]
                calls += [one.post("/load_checkpoint", json=loading)]
            return await asyncio.gather(*calls)

    answers = asyncio.run(talk())
    assert {answer.status_code for answer in answers} <= {200, 409, 503}
    for answer in answers:
        if answer.status_code == 200 and "choices" in answer.json():
            assert tuple(answer.json()["choices"][0]["token_ids"]) in valid
