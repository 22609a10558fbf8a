"""`coterie export model`: a folder for others, its card, and a push that is refused in time."""

from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from coterie.cli import export_model
from coterie.cli.arguments import read_arguments
from coterie.models import loading
from coterie.models.loading import load
from tests.conftest import FEW, Cli, refused
from tests.hub import Account, point_hub_at, take
from tests.reinforcing import made


def test_the_last_policy_is_written_with_its_tokenizer_and_a_card(
    cli: Cli, run: Path, tmp_path: Path
) -> None:
    said = cli("export", "model", "run", "--out", "mine")
    assert said.code == 0 and said.out.strip() == "mine", said.err
    theirs = AutoModelForCausalLM.from_pretrained("mine").state_dict()
    ours = load(run / "training/policy/iteration-00/final").model.state_dict()
    base = load("tiny-exchange").model.state_dict()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)
    assert not all(torch.equal(theirs[name], base[name]) for name in base)
    assert AutoTokenizer.from_pretrained("mine").chat_template
    card = (tmp_path / "mine/README.md").read_text()
    assert "# optima/isft on exchange" in card and "| 1 |" in card and "| 0 |" in card
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "transformers"
    (tmp_path / "again.yaml").write_text(card.split("```yaml\n")[1].split("```")[0])
    stored = read_arguments(None, [], run / "config.yaml").resolve()
    assert read_arguments(None, [], tmp_path / "again.yaml").resolve() == stored, (
        "the card has all settings"
    )
    assert "mine already exists" in refused(cli, "export", "model", "run", "--out", "mine")
    assert cli("evaluate", "exchange", "policy=mine", "tasks=2").code == 0


def test_versions_and_roles(cli: Cli, run: Path) -> None:
    assert cli("export", "model", "run", "--out", "base", "--iteration", 0).code == 0
    theirs, ours = load("base").model.state_dict(), load("tiny-exchange").model.state_dict()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)
    assert "has no version 7" in refused(
        cli, "export", "model", "run", "--out", "x", "--iteration", 7
    )
    said = refused(cli, "export", "model", "run", "--out", "x", "--role", "polcy")
    assert "did you mean 'policy'" in said
    assert "not an adapter" in refused(cli, "export", "model", "run", "--out", "x", "--merge")
    assert not Path("x").exists()


def test_an_adapter_is_written_as_it_is_or_merged(cli: Cli) -> None:
    lora = ("train.method=lora", "train.lora_r=4", "train.learning_rate=1e-2")
    assert cli("run", "optima/isft", *FEW, *lora, "--folder", "run").code == 0
    assert cli("export", "model", "run", "--out", "adapter").code == 0
    assert Path("adapter/adapter_config.json").is_file()
    assert Path("adapter/tokenizer.json").is_file()
    assert "A LoRA adapter of" in Path("adapter/README.md").read_text()
    assert cli("export", "model", "run", "--out", "merged", "--merge").code == 0
    merged, base = load("merged").model.state_dict(), load("tiny-exchange").model.state_dict()
    assert merged.keys() == base.keys()
    assert not all(torch.equal(merged[name], base[name]) for name in base)


def test_a_push_that_can_not_work_is_refused_before_anything_is_read(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = ("export", "model", "no-run", "--out", "mine", "--push")
    assert "--push me/my model" in refused(cli, *push, "me/my model")
    account = Account("hf_right")
    server = take(account)
    point_hub_at(server, monkeypatch)
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    loading.hub_answers.cache_clear()
    try:
        said = refused(cli, *push, "me/mine")
    finally:
        loading.hub_answers.cache_clear()
        server.shutdown()
    assert "401" in said and "HF_TOKEN" in said and not account.repos


def test_the_card_has_settings_that_are_named_by_hand() -> None:
    recipe = made("rl/grpo", ["reward.measures={rounds: 0.5}"])
    assert yaml.safe_load(export_model._changes(recipe))["reward.measures.rounds"] == 0.5
