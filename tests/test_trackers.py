"""Trackers write where they should, without a network; those of packages not installed are skipped."""

import importlib.util
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from coterie.errors import UserError
from coterie.recipes import plan
from coterie.runs import folder as run_tracker
from coterie.training.settings import make_tracker
from coterie.training.trainer import train
from tests.conftest import SMALL, once
from tests.forking import FORKS
from tests.training_models import SETTINGS, some_rows, statuses, tiny_llama


def tracked(name, folder):
    settings = SETTINGS.model_copy(update={"epochs": 1})
    with closing(make_tracker(name, folder, "test", {"lr": 1.0})) as tracker:
        return train(tiny_llama(), some_rows(), settings, folder, tracker=tracker)


def test_tensorboard_gets_every_step(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    report = tracked("tensorboard", tmp_path)
    (folder,) = {
        path.parent for path in tmp_path.rglob("events.out.*") if path.parent.parent == tmp_path
    }
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, report.steps + 1))
    assert events.Scalars("loss")[0].value == pytest.approx(report.first_loss)


def test_wandb_writes_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    tracked("wandb", tmp_path)
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_swanlab_writes_offline(tmp_path, monkeypatch):
    pytest.importorskip("swanlab")
    monkeypatch.delenv("SWANLAB_MODE", raising=False)
    tracked("swanlab", tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and "swan" in str(path)]


def test_trackio_keeps_its_database_on_this_machine(tmp_path):
    if importlib.util.find_spec("trackio") is None:
        pytest.skip("trackio is not installed")
    code = (
        "from pathlib import Path; from tests.test_trackers import tracked; "
        f"tracked('trackio', Path({str(tmp_path / 'run')!r}))"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")},
        cwd=Path(__file__).parents[1],
        check=True,
    )
    (database,) = (tmp_path / "trackio").rglob("coterie*.db")
    with sqlite3.connect(database) as opened:
        (count,) = opened.execute("select count(*) from metrics").fetchone()
    assert count == 5


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb", "swanlab"])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match=rf"pip install -e '.\[{name}\]'"):
        make_tracker(name, tmp_path, "run", {})


def exit_with_count_of_trackers():
    sys.exit(len({"tensorboard", "trackio", "wandb", "swanlab"} & sys.modules.keys()))


def test_trackers_are_imported_only_when_chosen():
    process = FORKS.Process(target=exit_with_count_of_trackers)
    process.start()
    assert statuses([process]) == [0]


class Lines:
    """Stands in for a tracker: keeps what it is told."""

    opened: ClassVar[list["Lines"]] = []

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.closed = False
        self.opened.append(self)

    def log(self, metrics, step):
        self.lines.append((step, dict(metrics)))

    def close(self):
        self.closed = True


def test_a_run_has_one_tracker_on_the_axis_of_its_steps(cli, monkeypatch):
    """Also over a restart, after which the steps go on where they were."""
    monkeypatch.setattr(Lines, "opened", [])
    monkeypatch.setattr(run_tracker, "make_tracker", lambda *_: Lines())
    monkeypatch.setattr(plan, "check_tracker", lambda *_: None)
    words = (*SMALL, "train.batch_rows=4", "tracker=wandb")
    assert cli("run", "optima/isft", *words, "--folder", "run").code == 0
    (first,) = Lines.opened
    assert first.closed
    steps = [(step, found["policy/loss"]) for step, found in first.lines if "policy/loss" in found]
    assert [step for step, _ in steps] == [1, 2]
    assert [step for step, found in first.lines if "evaluate/score" in found] == [0, 2]
    assert cli("run", "optima/isft", *once(*words, "iterations=2"), "--folder", "run").code == 0
    second = Lines.opened[1]
    assert [step for step, found in second.lines if "policy/loss" in found] == [3, 4]
    assert [step for step, found in second.lines if "evaluate/score" in found] == [4]
