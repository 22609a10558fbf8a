"""Files of a model, a run or a training that are cut off, or hold something else, are named."""

import json
import shutil
from importlib import resources
from pathlib import Path

import pytest
import torch

from coterie.errors import UserError
from coterie.models.saved import reading
from coterie.training.checkpoint import load_checkpoint, read_facts, save_checkpoint
from tests.conftest import FEW, Cli, refused

TINY = Path(str(resources.files("coterie") / "assets/tiny-exchange"))

CUT = ("model.safetensors", "config.json", "tokenizer.json")


@pytest.mark.parametrize("name", CUT)
def test_a_truncated_checkpoint_is_named(cli: Cli, run: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(TINY, tmp_path / "cut")
    final = run / "training/iteration-00/final"
    for folder in (tmp_path / "cut", final):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])
    file = name.partition(".")[0]
    for words in (
        ("run", "optima/isft", *FEW, "model=cut"),
        ("evaluate", "exchange", "policy=cut", "tasks=2"),
        ("serve", "model", "cut", "--port", "0"),
        ("evaluate", "exchange", "policy=run", "tasks=2"),
        ("serve", "model", "run", "--port", "0"),
        ("run", "optima/isft", "model=run", *FEW),
    ):
        assert file in refused(cli, *words)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", "[]", "config.json can't be read"),
        ("config.json", '{"model_type": "llama", "hidden_size": "x"}', "config.json can't be read"),
        ("tokenizer.json", "[]", "its tokenizer can't be read"),
        ("tokenizer_config.json", "[]", "its tokenizer can't be read"),
        ("generation_config.json", "[]", "generation_config.json can't be read"),
    ],
)
def test_a_model_file_that_holds_something_else_is_named(
    cli: Cli, tmp_path: Path, name: str, text: str, said: str
) -> None:
    shutil.copytree(TINY, tmp_path / "odd")
    (tmp_path / "odd" / name).write_text(text)
    assert said in refused(cli, "run", "optima/isft", "model=odd")


def test_weights_of_another_model_are_refused(cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "odd")
    shutil.copy(TINY.with_name("tiny-persona") / "model.safetensors", tmp_path / "odd")
    said = refused(cli, "evaluate", "exchange", "policy=odd", "tasks=1")
    assert "do not fit its config.json" in said


def test_a_training_that_goes_on_from_a_truncated_checkpoint_says_so(tmp_path: Path) -> None:
    layer = torch.nn.Linear(4, 4)
    weights = dict(layer.named_parameters())
    optimizer = torch.optim.AdamW(layer.parameters())
    save_checkpoint(tmp_path, 3, weights, optimizer, {"identity": {}})
    (checkpoint,) = tmp_path.glob("checkpoint-*")
    for name, read in (
        ("state.json", lambda: read_facts(checkpoint)),
        ("state.safetensors", lambda: load_checkpoint(checkpoint, weights, optimizer)),
    ):
        file = checkpoint / name
        file.write_bytes(file.read_bytes()[:-20])
        with pytest.raises(UserError, match=rf"{name} is cut off(.|\n)*remove .*{checkpoint.name}"):
            read()


def test_what_is_missing_in_a_saved_file_is_named(tmp_path: Path) -> None:
    said = r"notes\.json is cut off or damaged: it has no 'loss'"
    with pytest.raises(UserError, match=said), reading(tmp_path / "notes.json"):
        _ = json.loads("{}")["loss"]
