"""Time that a run saves by sampling while steps train, with artificial latencies."""

import time
from pathlib import Path
from typing import Any

import pytest

from coterie.record.store import Store
from coterie.runs.loop import REINFORCE
from coterie.runs.run import StageKey
from coterie.training.trainer import Trainer
from tests.helpers.run_rl import informative_overrides, make_recipe, run_to_end
from tests.helpers.separate_engines import SpellingEngine, use_separate_engines

pytestmark = pytest.mark.cluster
STEPS = 6
TRAINING = 2.4
"""Seconds of a step, and about the seconds of a draw."""


def seconds(folder: Path, staleness: int) -> float:
    """Return the seconds of the stage that samples and trains."""
    folder.mkdir()
    overrides = [
        *informative_overrides(folder),
        "engine.kind=vllm",
        "loss.kl_coef=0",
        "evaluate.tasks=1",
    ]
    overrides += [
        f"steps.count={STEPS}",
        f"rollout.max_staleness={staleness}",
        "steps.save_every=99",
    ]
    records = run_to_end(make_recipe("rl/grpo", overrides), folder / "run").values()
    assert not sum(int(record["paths_stale"]) for record in records)
    with Store.open(folder / "run/store.sqlite", read_only=True) as store:
        return float(store.metrics(0, REINFORCE)[StageKey(0, REINFORCE).finished_key]["seconds"])


def test_sampling_while_steps_train_saves_a_third_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_separate_engines([], monkeypatch.setattr)
    monkeypatch.setattr(SpellingEngine, "latency", 0.2)
    step = Trainer.step

    def slow_step(*args: Any) -> dict[str, float]:
        time.sleep(TRAINING)
        return step(*args)

    monkeypatch.setattr(Trainer, "step", slow_step)
    in_turns, at_once = (seconds(tmp_path / f"{k}", staleness=k) for k in (0, 1))
    assert at_once < 0.7 * in_turns, f"{at_once:.1f} s instead of {in_turns:.1f} s"
