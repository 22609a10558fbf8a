"""Files of a model, a run or a training that are cut off, or hold something else, are named."""

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from coterie.errors import UserError
from coterie.models.adapters import add_lora, load_adapter, save_adapter
from coterie.models.loading import load, reload
from coterie.record.rows import Pair, Row, Target
from coterie.training.checkpoint import (
    load_optimizer,
    load_weights,
    save_checkpoint,
    save_weights,
)
from coterie.training.reference import with_reference
from coterie.training.settings import TrainingSettings
from tests.conftest import FEW, Cli, refused

TINY = Path(str(resources.files("coterie") / "assets/tiny-exchange"))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_truncated_checkpoint_is_named(cli: Cli, run: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(TINY, tmp_path / "cut")
    for folder in (tmp_path / "cut", run / "training/policy/iteration-00/final"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    stem = name.partition(".")[0]
    assert stem in refused(cli, "run", "optima/isft", *FEW, "model=cut")
    assert stem in refused(cli, "evaluate", "exchange", "policy=run", "tasks=2")


def _without(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    del tensors[next(name for name in tensors if "layers.1" in name)]
    save_file(tensors, file, {"format": "pt"})


def _in_shards(folder: Path) -> None:
    """Say that the weights lie in files of which one is not there."""
    file = folder / "model.safetensors"
    names = list(load_file(file))
    places = {name: f"{number % 2}.safetensors" for number, name in enumerate(names)}
    file.rename(folder / "0.safetensors")
    index = {"metadata": {}, "weight_map": places}
    (folder / f"{file.name}.index.json").write_text(json.dumps(index))


def _other(folder: Path) -> None:
    shutil.copy(TINY.with_name("tiny-persona") / "model.safetensors", folder)


def test_weights_of_which_a_part_is_missing_are_refused_and_not_drawn_anew(tmp_path: Path) -> None:
    model = load(TINY)
    for damage, problem in (
        (_without, "tensors are missing from .*: 1, such as model.layers.1"),
        (_in_shards, "1.safetensors"),
        (_other, "do not fit its config.json"),
    ):
        odd = Path(shutil.copytree(TINY, tmp_path / damage.__name__))
        damage(odd)
        for read in (
            lambda odd: load(odd),
            lambda odd: reload(model, odd),
            lambda odd: load_weights(model.model, odd),
        ):
            with pytest.raises(UserError, match=problem):
                read(odd)
    odd = tmp_path / "adapter"
    saved = add_lora(load(TINY).model, r=2, alpha=4)
    save_adapter(saved, odd)
    _without(odd)
    for read in (
        lambda odd: load_adapter(load(TINY).model, odd),
        lambda odd: load_adapter(saved, odd),
        lambda odd: load_adapter(saved, odd, name="other"),
        lambda odd: load_weights(saved, odd),
    ):
        with pytest.raises(UserError, match=r"tensors are missing from .*: 1, such"):
            read(odd)


def test_a_training_that_goes_on_from_a_truncated_checkpoint_says_so(tmp_path: Path) -> None:
    model = load(TINY).model
    weights, optimizer = dict(model.named_parameters()), torch.optim.AdamW(model.parameters())
    save_checkpoint(tmp_path, 3, model, weights, optimizer, {"identity": {}})
    (checkpoint,) = tmp_path.glob("checkpoint-*")
    file = checkpoint / "trainer" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(
        UserError, match=rf"{file.name} is cut off(.|\n)*remove .*{checkpoint.name}"
    ):
        load_optimizer(checkpoint, weights, optimizer)


@contextmanager
def _no_file_above(size: int) -> Iterator[None]:
    """As on a disk that takes no larger files: writing fails with EFBIG."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def test_a_file_that_the_disk_does_not_take_is_an_error_of_the_disk(tmp_path: Path) -> None:
    model = load(TINY).model
    weights, optimizer = dict(model.named_parameters()), torch.optim.AdamW(model.parameters())
    pair = Pair(*((Row((1, 2, last), (Target(1, 3, "policy"),)),) for last in (3, 4)))
    own = TrainingSettings()
    for size, write in (
        (2**18, lambda: save_checkpoint(tmp_path, 1, model, weights, optimizer, {})),
        (2**18, lambda: save_weights(model, tmp_path / "final", {})),
        (64, lambda: with_reference(model, [pair], own, tmp_path, reduction="none")),
    ):
        with pytest.raises(OSError, match="File too large"), _no_file_above(size):
            write()
        assert not list(tmp_path.iterdir()), "no half of it is left"
