"""Several roles on one base: named adapters, trained in turn and sampled side by side."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, Sampling
from coterie.errors import UserError
from coterie.models.adapters import (
    add_lora,
    load_adapter,
    save_adapter,
    using,
)
from coterie.models.loading import LoadedModel, load
from coterie.training.losses import DPO, DPOSettings
from coterie.training.reference import with_reference
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import train
from tests.helpers.template_models import make_model
from tests.helpers.training_models import SETTINGS, make_pairs, make_rows, tiny_llama

LORA = TrainingSettings(**{**SETTINGS.model_dump(), "method": "lora", "lora_r": 4, "epochs": 1})
ROLES = ("planner", "grounder")
ASK = (list(range(80)), [0, 1, 2], Sampling(max_tokens=12))


def two_roles(base):
    """A base with the adapters ``planner`` and ``grounder``, each different from it."""
    both = add_lora(add_lora(base, r=2, alpha=4, name="planner"), r=2, alpha=4, name="grounder")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in both.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1, generator=generator)
    return both


def weights_of(policy, adapter: str) -> dict[str, torch.Tensor]:
    found = policy.named_parameters()
    return {name: weight.detach().clone() for name, weight in found if f".{adapter}." in name}


def same(one, other) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_roles_are_trained_in_turn_and_touch_neither_base_nor_each_other(tmp_path):
    both = two_roles(tiny_llama())
    base = {n: w.detach().clone() for n, w in both.named_parameters() if "lora" not in n}
    for role, other in (("planner", "grounder"), ("grounder", "planner")):
        mine, others = weights_of(both, role), weights_of(both, other)
        report = train(both, make_rows(), LORA, tmp_path / role, adapter=role)
        assert not same(mine, weights_of(both, role))
        assert same(others, weights_of(both, other))
        loaded = load_adapter(tiny_llama(), report.final, name=role)
        assert same(weights_of(loaded, role), weights_of(both, role))
    assert same(base, dict(both.named_parameters()))


def test_the_reference_of_a_role_is_its_adapter_or_the_base(tmp_path):
    both = two_roles(tiny_llama())

    def referenced(model, folder: str, **adapter: str):
        folder_ = tmp_path / folder
        return with_reference(model, make_pairs(), LORA, folder_, reduction="none", **adapter)

    pairs, objective = referenced(both, "r", adapter="planner"), DPO(DPOSettings())
    report = train(both, pairs, LORA, tmp_path / "dpo", objective=objective, adapter="planner")
    assert report.first_loss == pytest.approx(math.log(2), abs=1e-6), "its margin to itself is 0"
    plain = referenced(tiny_llama(), "plain")
    for pair, plain_pair in zip(referenced(both, "base"), plain, strict=True):
        assert pair.reference == pytest.approx(plain_pair.reference, abs=1e-5)


def test_the_scale_of_an_adapter_is_alpha_over_r():
    one = two_roles(tiny_llama())
    weights = dict(one.named_parameters())
    begin = "base_model.model.model.layers.0.self_attn.q_proj"
    down, up = (weights[f"{begin}.lora_{side}.grounder.weight"] for side in "AB")
    expected = weights[f"{begin}.base_layer.weight"] + 4 / 2 * up @ down
    merged = one.merge_and_unload().model.layers[0].self_attn.q_proj.weight
    torch.testing.assert_close(merged, expected)


def roles(loaded: LoadedModel) -> dict[str, InProcessEngine]:
    return {role: InProcessEngine(loaded, policy=role, version="0", adapter=role) for role in ROLES}


def alike(some: list[Completion], others: list[Completion]) -> bool:
    """Whether all say the same, but for rounding: models with adapters do not run by compiled loops."""
    return all(
        one.ids == other.ids and one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        for one, other in zip(some, others, strict=True)
    )


def shared_base(folder: Path) -> LoadedModel:
    first = make_model("chatml")
    first.model.save_pretrained(folder)
    first.tokenizer.save_pretrained(folder)
    loaded = load(folder)
    return replace(loaded, model=two_roles(loaded.model))


def test_roles_are_sampled_side_by_side_as_each_alone_and_load_adapters(tmp_path):
    loaded = shared_base(tmp_path / "base")
    engines = roles(loaded)
    alone = {role: asyncio.run(one.sample(*ASK)) for role, one in engines.items()}
    assert not alike(alone["planner"], alone["grounder"])

    async def together() -> list[list[Completion]]:
        return await asyncio.gather(*(one.sample(*ASK) for one in roles(loaded).values()))

    for role, beside in zip(ROLES, asyncio.run(together()), strict=True):
        assert alike(beside, alone[role])
        (scores,) = asyncio.run(engines[role].logprobs(ASK[0], [alone[role][0].ids]))
        assert alone[role][0].logprobs == pytest.approx(scores, abs=1e-4)
    save_adapter(loaded.model, tmp_path / "grounder", "grounder")
    asyncio.run(engines["planner"].load(tmp_path / "grounder", "1"))
    assert engines["planner"].version == "1"
    for role in ROLES:
        assert alike(asyncio.run(engines[role].sample(*ASK)), alone["grounder"])


def test_an_adapter_of_another_rank_and_scale_takes_the_place_of_one(tmp_path):
    bench = two_roles(tiny_llama())
    rows = torch.arange(20)[None]
    for rank, alpha in ((3, 12), (1, 2), (2, 12)):
        own = add_lora(tiny_llama(), r=rank, alpha=alpha)
        torch.manual_seed(rank)
        for name, weight in own.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(std=0.1)
        save_adapter(own, tmp_path / "own")
        with torch.no_grad():
            bench = load_adapter(bench, tmp_path / "own", name="planner")
            assert torch.equal(bench(rows).logits, own(rows).logits)


def test_adapters_of_other_bases_and_unknown_ones_are_refused(tmp_path):
    both = two_roles(tiny_llama())
    save_adapter(both, tmp_path / "planner", "planner")
    load_adapter(tiny_llama().to(torch.bfloat16), tmp_path / "planner")
    other = tiny_llama()
    with torch.no_grad():
        other.model.layers[-1].mlp.down_proj.weight[-1, -1] += 0.5  # any one value
    with pytest.raises(UserError, match="trained on a different base"):
        load_adapter(other, tmp_path / "planner")
    with pytest.raises(ValueError, match="critic not found"), using(both, "critic"):
        pass
    with pytest.raises(UserError, match="no adapter 'planner' to train"):
        train(tiny_llama(), make_rows(), LORA, tmp_path / "t", adapter="planner")
