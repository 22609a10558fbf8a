"""What the first round of ``sweet_rl`` hands to training, for the critic and for the baselines.

No weights are trained here: what the recipe hands to ``train`` is looked at instead of what comes out of it.
"""

import pytest

from coterie.models.adapters import find_head
from coterie.progress import Silent
from coterie.runs.folder import Run
from coterie.training.losses import DPO, SFT, Classifier, Regression
from tests.sweet.known import SECRET, TRAIN, WORDS, Training, by_base, said, text, trained
from tests.test_sweet_offline import REFERENCE_CODE, RIGHT, WRONG, made


def test_the_critic_learns_a_success_over_a_failure_with_the_reference_shown(
    selected: Run, trainings: list[Training]
) -> None:
    words = ("critic.objective.beta=0.3", "critic.objective.nll=0.07", "critic.train.batch_rows=5")
    got = trained(trainings, selected, TRAIN, *words)
    assert isinstance(got.objective, DPO)
    asked = got.objective.settings
    assert (asked.beta, asked.nll, asked.normalise) == (0.3, 0.07, "turns")
    assert got.settings.batch_rows == 5
    assert len(got.items) == 2
    for pair in got.items:
        assert RIGHT in said(pair.chosen)[-1] and WRONG in said(pair.rejected)[-1]
        for one in (*pair.chosen, *pair.rejected):
            assert text(one.ids).count(REFERENCE_CODE) == 1
            assert not any("Reply" in words for words in said([one])), "the person's words"
        expected = [by_base(side, "turns") for side in (pair.chosen, pair.rejected)]
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


def test_multi_turn_dpo_trains_the_policy_on_whole_dialogues_as_it_saw_them(
    selected: Run, trainings: list[Training]
) -> None:
    words = ("multi_turn_dpo.objective.beta=0.3", "multi_turn_dpo.train.batch_rows=5")
    got = trained(trainings, selected, TRAIN, "method=multi_turn_dpo", *words)
    assert isinstance(got.objective, DPO)
    asked = got.objective.settings
    assert (asked.beta, asked.nll, asked.normalise) == (0.3, 0.01, "none")
    assert got.settings.batch_rows == 5
    for pair in got.items:
        assert RIGHT in said(pair.chosen)[-1] and len(said(pair.chosen)) > 1
        assert not any(SECRET in text(one.ids) for one in (*pair.chosen, *pair.rejected))
        expected = [by_base(side, "none") for side in (pair.chosen, pair.rejected)]
        assert pair.reference == pytest.approx(expected, abs=1e-3)


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
