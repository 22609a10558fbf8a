"""Which steps of Optima's recipes depend on which settings."""

import pytest

from coterie.recipes.optima.recipe import Optima
from coterie.recipes.registry import settings
from coterie.runs.folder import Step

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
        Optima(settings("optima/isft_dpo", [*words, *more])) for more in ([], [word, *source])
    )
    steps = [Step(i, stage) for i in (SFT, DPO) for stage in STAGES]
    changed = [step for step in steps if one.fingerprint(step) != other.fingerprint(step)]
    assert {(step.iteration, step.stage) for step in changed} == DEPENDS[word]
