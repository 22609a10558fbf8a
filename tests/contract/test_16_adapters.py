"""An adapter's logits are those of its merged, exported and loaded weights, and what is sampled is scored by them."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, Qwen3MoeConfig

from coterie.engines.protocol import Sampling
from coterie.engines.settings import EngineSettings
from coterie.errors import UserError
from coterie.models.adapters import add_lora, load_adapter, save_adapter
from coterie.models.loading import load, reload
from coterie.recipes.plan import check_training
from coterie.recipes.registry import settings
from coterie.record.rows import Row, Target
from coterie.runs.loop import Role
from coterie.runs.roles import Learner, Roles
from coterie.training.reference import with_old
from coterie.training.settings import TrainingSettings
from tests.helpers.engine_models import CHATML, open_engine, random_model
from tests.helpers.run_rl import SMALL, make_recipe
from tests.helpers.training_models import LOW

EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "mlp_only_layers": [0],
}  # fmt: skip
IDS = torch.tensor([[*range(5, 25)]])
TARGETS: Mapping[str, Sequence[str]] = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "all-linear": ("all-linear",),
    "embed_tokens": ("q_proj", "embed_tokens"),
    "lm_head": ("q_proj", "lm_head"),
    "both ends": ("embed_tokens", "lm_head"),
}
SAVED = {"saved embed_tokens": "embed_tokens", "saved lm_head": "lm_head"}


def changed(model: PeftModel) -> PeftModel:
    """Every trained weight moved off where it began."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_" in name or ".modules_to_save." in name:
                weight.add_(torch.randn_like(weight), alpha=0.1)
    return model.eval()


def adapter(model: Any, kind: str) -> PeftModel:
    if kind in TARGETS:
        return changed(add_lora(model, r=2, alpha=4, target_modules=TARGETS[kind]))
    config = LoraConfig(
        r=2, target_modules=["q_proj"], modules_to_save=[SAVED[kind]], task_type="CAUSAL_LM"
    )
    made = get_peft_model(model, config)
    assert isinstance(made, PeftModel)
    return changed(made)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings=True`")
@pytest.mark.parametrize("kind", [*TARGETS, *SAVED])
@pytest.mark.parametrize(
    ("family", "tied"),
    [(LlamaConfig, True), (Qwen3MoeConfig, False)],
    ids=["tied, compiled", "untied, with experts"],
)
def test_merged_exported_loaded_and_sampled_weights_are_the_adapters(
    tmp_path: Path, family: Any, tied: bool, kind: str
) -> None:
    experts = {} if tied else EXPERTS
    config = family(**CHATML, head_dim=8, tie_word_embeddings=tied, **experts)
    base = random_model(config)
    base.model.save_pretrained(tmp_path / "base")
    base.tokenizer.save_pretrained(tmp_path / "base")
    before = logits(base.model)
    trained = adapter(base.model, kind)
    own = logits(trained)
    assert (own - before).abs().max() > 0.02
    save_adapter(trained, tmp_path / "adapter")
    again = load_adapter(load(tmp_path / "base").model, tmp_path / "adapter")
    assert torch.equal(logits(again), own)

    merged = load(tmp_path / "base")
    reload(merged, tmp_path / "adapter")
    assert torch.allclose(logits(merged.model), own, atol=1e-3)
    merged.model.save_pretrained(tmp_path / "merged")
    merged.tokenizer.save_pretrained(tmp_path / "merged")
    exported = load(tmp_path / "merged")
    assert torch.equal(logits(exported.model), logits(merged.model))

    engine = open_engine(load(tmp_path / "base"))
    prompt = IDS[0].tolist()
    for weights, model in (("adapter", again), ("base", load(tmp_path / "base").model)):
        asyncio.run(engine.load(tmp_path / weights, weights))
        (said,) = asyncio.run(engine.sample(prompt, [3], Sampling(max_tokens=8)))
        with torch.no_grad():
            every = model(torch.tensor([[*prompt, *said.ids]])).logits.log_softmax(-1)
        at = every[0, len(prompt) - 1 : -1].gather(1, torch.tensor(said.ids)[:, None])[:, 0]
        assert said.logprobs == pytest.approx(at.tolist(), abs=1e-3)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings=True`")
@pytest.mark.parametrize("kind", [*TARGETS, *SAVED])
def test_an_adapter_on_bfloat16_is_rounded_once_if_merged_and_never_in_references(
    tmp_path: Path, kind: str
) -> None:
    base = random_model(LlamaConfig(**CHATML, head_dim=8, tie_word_embeddings=True))
    base.model.bfloat16().save_pretrained(tmp_path / "base")
    base.tokenizer.save_pretrained(tmp_path / "base")
    save_adapter(adapter(load(tmp_path / "base").model, kind), tmp_path / "final")
    exact, rounded = (load(tmp_path / "base", dtype=one) for one in (torch.float32, torch.bfloat16))
    for one in (exact, rounded):
        reload(one, tmp_path / "final")
    weights = rounded.model.state_dict()
    for name, weight in exact.model.state_dict().items():
        assert torch.equal(weights[name], weight.bfloat16()), name

    run: Any = SimpleNamespace(folder=tmp_path, training_folder=lambda *_: tmp_path)
    policy = Role("policy", str(tmp_path / "base"))
    roles = Roles([policy], EngineSettings(device="cpu"), run, torch.bfloat16)
    own = roles.load("policy", 1, trainable=True)
    what: Any = SimpleNamespace(role="policy", version=1, settings=LOW)
    trainer: Any = SimpleNamespace(done=0, model=own.model)
    rows = [Row(tuple(range(5, 25)), (Target(8, 20, "policy@1"),))]
    (known,) = Learner(roles, what, own, trainer, False).with_reference(rows, 1.0)
    (old,) = with_old(own.model, rows, LOW, temperature=1.0)
    roles.close()
    assert known.reference == old.old


@pytest.mark.parametrize(
    ("method", "overrides", "said"),
    [
        (
            "rl/grpo",
            "train.method=lora train.lora_targets=[q_proj,no_such]",
            "adapter on no_such",
        ),
        (
            "rl/grpo",
            "train.method=lora train.lora_targets=[norm]",
            "adapter on norm does not fit",
        ),
        ("rl/grpo", "engine.attention=flash_attention_2", "cannot train on shared prefixes"),
        ("optima/isft", "train.method=lora train.lora_targets=[no_such]", "adapter on no_such"),
    ],
)
def test_weights_that_can_not_be_trained_so_are_refused_before_the_run(
    method: str, overrides: str, said: str
) -> None:
    few = [one for one in SMALL if method.startswith("rl/") or not one.startswith(("st", "up"))]
    with pytest.raises(UserError, match=said) as e:
        make_recipe(method, [*few, *overrides.split()]).plan()
    assert "\n" not in e.value.what
    if method == "rl/grpo":
        make_recipe(method, [*few, "train.method=lora", "train.lora_targets=[all-linear]"]).plan()


def test_trainings_of_two_dtypes_are_refused_before_the_run() -> None:
    own = settings("optima/isft", ["train.dtype=bfloat16"])
    with pytest.raises(UserError, match=r"coach\.dtype=float32, but another"):
        check_training("coach", TrainingSettings(), own, own.model)


def test_an_adapter_of_another_architecture_is_refused_in_one_line(tmp_path: Path) -> None:
    trained = adapter(random_model(LlamaConfig(**CHATML)).model, "mlp")
    trained.save_pretrained(str(tmp_path))
    wide = random_model(LlamaConfig(**{**CHATML, "intermediate_size": 48})).model
    with pytest.raises(UserError, match="does not fit this model") as e:
        load_adapter(wide, tmp_path)
    assert "\n" not in e.value.what
    with pytest.raises(UserError, match="no adapter_model"):
        load_adapter(wide, tmp_path / "none")
