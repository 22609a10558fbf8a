"""Trackers get every step and metric of a run."""

import sys
from contextlib import closing
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import MagicMock

import pytest

from coterie.recipes import plan
from coterie.runs import run as run_tracker
from coterie.training.settings import make_tracker
from coterie.training.trainer import train
from tests.conftest import SMALL, once
from tests.helpers.training_models import SETTINGS, make_rows, tiny_llama


def test_tensorboard_gets_every_step(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = SETTINGS.model_copy(update={"epochs": 1})
    with closing(make_tracker("tensorboard", tmp_path, "test", {"lr": 1.0})) as tracker:
        report = train(tiny_llama(), make_rows(), settings, tmp_path, tracker=tracker)
    (folder,) = {path.parent for path in tmp_path.glob("*/events.out.*")}
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, report.steps + 1))
    assert events.Scalars("loss")[0].value == pytest.approx(report.first_loss)


@pytest.mark.parametrize(("name", "folder"), [("wandb", "dir"), ("swanlab", "log_dir")])
def test_hosted_trackers_are_offline_unless_told_otherwise(name, folder, tmp_path, monkeypatch):
    """An experiment made again in its folder keeps its id."""
    started = []

    def init(**settings):
        started.append((settings["mode"], settings[folder], settings["id"]))
        return MagicMock()

    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(init=init))
    monkeypatch.delenv(f"{name.upper()}_MODE", raising=False)
    make_tracker(name, tmp_path, "run", {})
    monkeypatch.setenv(f"{name.upper()}_MODE", "online")
    make_tracker(name, tmp_path, "run", {})
    make_tracker(name, tmp_path / "second", "run", {})
    modes, folders, (first, again, second) = zip(*started, strict=True)
    assert modes == ("offline", "online", "online") and folders[0] == str(tmp_path)
    assert first == again != second


class Lines:
    """A tracker that keeps its metrics."""

    opened: ClassVar[list["Lines"]] = []

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.closed = False
        self.opened.append(self)

    def log(self, metrics, step):
        self.lines.append((step, dict(metrics)))

    def close(self):
        self.closed = True

    def steps(self, name):
        return [step for step, metrics in self.lines if name in metrics]


def test_a_run_has_one_tracker_on_the_axis_of_its_steps(cli, monkeypatch):
    """Also over a restart, after which the steps go on where they were."""
    monkeypatch.setattr(Lines, "opened", [])
    monkeypatch.setattr(run_tracker, "make_tracker", lambda *_: Lines())
    monkeypatch.setattr(plan, "check_tracker", lambda *_: None)
    overrides = (*SMALL, "train.batch_size=4", "tracker=wandb")
    assert cli("run", "optima/isft", *overrides, "--folder", "run").code == 0
    (first,) = Lines.opened
    assert first.closed
    assert first.steps("policy/loss") == [1, 2] and first.steps("evaluate/score") == [0, 2]
    assert cli("run", "optima/isft", *once(*overrides, "iterations=2"), "--folder", "run").code == 0
    second = Lines.opened[1]
    assert second.steps("policy/loss") == [3, 4] and second.steps("evaluate/score") == [4]
