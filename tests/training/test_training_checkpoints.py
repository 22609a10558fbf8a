"""Checkpoints of a training: unfinished, several, damaged, of another training; final weights."""

import contextlib
import json
import math
import shutil

import pytest

from coterie.config import folders
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.record.rows import trained_rows
from coterie.training import checkpoint
from coterie.training.checkpoint import weight_hash
from coterie.training.losses import DPO, SFT
from coterie.training.trainer import Trainer, train
from tests.helpers.training_models import SETTINGS, make_rows, referenced_pairs, tiny_llama
from tests.training.test_training import metrics_of, with_


class Stop(Exception):
    pass


class StopAt(Silent):
    """Progress that raises after some steps."""

    def __init__(self, steps):
        self.left = steps

    def advance(self, n, **fields):
        self.left -= n
        if self.left <= 0:
            raise Stop


@pytest.mark.parametrize(("module", "broken"), [(checkpoint, "save_file"), (folders, "flush")])
def test_a_checkpoint_that_was_not_finished_leaves_the_old_one(
    tmp_path, monkeypatch, module, broken
):
    settings = with_(save_every_steps=1)

    def killed(*_):
        raise Stop

    with pytest.raises(Stop):
        train(tiny_llama(), make_rows(), settings, tmp_path, progress=StopAt(4))
    with monkeypatch.context() as patch:
        patch.setattr(module, broken, killed)
        with pytest.raises(Stop):
            train(tiny_llama(), make_rows(), settings, tmp_path)
    assert checkpoint.newest_checkpoint(tmp_path).name == "checkpoint-00000004"
    report = train(tiny_llama(), make_rows(), SETTINGS, tmp_path)
    whole = train(tiny_llama(), make_rows(), SETTINGS, tmp_path / "whole")
    assert weight_hash(report.final) == weight_hash(whole.final)
    assert [line["step"] for line in metrics_of(tmp_path)] == list(range(1, 11)), "each step once"


@pytest.mark.parametrize(("objective", "make"), [(SFT(), make_rows), (DPO(), referenced_pairs)])
def test_the_facts_of_every_step_are_kept_if_the_process_is_killed_right_after_a_checkpoint(
    tmp_path, objective, make
):
    kept: dict[str, dict[int, list]] = {"killed": {}, "whole": {}}
    items = make()

    def run(name: str, last: int) -> None:
        def keep(number, step, facts):
            if number == last:  # its checkpoint is written
                raise Stop
            kept[name][number] = trained_rows(step, facts, arrays=True)

        train(
            tiny_llama(),
            items,
            with_(save_every_steps=1),
            tmp_path / name,
            objective=objective,
            keep=keep,
        )

    run("whole", 0)
    for last in (2, 3):
        with pytest.raises(Stop):
            run("killed", last)
    run("killed", 0)
    assert kept["killed"] == kept["whole"]
    lines = metrics_of(tmp_path / "whole")
    assert [*kept["whole"]] == [line["step"] for line in lines]
    for line, rows in zip(lines, kept["whole"].values(), strict=True):
        trained = [row for row in rows if row.side != "rejected"]
        counts = [row.weight * (1 if row.side else row.tokens) for row in trained]
        terms = [row.metrics["loss"] * count for row, count in zip(trained, counts, strict=True)]
        assert sum(terms) / sum(counts) == pytest.approx(line["loss"], abs=1e-5)
        for chosen in (row for row in rows if row.side == "chosen"):
            (rejected,) = (r for r in rows if (r.pair, r.side) == (chosen.pair, "rejected"))
            ratios = [r.metrics["logprob"] - r.metrics["reference"] for r in (chosen, rejected)]
            margin = chosen.metrics["margin"]
            assert margin == pytest.approx(0.1 * (ratios[0] - ratios[1]), abs=1e-4)
            assert chosen.metrics["loss"] == pytest.approx(math.log1p(math.exp(-margin)), abs=1e-5)


def test_the_newest_of_several_checkpoints_is_gone_on_with(tmp_path):
    """A kill between writing a checkpoint and removing older ones leaves several."""
    settings, folder = with_(save_every_steps=1), tmp_path / "run"
    for steps in (3, 5):
        with pytest.raises(Stop):
            train(tiny_llama(), make_rows(), settings, folder, progress=StopAt(steps))
        newest = folder / f"checkpoint-0000000{steps}"
        shutil.copytree(newest, tmp_path / newest.name)
    shutil.copytree(tmp_path / "checkpoint-00000003", folder / "checkpoint-00000003")
    with Trainer(tiny_llama(), SFT(), settings, folder, steps=10) as trainer:
        assert trainer.done == 5


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        ("final/training.json", {"report": {}}, "it has no 'rows'"),
        ("training.json", {"counts": {}}, "it has no 'rows'"),
    ],
)
def test_a_damaged_record_is_refused_with_what_to_do(tmp_path, file, damage, reason):
    done = file.startswith("final")
    with contextlib.nullcontext() if done else pytest.raises(Stop):
        progress = StopAt(100 if done else 2)
        train(tiny_llama(), make_rows(), with_(save_every_steps=1), tmp_path, progress=progress)
    where = (tmp_path if done else checkpoint.newest_checkpoint(tmp_path)) / file
    where.write_text(json.dumps({**json.loads(where.read_text()), **damage}))
    with pytest.raises(UserError, match=f"cut off or damaged: {reason}") as refusal:
        train(tiny_llama(), make_rows(), SETTINGS, tmp_path)
    assert "the training then starts again" in refusal.value.todo


def test_another_training_in_the_folder_is_refused_and_can_be_replaced(tmp_path):
    train(tiny_llama(), make_rows(), SETTINGS, tmp_path)
    for model, rows, settings, name in (
        (tiny_llama(1), make_rows(), SETTINGS, "starting weights"),
        (tiny_llama(), make_rows(seed=1), SETTINGS, "rows"),
        (tiny_llama(), make_rows(), with_(learning_rate=1e-3), "settings"),
    ):
        with pytest.raises(UserError, match=f"differs in its {name}"):
            train(model, rows, settings, tmp_path)
    assert train(tiny_llama(), make_rows(), with_(epochs=1), tmp_path, resume=False).steps == 5


def test_final_weights_have_the_models_hash_and_its_tokenizer_files(tmp_path):
    source = tmp_path / "source"
    tiny_llama().save_pretrained(source)
    (source / "tokenizer.json").write_text('{"as": "it is"}')
    model = type(tiny_llama()).from_pretrained(source)
    start = weight_hash(model)
    assert start == weight_hash(source)
    report = train(model, make_rows(), SETTINGS, tmp_path / "run")
    assert weight_hash(model) == weight_hash(report.final) != start
    assert (report.final / "tokenizer.json").read_text() == '{"as": "it is"}'
    assert (report.final / "config.json").exists()
    again = train(tiny_llama(), make_rows(), SETTINGS, tmp_path / "run", progress=StopAt(0))
    assert again == report, "a finished training is not repeated"


@pytest.mark.parametrize(("seconds", "saved"), [(1e-9, 1), (1e9, 0), (None, 0)])
def test_a_checkpoint_is_due_after_some_time(tmp_path, seconds, saved):
    settings = with_(save_every_seconds=seconds)
    with Trainer(tiny_llama(), SFT(), settings, tmp_path, steps=3) as trainer:
        trainer.step(make_rows(8))
        assert len(list(tmp_path.glob("checkpoint-*"))) == saved
