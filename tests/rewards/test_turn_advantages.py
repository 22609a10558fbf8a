"""Advantages of turns: exact expectations by enumeration of all groups, and where the numbers stand on rows."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import pytest

from coterie.record.rows import Row, Target, turn_row
from coterie.rewards.advantages import SampledPath, group_advantages
from coterie.rewards.turn_advantages import (
    TurnPath,
    role_advantages,
    state_advantages,
    turn_advantages,
    turn_returns,
    with_turn_advantages,
)

Estimator = Callable[[Sequence[TurnPath]], list[list[float] | None]]


@dataclass(frozen=True)
class Play:
    """A path of a world with one logit theta: stop with probability s = sigmoid(theta) at each turn, or go on."""

    probability: Fraction
    rewards: tuple[Fraction, ...]
    """Reward of each turn."""
    scores: tuple[Fraction, ...]
    """d log pi(a) / d theta of each turn; 0 for a turn without a choice."""


def world_s(turns: int, s: Fraction, pay: Fraction) -> list[Play]:
    """Stopping pays nothing, going on pays ``pay``; the last turn ends in any case."""
    plays, going = [], Fraction(1)
    for turn in range(turns):
        rewards, scores = (pay,) * turn, (-s,) * turn
        plays.append(Play(going * s, (*rewards, Fraction(0)), (*scores, 1 - s)))
        going *= 1 - s
    plays.append(Play(going, (pay,) * turns, (-s,) * turns))
    return plays


def sign_world(q: Fraction) -> list[Play]:
    """Stopping at turn 1 pays q; going on pays 0, and then 1 at turn 2, which has no choice. s = 1/2."""
    half, zero = Fraction(1, 2), Fraction(0)
    return [Play(half, (q,), (half,)), Play(half, (zero, Fraction(1)), (-half, zero))]


def gradient(plays: Sequence[Play]) -> Fraction:
    """dJ / d theta: the expectation of the summed scores times the summed rewards."""
    return sum((p.probability * sum(p.scores) * sum(p.rewards) for p in plays), start=Fraction(0))


def expected(plays: Sequence[Play], size: int, estimate: Estimator) -> float:
    """Expectation of the estimate, by enumeration of all groups of ``size`` paths."""
    total = 0.0
    for group in itertools.product(plays, repeat=size):
        probability = 1.0
        for play in group:
            probability *= float(play.probability)
        advantages = estimate([turn_path(play, number) for number, play in enumerate(group)])
        sums = (
            sum(a * float(score) for a, score in zip(of_path or [], play.scores, strict=True))
            for play, of_path in zip(group, advantages, strict=True)
        )
        total += probability * sum(sums) / size
    return total


def turn_path(play: Play, number: int) -> TurnPath:
    """Each turn is one token; the reward of the last turn stands as that of the path."""
    *steps, last = map(float, play.rewards)
    sampled = SampledPath("task", f"{number}", last, tuple(enumerate(steps)))
    return TurnPath(sampled, tuple(range(len(play.rewards))))


def by_path(baseline) -> Estimator:
    def estimate(paths: Sequence[TurnPath]) -> list[list[float] | None]:
        values = group_advantages([path.sampled for path in paths], baseline).values
        return [
            None if v is None else [v] * len(p.ends) for p, v in zip(paths, values, strict=True)
        ]

    return estimate


def by_turn(paths: Sequence[TurnPath]) -> list[list[float] | None]:
    return turn_advantages(paths, "leave_one_out").values


def of_survivors(paths: Sequence[TurnPath]) -> list[list[float] | None]:
    """The tempting baseline: the mean of own rewards over the paths that reached the turn, summed for the path."""
    rewards = [turn_returns(path, 1.0, immediate=True) for path in paths]
    sums = []
    for own in rewards:
        alive = [[r[k] for r in rewards if len(r) > k] for k in range(len(own))]
        sums.append(sum(r - sum(a) / len(a) for r, a in zip(own, alive, strict=True)))
    return [[value] * len(own) for value, own in zip(sums, rewards, strict=True)]


@pytest.mark.parametrize(("turns", "size"), [(2, 2), (3, 4), (4, 3)])
def test_returns_to_go_with_ended_paths_as_zero_are_unbiased(turns, size):
    plays = world_s(turns, Fraction(1, 2), Fraction(1))
    truth = float(gradient(plays))
    assert expected(plays, size, by_turn) == pytest.approx(truth)
    assert expected(plays, size, by_path("leave_one_out")) == pytest.approx(truth)
    # The mean contains the path itself, which scales the whole gradient.
    scaled = expected(plays, size, by_path("mean"))
    assert scaled == pytest.approx((size - 1) / size * truth)


@pytest.mark.parametrize(("q", "naive"), [(Fraction(1, 2), 0.1094), (Fraction(9, 10), 0.1969)])
def test_the_mean_over_surviving_paths_can_have_the_wrong_sign(q, naive):
    plays = sign_world(q)
    truth = float(gradient(plays))
    assert truth < 0
    assert expected(plays, 8, of_survivors) == pytest.approx(naive, abs=5e-5)
    assert expected(plays, 4, by_turn) == pytest.approx(truth)


def path(name: str, rewards: Sequence[float], states: Sequence[str] = (), **fields) -> TurnPath:
    """A path of turns of two tokens each."""
    *steps, last = rewards
    at_ends = tuple((2 * turn + 1, reward) for turn, reward in enumerate(steps))
    ends = tuple(2 * turn + 1 for turn in range(len(rewards)))
    return TurnPath(SampledPath("task", name, last, at_ends, **fields), ends, tuple(states))


def test_returns_of_turns_are_discounted_and_can_be_immediate():
    paid = path("a", [1.0, 0.0, 4.0])
    assert turn_returns(paid, 0.5) == [1 + 0 + 0.25 * 4, 0 + 0.5 * 4, 4]
    assert turn_returns(paid, 0.5, immediate=True) == [1, 0, 4]


def test_a_turn_is_compared_with_all_other_paths_also_ended_ones():
    long, short, lost = path("long", [0.0, 1.0, 2.0]), path("short", [1.0]), path("lost", [1.0])
    lost = TurnPath(SampledPath("task", "lost", None), lost.ends)
    lonely = path("lonely", [1.0], actor="Bob")
    values = turn_advantages([long, short, lost, lonely], "leave_one_out").values
    assert values == [[3 - 1, 3 - 0, 2 - 0], [1 - 3], None, None]
    equal = turn_advantages([path("a", [0.1] * 3), path("b", [0.1] * 3)], "mean_std").values
    assert equal == [[0.0] * 3] * 2


def test_gigpo_adds_turns_after_equal_states_and_nothing_for_a_state_seen_once():
    a, b = path("a", [0.0, 1.0], "sx"), path("b", [0.0, 0.0], "sy")
    values = state_advantages([a, b], "mean", gamma=0.5, weight=2.0).values
    # A_path is +-0.5; in state s the returns to go are 0.5 and 0; x and y were seen once.
    assert values == [[0.5 + 2 * 0.25, 0.5], [-0.5 - 2 * 0.25, -0.5]]
    alone = state_advantages([path("a", [5.0], "s")], "mean").values
    assert alone == [None], "a path alone in its group has no advantage, not its raw reward"


def test_the_running_mean_of_a_role_is_the_one_before_the_path():
    paths = [SampledPath("t", "0", 1.0, actor="x"), SampledPath("t", "1", 1.0, actor="y")]
    paths += [SampledPath("t", "2", None, actor="x"), SampledPath("t", "3", 0.0, actor="x")]
    values, means = role_advantages(paths, {"y": 0.5}, 0.75)
    assert values == [1.0, 0.5, None, -0.25]
    assert means == {"x": 0.75 * 0.25, "y": 0.75 * 0.5 + 0.25}


def row() -> Row:
    targets = (Target(0, 2, "policy@0", "a"), Target(3, 5, "policy@0", "b"))
    return Row((7, 8, 9, 10, 11, 12), targets, (-1.0, -2.0, -3.0, -4.0), path_tokens=3)


def test_numbers_of_turns_stand_at_all_tokens_of_their_turn():
    (marked,) = with_turn_advantages([row()], {"a": 1.0, "b": -2.0})
    assert marked.advantages == (1.0, 1.0, -2.0, -2.0)


def test_a_row_of_one_turn_has_its_prompt_its_logprobs_and_its_own_count():
    alone = turn_row([row()], "b")
    assert alone is not None
    assert (alone.ids, alone.logprobs) == ((7, 8, 9, 10, 11), (-3.0, -4.0))
    assert (alone.targets, alone.path_tokens) == ((Target(3, 5, "policy@0", "b"),), 2)
    first = turn_row([row()], "a")
    assert first is not None and (first.ids, first.path_tokens) == ((7, 8), 1)
    assert turn_row([row()], "c") is None
