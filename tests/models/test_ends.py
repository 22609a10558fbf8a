"""Models, adapters and exports have the ends of turn that were trained, and Transformers stops at them."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer, GenerationConfig

from coterie.models import loading
from coterie.models.loading import load, load_renderer
from coterie.models.saving import save_model
from coterie.training.trainer import train
from tests.conftest import Cli
from tests.helpers.published_templates import published_tokenizer
from tests.helpers.stopping_models import BARELY, WORD, generate_reply, save_stopping, stopping_rows
from tests.helpers.template_models import make_tokenizer
from tests.helpers.write_rows import write_jsonl

TEXT, CHATML = "<|endoftext|>", "<|im_end|>"
PUBLISHED = {"temperature": 0.6, "top_p": 0.9}
"""Settings of published models that Transformers loads, and refuses to save without ``do_sample``."""
BASE = (CHATML, TEXT, [TEXT])
"""Ends of a base model under ChatML, as :func:`save_stopping` takes them."""
EXPORTS = {
    "first": (("mine",), ("untrained", "--iteration", 0)),
    "second": (("adapter",), ("merged", "--merge")),
}
"""Folder and options of exports, by run; the second run trains ``mine``."""


def ends(folder: Path) -> tuple[Any, ...]:
    """Return the ends in ``generation_config.json`` and ``config.json``, the tokenizer's end, and its pad."""
    saved = AutoTokenizer.from_pretrained(folder)
    values = [
        json.loads((folder / name).read_bytes())["eos_token_id"]
        if (folder / name).is_file()
        else None
        for name in ("generation_config.json", "config.json")
    ]
    texts = [None if ids is None else saved.convert_ids_to_tokens(ids) for ids in values]
    return (*texts, saved.eos_token, saved.pad_token)


@pytest.mark.parametrize(("template", "end", "eos", "stops", "want"), [
    ("qwen2_5", *BASE, [CHATML, TEXT]),
    ("qwen2_5", CHATML, TEXT, None, [CHATML, TEXT]),
    ("qwen3", CHATML, CHATML, [CHATML, TEXT], [CHATML, TEXT]),
    ("llama3", "<|eot_id|>", "<|end_of_text|>", ["<|end_of_text|>"], ["<|eot_id|>", "<|end_of_text|>"]),
    ("llama3_1", "<|eot_id|>", "<|eot_id|>", ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
     ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"]),
    ("gemma3", "<end_of_turn>", "<eos>", ["<eos>", "<end_of_turn>"], ["<end_of_turn>", "<eos>"]),
    ("gemma4", "<turn|>", "<eos>", ["<eos>"], ["<turn|>", "<|tool_response>", "<eos>"]),
    ("gptoss", "<|return|>", TEXT, [TEXT], ["<|return|>", "<|call|>", TEXT]),
    ("phi3_5", "<|end|>", TEXT, [TEXT], ["<|end|>", TEXT]),
])  # fmt: skip
def test_all_files_of_a_trained_model_have_its_ends_and_transformers_stops_there(
    template: str, end: str, eos: str, stops: list[str] | None, want: list[str], tmp_path: Path
) -> None:
    base = save_stopping(tmp_path / "base", published_tokenizer(template), end, eos, stops)
    if stops is None or end not in stops:
        assert generate_reply(base).count(end) == 4, "the base does not stop at its end of turn"
    final = train(load(base).model, stopping_rows(), BARELY, tmp_path / "run").final
    # Phi 3's template writes the tokenizer's end after the last turn, where it must not change.
    written = (eos, None) if template == "phi3_5" else (end, None if end == eos else eos)
    assert ends(final) == (want, want[0], *written)
    assert generate_reply(final).strip() == f"{WORD}{end}"
    before, after = (load_renderer(folder)[0] for folder in (base, final))
    assert (after.end_ids, after.control.ids) == (before.end_ids, before.control.ids)
    again = tmp_path / "again"
    save_model(load(final).model, again)
    for name in ("generation_config.json", "config.json", "tokenizer_config.json"):
        assert (again / name).read_bytes() == (final / name).read_bytes()


def test_an_adapter_has_the_ends_in_files_of_its_own(tmp_path: Path) -> None:
    base = save_stopping(tmp_path / "base", make_tokenizer("chatml"), *BASE, **PUBLISHED)
    settings = BARELY.model_copy(update={"method": "lora"})
    final = train(load(base).model, stopping_rows(), settings, tmp_path / "run").final
    assert ends(final) == ([CHATML, TEXT], None, CHATML, TEXT)
    model = AutoPeftModelForCausalLM.from_pretrained(final)
    assert (
        generate_reply(final, model, generation_config=GenerationConfig.from_pretrained(final))
        == f"{WORD}{CHATML}"
    )


def test_other_settings_and_a_pad_that_is_no_end_are_kept(tmp_path: Path) -> None:
    base = save_stopping(tmp_path / "base", make_tokenizer("chatml"), *BASE, **PUBLISHED)
    config = json.loads((base / "tokenizer_config.json").read_bytes())
    (base / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": "<|im_start|>"}))
    (base / "config.json").write_text(
        json.dumps({**json.loads((base / "config.json").read_bytes()), "eos_token_id": [7, 9]})
    )
    final = train(load(base).model, stopping_rows(), BARELY, tmp_path / "run").final
    assert ends(final) == ([CHATML, TEXT], [CHATML, TEXT], CHATML, "<|im_start|>")
    assert json.loads((final / "generation_config.json").read_bytes()).items() >= PUBLISHED.items()


def test_a_model_of_the_hub_leaves_its_tokenizer_with_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "hub/models--owner--base"
    save_stopping(cached / "snapshots/0", make_tokenizer("chatml"), *BASE)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("0")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(loading, "hub_answers", lambda: False)
    final = train(load("owner/base").model, stopping_rows(), BARELY, tmp_path / "run").final
    assert ends(final) == ([CHATML, TEXT], CHATML, CHATML, TEXT)
    assert load(final).renderer.end_ids == load("owner/base").renderer.end_ids


def test_exports_stop_and_so_do_those_of_a_training_from_an_export(
    cli: Cli, tmp_path: Path
) -> None:
    save_stopping(tmp_path / "base", make_tokenizer("chatml"), *BASE, **PUBLISHED)
    chat = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": WORD}]
    chats = ([{"role": "user", "content": f"How {i}?"}, chat[1]] for i in range(20))
    write_jsonl(tmp_path / "chats.jsonl", *({"messages": chat} for chat in chats))
    words = ["run", "sft", "chats.jsonl", "train.learning_rate=1e-6", "train.max_length=128"]
    words += ["train.epochs=1", "evaluate.tasks=1", "evaluate.max_tokens=8", "engine.device=cpu"]
    for model, folder, method in (("base", "first", "full"), ("mine", "second", "lora")):
        run = cli(*words, f"model={model}", f"train.method={method}", "--folder", folder)
        assert run.code == 0, run.err
        for out, *options in EXPORTS[folder]:
            assert cli("export", "model", folder, "--out", out, *options).code == 0
            config = None if out == "adapter" else CHATML
            assert ends(Path(out)) == ([CHATML, TEXT], config, CHATML, TEXT)
            assert out == "adapter" or generate_reply(Path(out)) == f"{WORD}{CHATML}"
