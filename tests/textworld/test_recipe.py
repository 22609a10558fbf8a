"""``dense_tree`` on TextWorld: the packaged model, its trees, its script, and the gate of the experiment."""

import json
import random
from pathlib import Path

import pytest

from coterie.environments.settings import game_seeds
from coterie.progress import Silent
from coterie.recipes.registry import recipe, settings
from coterie.runs.loop import run_stages
from coterie.runs.run import StageKey, open_run
from experiments import dense_tree_textworld
from tests.conftest import Cli

SMALL = (
    "environment=textworld", "rollout.tasks=6", "search.rollouts_per_task=20", "budget.pairs=8", "evaluate.tasks=4",
    "train.batch_size=8", "engine.device=cpu",
)  # fmt: skip


def test_trees_of_the_packaged_model_hold_wins_and_failures_and_train_it(tmp_path: Path) -> None:
    own = recipe(settings("dense_tree/tiny", SMALL))
    with open_run(tmp_path / "run", own.name, own.settings) as run:
        run_stages(own, run, Silent())
        scores = [
            [outcome.score for outcome in tree.outcomes.values()]
            for tree in run.store.trees(0, "rollout")
        ]
        assert len(scores) == 6
        assert any(
            1 in some and any(one is not None and one < 1 for one in some) for some in scores
        )
        wins = sum(some.count(1) for some in scores)
        assert run.metrics(StageKey(0, "reward"))["successes"] == wins, "a part of a quest is none"
        assert run.metrics(StageKey(0, "train"))["tree_pairs"] == 8


def test_the_script_wins_by_the_solution_and_its_habit_is_to_examine_first(tmp_path: Path) -> None:
    from coterie.environments.games.textworld_worker import start
    from scripts.tiny.textworld import GAMES, Stage, play

    def actions(habit: float) -> list[str]:
        game = start(
            str(tmp_path / "game.json"),
            seed=game_seeds("textworld", "corpus", 0)[:1][0],
            **GAMES.size,
        )
        return [one.action for one in play(game, Stage(habit, 0.0), random.Random(0))]

    right, habitual = actions(0.0), actions(1.0)
    assert len(right) == 3 and not any(one.startswith("examine ") for one in right)
    assert [one for one in habitual if not one.startswith("examine ")] == right
    things = [one.removeprefix("examine ") for one in habitual if one not in right]
    assert len(things) == len(set(things)) > 0


def test_the_gate_measures_wins_and_the_trees_that_hold_both(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_tree_textworld, "GATE_TREES", 8)
    gate = cli(
        "reproduce", "dense_tree-textworld", "--gate", "evaluate.tasks=16", "engine.device=cpu"
    )
    values = json.loads(gate.out.splitlines()[-1])
    assert values["trees_with_both"] >= 0.25 and 0 < values["wins_of_paths"] < 1, values
    assert 0.1 < values["base"] < 0.9, values
