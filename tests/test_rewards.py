"""Rewards, against values worked out by hand (the worked example of Optima's equation 1)."""

import pytest

from coterie.record.tree import LENGTH, Ending, Outcome
from coterie.record.turn import Part, Speaker, Turn, make_turn
from coterie.rewards.dialogue_reward import (
    DialogueSample,
    RewardSettings,
    count_leaks,
    count_repeats,
    rewards,
)

AGREED = Ending("agreed")


def sampled(
    sample: int, score: float | None, tokens: int, loss: float, end: Ending = AGREED, **more: int
) -> DialogueSample:
    outcome = Outcome(f"leaf-{sample}", sample, end, "x", score)
    return DialogueSample(outcome, tokens, loss, **more)


def talk(*said: tuple[str, str]) -> list[Turn]:
    return [make_turn("", Speaker("agent", name), [Part(text)]) for name, text in said]


def test_reward_is_task_minus_tokens_plus_inverse_loss() -> None:
    samples = [sampled(0, 1.0, 80, 2.0), sampled(1, 1.0, 160, 1.25), sampled(2, 0.0, 50, 1.0)]
    found = rewards(samples, RewardSettings(lambda_token=0.6, lambda_loss=1.0))
    assert [r.total for r in found] == pytest.approx([1.2, 1.2, 0.8125])
    assert [r.terms["tokens"] for r in found] == pytest.approx([-0.3, -0.6, -0.1875])


def test_a_weight_of_zero_removes_its_term() -> None:
    found = rewards([sampled(0, 1.0, 10, 0.5)], RewardSettings(lambda_token=0, lambda_loss=0))
    assert found[0].total == 1.0


def test_the_bounded_loss_term_is_at_most_its_weight() -> None:
    rule = RewardSettings(lambda_token=0, lambda_loss=2.0, loss_term="bounded")
    found = rewards([sampled(0, 0.0, 10, 0.0), sampled(1, 0.0, 10, 1.0)], rule)
    assert [r.terms["loss"] for r in found] == pytest.approx([2.0, 2 / 2.718281828])


def test_tokens_may_be_relative_to_a_given_number() -> None:
    found = rewards([sampled(0, 1.0, 80, 1.0)], RewardSettings(lambda_loss=0), max_tokens=40)
    assert found[0].terms["tokens"] == pytest.approx(-1.2), "longer than the percentile of a probe"


def test_in_trees_a_leak_loses_the_task_term() -> None:
    rule = RewardSettings(leaks_lose_task=True, leak_penalty=0)
    assert rewards([sampled(0, 1.0, 10, 1.0, leaks=1)], rule)[0].total == pytest.approx(0.4)


def test_a_loss_near_zero_is_rewarded_no_more_than_the_smallest_one() -> None:
    samples = [sampled(n, 0.0, 10, loss) for n, loss in enumerate((0.0, 1e-9, 0.05, 0.1, 0.125))]
    found = rewards(samples, RewardSettings(lambda_loss=0.5))
    assert [r.terms["loss"] for r in found] == pytest.approx([5, 5, 5, 5, 4])
    found = rewards(samples, RewardSettings(lambda_loss=0.5, min_loss=0.01))
    assert [r.terms["loss"] for r in found] == pytest.approx([50, 50, 10, 5, 4])


def test_a_truncated_dialogue_has_terms_of_minus_one_and_sets_no_scale() -> None:
    found = rewards(
        [sampled(0, 0.0, 900, 1.0, LENGTH), sampled(1, 1.0, 100, 1.0)], RewardSettings()
    )
    assert [r.terms["tokens"] for r in found] == pytest.approx([-1.0, -0.6])
    assert [r.terms["loss"] for r in found] == pytest.approx([-1.0, 1.0])


def test_talk_that_is_too_short_counts_as_a_truncated_dialogue_does() -> None:
    samples = [sampled(0, 1.0, 40, 1.0), sampled(1, 1.0, 80, 1.0)]
    found = rewards(samples, RewardSettings(short_tokens=40))
    assert [r.terms["tokens"] for r in found] == pytest.approx([-1.0, -0.6])


def test_each_leak_costs_the_penalty() -> None:
    found = rewards([sampled(0, 1.0, 10, 1.0, leaks=2)], RewardSettings())
    assert found[0].terms["leaks"] == -20.0
    assert found[0].total == pytest.approx(1 - 0.6 + 1 - 20)


def test_a_repeat_loses_the_loss_term_where_that_is_the_rule() -> None:
    samples = [sampled(0, 1.0, 10, 2.0, repeats=1)]
    assert rewards(samples, RewardSettings())[0].terms["loss"] == 0.0
    assert rewards(samples, RewardSettings(repeats_lose_loss=False))[0].terms["loss"] == 0.5


def test_a_leak_is_an_utterance_that_speaks_for_the_other() -> None:
    agents = ("Alice", "Bob")
    assert count_leaks(talk(("Alice", "Alice: hello"), ("Bob", "hello Alice")), agents) == 0
    assert count_leaks(talk(("Alice", "I see. Bob: yes. Alice: good")), agents) == 1
    assert count_leaks(talk(("Alice", "Bob: I know it is Paris.")), agents) == 1
    assert count_leaks(talk(("Alice", "Bob: yes"), ("Bob", "Bob: a Bob: b")), agents) == 2
    assert count_leaks(talk(("Alice", "Alice: Alice: yes"), ("Bob", "no Bob: b")), agents) == 2


def test_a_repeat_is_told_without_case_blanks_and_the_own_name() -> None:
    assert count_repeats(talk(("Alice", "Alice: Oslo"), ("Bob", " oslo "), ("Alice", "Oslo!"))) == 1
    assert count_repeats(talk(("Alice", "a"), ("Bob", "b"))) == 0


def test_what_was_not_graded_has_no_reward() -> None:
    with pytest.raises(ValueError, match="was not graded"):
        rewards([sampled(0, None, 10, 1.0)], RewardSettings())
