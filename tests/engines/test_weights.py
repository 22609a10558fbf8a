"""An engine never uses what it computed with other weights, however they were changed (see ``test_any_order``)."""

import asyncio
from collections.abc import Callable

import pytest
import torch
from peft import PeftModel

from coterie.engines.protocol import EngineError, Sampling
from coterie.models.adapters import activate, add_lora, checksums, sum_by_torch
from coterie.models.loading import LoadedModel
from tests.helpers.engine_models import (
    BOTH,
    PROMPT,
    open_engine,
    random_model,
    recompute_logprobs,
    sample_completion,
)


def in_place(network: torch.nn.Module) -> None:
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(0.9)


def through_data(network: torch.nn.Module) -> None:
    for weight in network.parameters():
        weight.data.mul_(0.9)


def with_adapter(network: torch.nn.Module, name: str = "default") -> PeftModel:
    """With a LoRA adapter that changes a lot."""
    adapted = add_lora(network, r=4, alpha=8, name=name)
    for weight in adapted.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.3)
    return adapted


@pytest.mark.parametrize("kind", BOTH)
def test_adapters_that_are_switched_merged_and_taken_off_are_followed(kind: str) -> None:
    base = random_model(BOTH[kind])
    both = with_adapter(with_adapter(base.model, "one"), "other")
    engine = open_engine(LoadedModel(both, base.tokenizer, base.renderer, 128, "test"))
    scaled = [module for module in both.modules() if hasattr(module, "set_scale")]
    changes: list[Callable[[], object]] = [
        lambda: activate(both, "one"),
        lambda: [module.set_scale("one", 0.5) for module in scaled],
        lambda: both.merge_adapter(["one"]),
        lambda: activate(both, "other"),  # on the base with "one" in it
        both.unmerge_adapter,
        lambda: activate(both, "one"),
        both.base_model.disable_adapter_layers,
        both.base_model.enable_adapter_layers,
        lambda: both.delete_adapter("other"),
        both.merge_and_unload,
    ]
    for change in changes:
        change()
        ids, logprobs = sample_completion(engine)
        assert logprobs == pytest.approx(recompute_logprobs(both, ids), abs=2e-4)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(("change", "others"), [(through_data, True), (in_place, False)])
def test_weights_that_change_in_flight_fail_those_that_run(
    kind: str, change: Callable[..., object], others: bool
) -> None:
    """Writes that torch does not record are noticed when others join."""
    one = random_model(BOTH[kind])
    engine = open_engine(one)

    async def changed() -> None:
        first = asyncio.ensure_future(engine.sample(PROMPT, [0], Sampling(max_tokens=60)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        change(one.model)
        if others:
            with pytest.raises(EngineError, match="weights were changed"):
                await engine.sample(PROMPT, [1], Sampling(max_tokens=2))
        await first

    with pytest.raises(EngineError, match="weights were changed"):
        asyncio.run(changed())
    ids, logprobs = sample_completion(engine)
    assert logprobs == pytest.approx(recompute_logprobs(one.model, ids), abs=1e-4)


def test_a_checksum_sees_every_byte_and_its_place() -> None:
    torch.manual_seed(0)
    for weight in (
        torch.randn(40, 33), torch.randn(7, 9).bfloat16(), torch.randn(3), torch.tensor(2.0),
        torch.arange(5, dtype=torch.uint8), torch.randn(33)[1:], torch.randn(6, 4).T,
    ):  # fmt: skip
        (first,) = checksums([weight])
        raw = weight.reshape(-1).view(torch.uint8).clone()
        filled = torch.cat([raw, raw.new_zeros(-len(raw) % 8)])
        assert int(sum_by_torch(filled)) == first
        sums = {first}
        for place in range(len(raw)):
            changed = raw.clone()
            changed[place] ^= 1 << (place % 8)
            sums |= set(checksums([changed]))
        assert len(sums) == len(raw) + 1
    assert checksums([torch.zeros(8), torch.zeros(9)])[0] != checksums([torch.zeros(16)])[0]
