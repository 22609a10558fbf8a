"""Which steps of Optima's recipes depend on which settings, and the control that nothing was selected for."""

from typing import cast

import pytest

from coterie.models.loading import load
from coterie.recipes.optima.controls import ScriptedControl
from coterie.recipes.optima.methods import optima
from coterie.recipes.optima.settings import OptimaSettings
from coterie.recipes.registry import settings
from coterie.runs.folder import Run, Step

STAGES = ("evaluate", "rollout", "reward", "select", "train")

SFT, DPO = 0, 1
DEPENDS = {
    "rollout.temperature=0.5": {(SFT, "rollout")},
    "rollout.samples=3": {(SFT, "rollout")},
    "rollout.max_tokens=90": {(SFT, "evaluate"), (SFT, "rollout"), (DPO, "evaluate"), (DPO, "rollout")},
    "rollout.top_p=0.9": {(SFT, "rollout"), (DPO, "rollout")},
    "reward.lambda_token=0.1": {(SFT, "reward")},
    "select.threshold=0.1": {(SFT, "select")},
    "train.learning_rate=1e-5": {(SFT, "train")},
    "from_initial=true": {(SFT, "train")},
    "dpo.temperature=0.5": {(DPO, "rollout")},
    "dpo.percentile=50": {(DPO, "rollout")},
    "dpo.probe=7": {(DPO, "rollout")},
    "dpo.search.rollouts=2": {(DPO, "rollout")},
    "dpo.reward.lambda_loss=0.1": {(DPO, "rollout"), (DPO, "reward")},
    "dpo.select.theta_diff=0.1": {(DPO, "select")},
    "dpo.objective.beta=0.7": {(DPO, "train")},
    "dpo.train.learning_rate=1e-5": {(DPO, "train")},
    "evaluate.tasks=7": {(SFT, "evaluate"), (DPO, "evaluate")},
    "dataset=gsm8k": {(i, stage) for i in (SFT, DPO) for stage in STAGES},
    "seed=5": {(i, stage) for i in (SFT, DPO) for stage in STAGES},
}  # fmt: skip
"""The steps whose own results another value changes; those that read them follow."""


@pytest.mark.parametrize("word", DEPENDS)
def test_a_setting_is_a_part_of_the_steps_that_it_changes(word: str) -> None:
    words = ["iterations=2"]
    source = ["dataset.source=sample"] * word.startswith("dataset")
    one, other = (
        optima(settings("optima/isft_dpo", [*words, *more])) for more in ([], [word, *source])
    )
    steps = [Step(i, stage) for i in (SFT, DPO) for stage in STAGES]
    changed = [step for step in steps if one.fingerprint(step) != other.fingerprint(step)]
    assert {(step.iteration, step.stage) for step in changed} == DEPENDS[word]


def test_the_scripted_control_trains_on_fresh_dialogues_of_both_agents_in_each_iteration() -> None:
    base = load("tiny-exchange")
    told = []
    for seed in (0, 1):
        own = cast(OptimaSettings, settings("optima/isft", ["iterations=2", f"seed={seed}"]))
        control = ScriptedControl(own, [3, 5])
        nothing = cast(Run, None)
        for iteration, count in enumerate((3, 5)):
            rows = control.rows(nothing, iteration, base)
            assert len(rows) == 2 * count and all(row.targets for row in rows)
            told.append({base.tokenizer.decode(row.ids) for row in rows})
    for place, some in enumerate(told):
        assert not any(some & others for others in told[:place]), "none comes again"
