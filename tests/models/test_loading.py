"""Loading: what works, and what is refused before weights are read."""

import contextlib
import json
import socket
from functools import cache
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from coterie.errors import UserError
from coterie.models import loading, logprobs
from coterie.models.adapters import add_lora
from coterie.models.loading import check_context, load
from coterie.models.logprobs import token_logprobs
from tests.helpers.template_models import make_model, targets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    loaded = make_model("chatml", context=512)
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_saved_model_comes_back(folder: Path) -> None:
    loaded = load(folder)
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(
        loaded.model(ids).logits, make_model("chatml", context=512).model(ids).logits
    )
    assert loaded.context_length == 512
    assert loaded.source == str(folder)
    assert not loaded.model.training
    assert loaded.tokenizer.eos_token_id in loaded.renderer.end_ids
    edit(folder / "generation_config.json", eos_token_id=[0, 7])
    assert {0, 7} <= load(folder).renderer.end_ids
    check_context(512, 512)
    with pytest.raises(UserError, match="600 tokens"):
        check_context(512, 600)


def test_what_is_no_model_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    for name, problem in (("a/b/c", "no model or folder"), (tmp_path / "bare", r"no config.json")):
        with pytest.raises(UserError, match=problem):
            load(name)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="safetensors"):
        load(folder)
    for kind in (
        {"architectures": ["LlamaForSequenceClassification"]},
        {"architectures": ["T5EncoderModel"], "model_type": "t5"},
    ):
        edit(folder / "config.json", **kind)
        with pytest.raises(UserError, match="not a causal language model"):
            load(folder)


def test_a_hub_that_is_offline_or_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "hub_answers", cache(loading.hub_answers.__wrapped__))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set") as refused:
        load("nobody/no-such-model-here")
    assert "hf download nobody/no-such-model-here" in str(refused.value)
    loading.hub_answers.cache_clear()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(loading, "TIMEOUT", 0.2)
        with pytest.raises(UserError, match="can't be reached"):
            load("nobody/no-such-model-here")
        silent.settimeout(0.2)
        tries = 0
        with contextlib.suppress(TimeoutError):
            while True:
                silent.accept()[0].close()
                tries += 1
    assert tries == loading.TRIES == 2


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("config.json", {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}),
        ("tokenizer_config.json", {"tokenizer_class": "Own",
                                   "auto_map": {"AutoTokenizer": [None, "own.Own"]}}),
    ],
)  # fmt: skip
def test_code_of_a_models_own_is_refused_without_asking(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, said: dict[str, object]
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asks"))
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nclass Own: pass\n")
    (folder / file).write_text(json.dumps(said))
    with pytest.raises(UserError, match="needs custom code"):
        load(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("lora", [False, True])
def test_logprobs_and_their_gradients_are_those_of_the_full_logits(
    lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 5 * 290)
    plain = make_model("chatml").model
    policy = add_lora(plain, r=2, alpha=4) if lora else plain
    ids = torch.randint(0, 290, (3, 20))
    mask = torch.rand(3, 20) < 0.4
    mask[:, 0] = False
    at, tokens = targets(ids, mask)
    found = token_logprobs(policy, ids, at, tokens, temperature=0.7)
    full = (policy(ids).logits / 0.7).log_softmax(-1)
    want = full[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)[mask[:, 1:]]
    assert torch.allclose(found, want, atol=1e-5)
    weights = [weight for weight in policy.parameters() if weight.requires_grad]
    ours = torch.autograd.grad(found.sum(), weights)
    theirs = torch.autograd.grad(want.sum(), weights)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-4)
