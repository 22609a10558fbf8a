"""Models that would be silently wrong: every way of ours gives a family's own log-probs, or refuses it."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.llama import CompiledLlama
from coterie.engines.padded import PaddedRows
from coterie.engines.protocol import Sampling
from coterie.errors import UserError
from coterie.models import check as checking
from coterie.models import logprobs
from coterie.models.chat import ChatRenderer
from coterie.models.check import CheckedModel, check
from coterie.models.loading import LoadedModel, context_length, load
from coterie.models.logprobs import body, partial_attention, sequence_logprobs
from coterie.models.prefix_trie import CostRule
from coterie.rewards.critics import HeadCritic
from coterie.training.reference import with_reference
from coterie.training.trainer import train
from tests.helpers.template_models import make_model as chatml
from tests.helpers.template_models import make_tokenizer
from tests.helpers.training_models import SETTINGS, make_pairs, make_rows, tiny_llama

CONTEXT = 90
LLAMA = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
ONE_KEY_HEAD_EACH = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
GPT = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
GPT |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4}
LONGROPE |= {"short_factor": [1.0] * 4, "long_factor": [8.0] * 4}
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}
CAPPED = {"head_dim": 8, "layer_types": ["full_attention"] * 2, "attn_logit_softcapping": 1.0}
CAPPED |= {"attn_implementation": "eager"}
INKLING = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
INKLING |= {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "rel_extent": 16}
WHOLE = ("flat", "packed", "engine")
FAMILIES: dict[str, tuple[str, dict[str, object], Sequence[str]]] = {
    "llama": ("llama", LLAMA, WHOLE),
    "dynamic angles": ("llama", {**LLAMA, "rope_parameters": DYNAMIC}, WHOLE),
    "qwen3": ("qwen3", {**LLAMA, "head_dim": 8}, WHOLE),
    "gemma": ("gemma", {**LLAMA, "head_dim": 8}, WHOLE),
    "gpt2": ("gpt2", GPT, WHOLE),
    "gpt_neox": ("gpt_neox", ONE_KEY_HEAD_EACH, WHOLE),
    "opt": ("opt", {**ONE_KEY_HEAD_EACH, "ffn_dim": 48, "word_embed_proj_dim": 16, "dropout": 0.0}, WHOLE),
    "falcon": ("falcon", {**ONE_KEY_HEAD_EACH, "ffn_hidden_size": 48}, WHOLE),
    "longrope": ("phi3", {**LLAMA, "rope_parameters": LONGROPE, "original_max_position_embeddings": 48}, WHOLE),
    "cohere": ("cohere", {**LLAMA, "logit_scale": 0.25}, WHOLE),
    "granite": ("granite", {**LLAMA, "logits_scaling": 4.0}, WHOLE),
    "mixtral": ("mixtral", {**LLAMA, **EXPERTS}, WHOLE),
    "gemma2": ("gemma2", {**LLAMA, "head_dim": 8, "sliding_window": 16, "final_logit_softcapping": 3.0}, ("flat",)),
    "capped attention": ("gemma2", {**LLAMA, **CAPPED}, WHOLE),
    "falcon_h1": ("falcon_h1", {**LLAMA, **MAMBA, "lm_head_multiplier": 0.1, "mamba_chunk_size": 16}, ("flat",)),
    "inkling": ("inkling_text", {**LLAMA, **INKLING, "logits_mup_width_multiplier": 4.0}, ("flat",)),
    "mamba": ("mamba", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, ("flat",)),
    "bloom": ("bloom", {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4}, ("flat",)),
    "gptj": ("gptj", {**GPT, "rotary_dim": 4}, WHOLE),
    "roberta": ("roberta", {**ONE_KEY_HEAD_EACH, "is_decoder": True}, ()),
}  # fmt: skip
"""Model type, settings, and the ways that are taken; the others are refused."""


def made(family: str) -> Any:
    kind, settings, _ = FAMILIES[family]
    return of(CONFIG_MAPPING[kind](**settings))


def of(config: PreTrainedConfig) -> Any:
    """A random model whose parts all matter: weights are larger than a fresh model's."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return model


def loaded(model: Any, context: int | None = None) -> LoadedModel:
    pieces = make_tokenizer("chatml")
    length = context or context_length(model.config) or CONTEXT
    return LoadedModel(model, pieces, ChatRenderer(pieces), length, "random")


def engine(model: Any) -> InProcessEngine:
    return InProcessEngine(loaded(model), policy="p", version="0")


def company(longest: int) -> list[tuple[int, ...]]:
    """Rows of different lengths; two of them begin alike."""
    rng = random.Random(0)
    long, other, short = (
        [rng.randrange(3, 100) for _ in range(n)] for n in (longest, longest // 2, 7)
    )
    return [tuple(long), tuple(other), tuple(short), (*long[:20], *other[:15])]


def own(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Log-probs of a row's tokens after the first, by the model's own forward pass."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1)


Rows = list[tuple[int, ...]]
Logprobs = list[tuple[tuple[int, ...], torch.Tensor]]
"""Rows, and log-probs of their last tokens."""


def flat(model: Any, rows: Rows) -> Logprobs:
    return by_rule(model, rows, check(model).packing("flat"))


def packed(model: Any, rows: Rows) -> Logprobs:
    assert check(model).packing("auto") is not None
    return by_rule(model, rows, CostRule(0.0))


def by_rule(model: Any, rows: Rows, rule: CostRule | None) -> Logprobs:
    with torch.no_grad():
        places = [range(1, len(row)) for row in rows]
        return list(zip(rows, sequence_logprobs(model, rows, places, rule), strict=True))


def sampled_and_scored(model: Any, rows: Rows) -> Logprobs:
    one = engine(model)

    async def ask() -> Logprobs:
        prompts = [row[: len(row) - 6] for row in rows]
        (_, score), *samples = await asyncio.gather(
            one.logprobs(rows[0][:1], [rows[0][1:], rows[3][1:]]),
            *(one.sample(prompt, [5], Sampling(max_tokens=6)) for prompt in prompts),
        )
        pairs = [(p, s) for p, (s,) in zip(prompts, samples, strict=True)]
        sampled = [((*p, *s.ids), torch.tensor(s.logprobs)) for p, s in pairs]
        return [(rows[3], torch.tensor(score)), *sampled]

    return asyncio.run(ask())


WAYS = {"flat": flat, "packed": packed, "engine": sampled_and_scored}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_way_gives_the_models_own_logprobs_or_refuses_it(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 7 * 100)
    kind, _, taken = FAMILIES[family]
    for way, run in WAYS.items():
        model = made(family)
        rows = company(context_length(model.config) or CONTEXT)
        plain = made(family)
        if way not in taken:
            with pytest.raises(UserError, match=kind) as refused:
                run(model, rows)
            assert refused.value.todo
            continue
        for ids, logprobs_ in run(model, rows):
            expected = own(plain, ids)[-len(logprobs_) :]
            torch.testing.assert_close(logprobs_, expected, atol=2e-5, rtol=1e-4)


def test_longrope_is_taken_up_to_its_original_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made("longrope")
    model.save_pretrained(tmp_path / "model")
    make_tokenizer("chatml").save_pretrained(tmp_path / "model")
    assert load(tmp_path / "model").context_length == 48
    row = make_rows(1)[0]
    long = replace(row, ids=(*row.ids, *[3] * (49 - len(row.ids))))
    report = train(model, [row, long], SETTINGS, tmp_path / "train")
    assert (report.rows, report.dropped_too_long) == (SETTINGS.epochs, 1)
    with pytest.raises(UserError, match=r"context of .*, 48 tokens"):
        InProcessEngine(loaded(model, CONTEXT), policy="p", version="0")
    monkeypatch.setattr(checking, "context_length", lambda _: CONTEXT)
    with pytest.raises(UserError, match=f"next to position {CONTEXT}"):
        check(made("longrope"))


def aware_of_company(model: Any) -> Any:
    """The model, made to answer otherwise in a batch of several rows."""
    inner = body(model).forward

    def forward(*given: Any, **named: Any) -> Any:
        output = inner(*given, **named)
        if len(output.last_hidden_state) > 1:
            output.last_hidden_state = 2 * output.last_hidden_state
        return output

    body(model).forward = forward
    return model


@pytest.mark.parametrize("packing", ["auto", "flat"])
def test_a_model_whose_rows_depend_on_company_is_not_used(packing: str, tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"packing": packing})
    with pytest.raises(UserError, match=r"llama.* in a padded batch .*nats"):
        train(aware_of_company(tiny_llama()), make_rows(), settings, tmp_path / "train")
    assert not (tmp_path / "train").exists()
    check(made("llama").bfloat16())  # its rounding is allowed
    model, options = aware_of_company(tiny_llama()), {"reduction": "none"}
    uses: list[Callable[[], object]] = [
        lambda: with_reference(model, make_pairs(), settings, tmp_path, **options),  # type: ignore[arg-type]
        lambda: engine(aware_of_company(made("gpt2"))),
        lambda: HeadCritic(loaded(aware_of_company(made("llama"))), "mean"),
        lambda: check(aware_of_company(made("llama").bfloat16())),
    ]
    for use in uses:
        with pytest.raises(UserError, match="in a padded batch"):
            use()
    same, other = torch.zeros(3), torch.tensor([0.0, 0.5, 0.0])
    differ = CheckedModel("llama", exact=True, rows=()).differ
    assert differ([same, same], [same, same]) == ""
    assert differ([same, other], [same, same]) == "0.5 nats", "one row is enough"


@pytest.mark.parametrize("step", ["prefill", "decode", "score"])
@pytest.mark.parametrize("rows", [PaddedRows, CompiledLlama])
def test_an_engines_wrong_step_is_found_out(
    rows: Any, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (right := getattr(rows, step, None)) is None:
        return

    def wrong(*given: Any) -> Any:
        result = right(*given)
        if step == "score":
            return [[2 * one for one in row] for row in result]
        return (result[0] * 1.1, *result[1:]) if isinstance(result, tuple) else result * 1.1

    monkeypatch.setattr(rows, step, wrong)
    with pytest.raises(UserError, match=r"(sampled with cached keys|scored by the engine) .*nats"):
        engine(made("gpt2") if rows is PaddedRows else chatml("chatml").model)


def test_a_model_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = tiny_llama().eval(), []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    engine(model)
    assert calls
    calls.clear()
    engine(model)
    check(model)
    assert not calls
    check(model.train())
    assert calls, "in another mode it may differ"


def test_attention_over_a_part_of_a_row_is_known_from_the_config() -> None:
    for kind, layers in (
        ("gpt_neo", "layers of local"),
        ("doge", "keep window size of 2048"),
        ("recurrent_gemma", "attention window size of 2048"),
        ("mistral", "sliding window of 4096"),
        ("gemma3", "layers of sliding attention"),
    ):
        assert layers in "".join(partial_attention(CONFIG_MAPPING[kind]()))
    assert not partial_attention(CONFIG_MAPPING["mistral"](sliding_window=None))


def test_dropout_by_any_name_is_refused(tmp_path: Path) -> None:
    kind, settings, _ = FAMILIES["opt"]
    model = of(CONFIG_MAPPING[kind](**{**settings, "dropout": 0.1}))
    with pytest.raises(UserError, match=r"dropout=0\.1"):
        train(model, make_rows(), SETTINGS, tmp_path)
