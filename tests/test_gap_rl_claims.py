"""``coterie reproduce gap``: its controls get what reinforcement learning got, and its gate measures what it says."""

from collections import Counter
from pathlib import Path

import pytest

from coterie.errors import UserError
from coterie.progress import Silent
from coterie.recipes.gap.claims import recipe_for
from coterie.recipes.gap.controls import RejectionFineTuning
from coterie.recipes.gap.rl_claims import (
    CONTROLS,
    DAPO,
    EPOCHS,
    GRPO,
    PPO,
    WORDS,
    Learnt,
    _control,
    reproduce,
)
from coterie.recipes.gap.rl_gate import gate
from coterie.runs.folder import Step, open_run
from coterie.runs.loop import run_steps
from coterie.runs.selected import selected

FEW = [
    "traces.tasks=24", "evaluate.tasks=8", "train.epochs=1", "train.batch_rows=8", "rollout.max_tokens=96",
    "rl.rollout.tasks=4", "rl.rollout.draw=4", "rl.rollout.samples=4", "rl.steps.count=2",
]  # fmt: skip


def test_rejection_fine_tuning_learns_each_right_path_once(tmp_path: Path) -> None:
    words = [*FEW, "traces.tasks=3", "rl.rollout.samples=6", "rl.rollout.temperature=0.3"]
    recipe = RejectionFineTuning(recipe_for(words).settings)
    _, rollout, select, *_ = recipe.steps()
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent(), [rollout, select])
        said, right = Counter[tuple[str, str]](), set[tuple[str, str]]()
        for tree in run.store.trees(0, "rollout"):
            for outcome, path in tree.trajectories():
                one = (tree.task, "".join(turn.text for turn in path if turn.sample))
                said[one] += 1
                if outcome.score:
                    right.add(one)
        chosen = [
            (tree.task, "".join(turn.text for turn in tree.path(one.leaf) if turn.sample))
            for tree, one in selected(run, 0)
        ]
        assert said.total() == 18 and max(said.values()) > 1, "some paths say the same"
        assert sorted(chosen) == sorted(right)
    recipe.close()


def test_controls_have_the_questions_and_the_tokens_of_reinforcement_learning() -> None:
    learnt = Learnt(questions=96, tokens=12_345)
    for method in CONTROLS:
        own = _control(method, FEW, learnt).settings
        assert own.train.target_tokens == 12_345
        assert own.traces.tasks == (24 if method == EPOCHS else 96)
        assert own.method == "sft"


def test_reinforcement_learning_differs_from_dapo_as_the_methods_say() -> None:
    dapo, grpo, ppo = (recipe_for(WORDS[method]).settings.rl for method in (DAPO, GRPO, PPO))
    assert dapo.rollout.rounds > 1 == grpo.rollout.rounds == ppo.rollout.rounds
    assert dapo.loss.clip_high > dapo.loss.clip_low == grpo.loss.clip_high == ppo.loss.clip_high
    assert dapo.loss.kl == 0 < grpo.loss.kl == ppo.loss.kl
    assert (ppo.advantage.baseline, ppo.rollout.samples) == ("values", 1)
    paths = [one.rollout.tasks * one.rollout.samples for one in (dapo, grpo, ppo)]
    assert len(set(paths)) == 1, "all have as many paths a step"


def test_what_no_method_can_learn_by_is_refused_before_the_fine_tuning(tmp_path: Path) -> None:
    words = [*FEW, "rl.steps.minibatches=5"]
    with pytest.raises(UserError, match=r"rl\.steps\.minibatches=5 is more than"):
        gate(tmp_path / "gate", words, Silent())
    with pytest.raises(UserError, match=r"rl\.steps\.minibatches=5 is more than"):
        reproduce(tmp_path / "claims", [0], words, print, Silent())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_claims_are_tested_and_the_gate_is_measured(tmp_path: Path) -> None:
    """On so few questions they may fail; what is measured is there, and a second call only reads it."""
    values = gate(tmp_path / "gate", FEW, Silent()).values
    assert values["gain"] == values["pass_8"] - values["pass_1"] >= 0

    def test() -> object:
        found = reproduce(tmp_path / "claims", [0], FEW, print, Silent())
        return found.claims, found.found.rows

    claims, rows = test()
    ids = ["dapo_over_sft", "dapo_over_more_sft", "dapo_over_more_epochs", "dapo_over_rejection"]
    assert [one.id for one in claims] == [*ids, "grpo_over_sft", "ppo_over_sft"]
    assert [one.must for one in claims] == [True, True, False, False, False, False]
    assert [one.method for one in rows] == ["base", "SFT", DAPO, GRPO, PPO, *CONTROLS]
    with open_run(
        tmp_path / "claims/seed-0/dapo", "gap/tiny", recipe_for(FEW).settings, write=False
    ) as run:
        tokens = int(run.metrics(Step(0, "reinforce"))["trained_tokens"])
        trained = {tree.task for n in (0, 1) for tree in run.store.trees(0, f"reinforce/{n:05d}")}
    for name in ("more_SFT", "rejection_fine-tuning"):
        with open_run(
            tmp_path / f"claims/seed-0/{name}", "gap/tiny", recipe_for(FEW).settings, write=False
        ) as run:
            control = int(run.metrics(Step(0, "train"))["trained_tokens"])
            assert {tree.task for tree in run.store.trees(0, "rollout")} >= trained
        assert abs(control - tokens) < 500
    assert test() == (claims, rows)
