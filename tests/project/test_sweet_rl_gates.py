"""The gates of SWEET-RL: enumerated values against simulated ones, and the order of first turns."""

import random
from itertools import pairwise

import pytest

from coterie.environments.persona import ASPECTS, QUESTIONS, THEMES, WISHES, Persona, aspect_sets
from experiments.sweet_rl import CRITIC, ON_REFERENCE, gate_of
from experiments.sweet_rl_gates import (
    ACTIONS,
    ANSWER,
    WASTED,
    Rates,
    action_of,
    first_advantages,
    mean_rank,
    reference_share,
    table_asker,
    theme_of,
)

RATES = Rates(0.1, 0.04)


def simulated(first: str, present: frozenset[str], rng: random.Random) -> bool:
    """Return if an agent with these rates knows all wishes after its first turn and the next ones."""
    action, unasked = first, [*ASPECTS]
    for _ in range(QUESTIONS):
        if action == ANSWER:
            return False
        if action in unasked:
            unasked.remove(action)
        if present.isdisjoint(unasked):
            return True
        action = rng.choices((WASTED, ANSWER, rng.choice(unasked)), (*RATES, 1 - sum(RATES)))[0]
    return False


def test_the_enumerated_advantages_are_those_of_simulated_dialogues() -> None:
    rng, (theme, by_set) = random.Random(0), next(iter(first_advantages(RATES).items()))
    present = next(iter(by_set))
    values = {
        action: sum(simulated(action, present, rng) for _ in range(6000)) / 6000
        for action in ACTIONS
    }
    for action in ACTIONS:
        expected = by_set[present][action] - by_set[present][ANSWER]
        assert values[action] == pytest.approx(expected, abs=0.02), (theme, action)


@pytest.mark.parametrize("rates", [RATES, Rates(0.3, 0.02), Rates(0.02, 0.2)])
def test_ranks_are_the_order_of_the_mean_advantages(rates: Rates) -> None:
    for theme, by_set in first_advantages(rates).items():
        probabilities = aspect_sets(theme)
        means = {
            action: sum(probabilities[present] * by_set[present][action] for present in by_set)
            for action in ACTIONS
        }
        for lower, higher in pairwise(sorted(ACTIONS, key=means.__getitem__)):
            is_equal = means[higher] == pytest.approx(means[lower], abs=1e-9)
            assert is_equal == (mean_rank(theme, lower) == mean_rank(theme, higher))
            assert mean_rank(theme, lower) <= mean_rank(theme, higher)


def test_the_world_leaves_the_reference_something_to_tell() -> None:
    assert reference_share(RATES) == pytest.approx(0.311, abs=0.001)
    assert table_asker() == pytest.approx(0.926, abs=0.001)


def test_actions_and_themes_are_read_from_texts() -> None:
    assert [action_of(text) for text in ("About the eggs: copy them?", "Hello?")] == [
        "copy",
        WASTED,
    ]
    assert action_of("Keep or cut some?") == WASTED and action_of("I WANT TO ANSWER: x") == ANSWER
    tasks = Persona().tasks("train", 40, 0)
    assert {*map(theme_of, tasks)} == {*THEMES}
    assert WISHES < QUESTIONS < len(ASPECTS)


@pytest.mark.parametrize(
    ("changes", "passed", "failed"),
    [
        ({}, True, False),
        # Only claims on the reference need its critic.
        ({CRITIC + "no_reference": 0.61}, True, True),
        ({"base": 0.56}, False, False),
        ({"reference_share": 0.19}, False, False),
        ({"reference_share": 0.46}, False, False),
        ({"asker": 0.74}, False, False),
    ],
)
def test_claims_on_the_reference_have_a_gate_of_their_own(
    changes: dict[str, float], passed: bool, failed: bool
) -> None:
    values = {"reference_share": 0.3, "base": 0.4, "asker": 0.9}
    critics = {CRITIC + "sweet": 0.7, CRITIC + "no_reference": 0.59}
    gate = gate_of(values | critics | changes)
    assert gate.passed == passed and [*gate.failed] == [*ON_REFERENCE] * failed
