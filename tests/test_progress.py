"""Estimates of the remaining time: none before there is evidence, then of the whole run."""

from pathlib import Path

import pytest
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from coterie.progress import Pace, Silent, StagePlace, duration
from coterie.recipes.registry import recipe, settings
from coterie.runs.loop import run_stages
from coterie.runs.run import StageKey, open_run
from coterie.terminal import ConsoleProgress, notes, results
from tests.conftest import FEW


def test_the_time_left_of_work_that_starts_at_once_and_ends_late() -> None:
    pace, estimates = Pace(4000, began=0.0), list[tuple[float, float]]()
    pace.add(2, now=14.0)
    assert pace.left(15.0) is None, "two of 4,000 are no evidence"
    for second in range(14, 70):
        pace.add(3998 // 56, now=float(second))
        if (left := pace.left(second)) is not None:
            estimates.append((left, 70 - second))
    assert len(estimates) > 40
    assert all(0.7 * real - 2 < left < 1.5 * real + 2 for left, real in estimates), estimates


def test_earlier_sessions_and_a_slow_first_step_do_not_count() -> None:
    pace = Pace(100, began=0.0)
    pace.add(50, now=0.0)
    assert pace.left(1.0) is None
    for step in range(1, 6):
        pace.add(1, now=2.0 * step)
    assert pace.left(10.0) == pytest.approx(90.0)
    pace = Pace(20, began=0.0)
    for now in (60.0, 70.0, 80.0):
        pace.add(1, now)
    assert pace.left(80.0, evidence=0.0) == pytest.approx(170.0)
    assert [duration(s) for s in (0.4, 59, 600, 12000)] == ["0 s", "59 s", "10 min", "3 h 20 min"]


def test_the_time_of_the_run_is_shown_once_all_kinds_of_stages_are_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def lines(place: StagePlace) -> str:
        progress = ConsoleProgress(Console(width=200, soft_wrap=True))
        progress.stage(place)
        progress.start(2, f"rollout {place.iteration}")
        progress.advance(2)
        return capsys.readouterr().out

    first = lines(StagePlace(0, 1, 4))
    assert "iteration 0 (1 of 4): rollout" in first and "run:" not in first
    assert "run: 80 s left" in lines(StagePlace(1, 2, 4, seconds=9.0, later=80.0, again=2))
    assert lines(StagePlace(4, None, 4, 1.0, 0.0)).startswith("last policy: rollout")


def test_places_have_times_of_finished_stages_of_the_same_kind(tmp_path: Path) -> None:
    own = recipe(settings("optima/isft", [w for w in FEW if "iter" not in w] + ["iterations=2"]))
    places: list[StagePlace] = []

    class Watch(Silent):
        def stage(self, place: StagePlace) -> None:
            places.append(place)

    with open_run(tmp_path / "run", own.name, own.settings) as run:
        run_stages(own, run, Watch())
        trained = run.metrics(StageKey(0, "train"))["seconds"]
    names = [f"{step.stage}{step.iteration}" for step in own.stage_keys()]
    by_stage = dict(zip(names, places, strict=True))
    assert by_stage["rollout0"].later is None, "trainings are unknown"
    first = by_stage["train0"]
    assert first.seconds is None and first.again == 1 and first.later is not None
    assert by_stage["train1"].seconds == trained and by_stage["train1"].again == 0
    assert by_stage["evaluate2"].number is None and by_stage["evaluate2"].later == 0


def test_no_text_sends_commands_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = "a\x1b[2J\x1b]0;owned\x07\x9b31m\x08b"
    for console in (results(), notes()):
        console.print(text)
        console.print(Text(text, "bold"), Padding(Text(text), 1))
        ConsoleProgress(console).say(text)
    output = "".join(capsys.readouterr()).replace("\n", "")
    assert output.count("a\ufffd[2J") == 8 and output.isprintable()
