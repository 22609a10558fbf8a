"""The steps of ``sweet_rl``, and what its first round hands to training, for the critic and for the baselines.

No weights are trained here: what the recipe hands to ``train`` is looked at instead of what comes out of it.
"""

import pytest

from coterie.engines.protocol import POLICY
from coterie.environments.coding import CRITIC
from coterie.models.adapters import find_head
from coterie.progress import Silent
from coterie.recipes.sweet_rl import SweetRL
from coterie.runs.folder import Run, Step
from coterie.training.losses import DPO, SFT, Classifier, Regression
from tests.sweet.known import (
    BRANCH,
    REWARD,
    SECRET,
    SELECT_TURNS,
    TRAIN,
    WORDS,
    Training,
    by_base,
    said,
    text,
    trained,
)
from tests.test_sweet_offline import REFERENCE_CODE, RIGHT, WRONG, made


@pytest.mark.parametrize(
    ("group", "nll", "normalise", "references"),
    [("critic", 0.07, "turns", 1), ("multi_turn_dpo", 0.01, "none", 0)],
)
def test_pairs_of_whole_dialogues_train_the_critic_with_the_reference_shown_or_the_policy_without(
    selected: Run,
    trainings: list[Training],
    group: str,
    nll: float,
    normalise: str,
    references: int,
) -> None:
    words = (
        f"{group}.objective.beta=0.3",
        f"{group}.train.batch_rows=5",
        f"{group}.objective.nll={nll}",
    )
    method = "sweet" if group == "critic" else group
    got = trained(trainings, selected, TRAIN, f"method={method}", *words)
    assert isinstance(got.objective, DPO)
    asked = got.objective.settings
    assert (asked.beta, asked.nll, asked.normalise) == (0.3, nll, normalise)
    assert got.settings.batch_rows == 5
    assert len(got.items) == 2
    for pair in got.items:
        assert RIGHT in said(pair.chosen)[-1] and WRONG in said(pair.rejected)[-1]
        assert len(said(pair.chosen)) > 1
        for one in (*pair.chosen, *pair.rejected):
            assert text(one.ids).count(REFERENCE_CODE) == references
            assert not any("Reply" in words for words in said([one])), "the person's words"
        expected = [by_base(side, normalise) for side in (pair.chosen, pair.rejected)]
        assert pair.reference == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("privileged", [True, False])
def test_a_value_function_is_told_which_dialogues_succeeded(
    selected: Run, trainings: list[Training], privileged: bool
) -> None:
    word = f"critic.privileged={str(privileged).lower()}"
    got = trained(trainings, selected, TRAIN, "critic.kind=classifier", word)
    assert isinstance(got.objective, Classifier) and find_head(got.model) is not None
    assert len(got.items) == 6
    for item in got.items:
        assert item.success == (RIGHT in said(item.rows)[-1])
        assert all((SECRET in text(one.ids)) == privileged for one in item.rows)


def test_a_reward_model_is_trained_on_the_critics_pairs(
    selected: Run, trainings: list[Training]
) -> None:
    got = trained(trainings, selected, TRAIN, "critic.kind=regression")
    assert isinstance(got.objective, Regression) and find_head(got.model) is not None
    assert [SECRET in text(pair.chosen[0].ids) for pair in got.items] == [True, True]
    assert all(RIGHT in said(pair.chosen)[-1] for pair in got.items)


@pytest.mark.parametrize(("least", "count"), [(1.0, 2), (0.5, 3), (0.1, 6)])
def test_rejection_ft_imitates_what_succeeded(
    played_only: Run, trainings: list[Training], least: float, count: int
) -> None:
    words = ("method=rejection_ft", f"min_reward={least}", "rejection_ft.train.batch_rows=5")
    assert made(*WORDS, *words).select(played_only, 0, Silent())["selected"] == count
    got = trained(trainings, played_only, TRAIN, *words)
    assert isinstance(got.objective, SFT) and got.settings.batch_rows == 5
    assert len(got.items) == count + 1  # thoughts leave the history, and so begin a row
    assert sum(RIGHT in said([one])[-1] for one in got.items) == 2
    assert not any(SECRET in text(one.ids) for one in got.items)


STEPS = {
    "method=sweet": [
        (0, "evaluate"), (0, "rollout"), (0, "select"), (0, "train"), (1, "rollout"), (1, "reward"), (1, "select"),
        (1, "train"), (2, "evaluate"),
    ],
    "critic.kind=judge": [
        (0, "evaluate"), (0, "rollout"), (1, "rollout"), (1, "reward"), (1, "select"), (1, "train"), (2, "evaluate"),
    ],
    "method=rejection_ft": [(0, "evaluate"), (0, "rollout"), (0, "select"), (0, "train"), (1, "evaluate")],
    "method=multi_turn_dpo": [(0, "evaluate"), (0, "rollout"), (0, "select"), (0, "train"), (1, "evaluate")],
}  # fmt: skip


@pytest.mark.parametrize("word", STEPS)
def test_the_steps_of_a_method(word: str) -> None:
    recipe = made(word)
    assert recipe.steps() == [Step(*one) for one in STEPS[word]]
    judged = word == "critic.kind=judge"
    if recipe.settings.method == "sweet":
        assert recipe.at(REWARD).after == ((BRANCH,) if judged else (BRANCH, TRAIN))
        assert recipe.at(BRANCH).after == (Step(0, "rollout"),)
        assert recipe.at(Step(1, "train")).after == (SELECT_TURNS,)
        assert recipe.at(Step(1, "train")).trains == (POLICY,)
        assert judged or recipe.at(TRAIN).trains == (CRITIC,)
    assert recipe.stages()[-1].after == (recipe.steps()[-2],)


def test_a_critic_is_no_policy(played_only: Run, own: SweetRL) -> None:
    played_only.begin(TRAIN, own.fingerprint(TRAIN))
    played_only.finish(TRAIN, own.fingerprint(TRAIN), {"rows": 2})
    assert own.versions(played_only) == [0]
    assert made("method=multi_turn_dpo").versions(played_only) == [0, 1]
