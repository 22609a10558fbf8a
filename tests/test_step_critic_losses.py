"""Losses of the step critic and of what it is compared with, against numbers worked out by hand.

Log-probs are given, not computed: policy and reference of two trajectories of two own turns each.
"""

import math

import pytest
import torch

from coterie.record.rows import Pair, Row, Target
from coterie.training.losses import DPO, DPOSettings, side_statistic
from coterie.training.reference import row_logprobs
from tests.training_models import tiny_llama


def row(ids: list[int], *turns: tuple[int, int]) -> Row:
    return Row(tuple(ids), tuple(Target(*turn, "agent@0") for turn in turns))


BETTER = row([7, 1, 2, 8, 3], (1, 3), (4, 5))
WORSE = row([7, 4, 5, 6, 8, 9, 1], (1, 4), (5, 6))
CHOSEN, CHOSEN_REFERENCE = (-1.0, -3.0, -0.5), (-2.0, -3.0, -1.0)
REJECTED, REJECTED_REFERENCE = (-2.0, -2.0, -5.0, -1.0), (-1.0, -1.0, -4.0, -1.5)
BY_HAND = {
    # reduction: (chosen, rejected, their references, margin)
    "none": (-4.5, -10.0, -6.0, -7.5, 1.5 + 2.5),
    "tokens": (-1.5, -2.5, -2.0, -1.875, 0.5 + 0.625),
    "turns": (-2.0 - 0.5, -3.0 - 1.0, -2.5 - 1.0, -2.0 - 1.5, 1.0 + 0.5),
}


@pytest.mark.parametrize("normalise", BY_HAND)
def test_the_bradley_terry_loss_is_that_of_the_margin(normalise):
    *expected, margin = BY_HAND[normalise]
    sides = ((BETTER, CHOSEN), (WORSE, REJECTED))
    sides += ((BETTER, CHOSEN_REFERENCE), (WORSE, REJECTED_REFERENCE))
    sums = [float(side_statistic([r], [torch.tensor(v)], normalise)) for r, v in sides]
    assert sums == pytest.approx(expected)
    pair = Pair((BETTER,), (WORSE,), tuple(expected[2:]), weight=2.0)
    objective = DPO(DPOSettings(beta=0.1, normalise=normalise))
    losses = objective.losses([pair], [[torch.tensor(CHOSEN), torch.tensor(REJECTED)]])
    assert losses.tolist() == pytest.approx([2.0 * math.log1p(math.exp(-0.1 * margin))])
    assert objective.count(pair) == 2.0


def test_a_target_at_the_first_token_has_no_logprob_and_counts_in_no_length():
    begins = row([1, 2, 3, 8, 4], (0, 3), (4, 5))
    assert begins.predicted == [range(1, 3), range(4, 5)]
    assert len(row_logprobs(tiny_llama(), [begins])[0]) == 3
    assert float(side_statistic([begins], [torch.tensor(CHOSEN)], "turns")) == -2.5
    mute = row([5, 6, 7], (0, 1))
    objective = DPO(DPOSettings(normalise="turns"))
    assert objective.count(Pair((mute,), (WORSE,), (0.0, 0.0))) == 0.0
    both = (mute, BETTER)
    values = [torch.zeros(0), torch.tensor(CHOSEN)]
    assert float(side_statistic(both, values, "turns")) == -2.5
