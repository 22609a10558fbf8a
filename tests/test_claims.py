"""Claims, against values worked out by hand: what they compare, at which margin, and when they hold."""

import pytest

from coterie.evaluation.claims import HeldOut, Results, above, better, brief, longer, token_ratio


def results(*of_seeds: list[tuple[float, int]]) -> Results:
    """(score, tokens) of each task, by seed."""
    return {
        seed: {str(task): HeldOut(score, tokens) for task, (score, tokens) in enumerate(tasks)}
        for seed, tasks in enumerate(of_seeds)
    }


def alike(score: float, tokens: int, seeds: int = 2) -> Results:
    """Twenty equal tasks of each seed."""
    return results(*[[(score, tokens)] * 20] * seeds)


BASE = alike(0.5, 100)


def test_better_needs_more_than_the_margin_at_no_more_tokens() -> None:
    sure = better("isft", alike(0.7, 100), "base", BASE, 0.1)
    assert (sure.holds, sure.must, sure.id) == (True, True, "isft_over_base")
    assert sure.effect == pytest.approx(0.2) and sure.p < 0.001
    assert not better("isft", alike(0.6, 100), "base", BASE, 0.1).holds, "exactly the margin"
    assert not better("isft", alike(0.7, 101), "base", BASE, 0.1).holds, "more tokens"
    assert not better("isft", alike(0.3, 10), "base", BASE, 0.1).holds, "worse"


def test_a_claim_holds_only_where_chance_is_unlikely() -> None:
    """Two seeds of which one gains and one does not: both draws hit the latter a quarter of the time."""
    ours = results([(1.0, 10)] * 20, [(0.5, 10)] * 20)
    found = above("a", "a is above", ours, BASE)
    assert found.effect == pytest.approx(0.25) and found.p == pytest.approx(0.25, abs=0.02)
    assert not found.holds


def test_above_has_its_margin_and_may_use_more_tokens() -> None:
    assert above("a", "a", alike(0.7, 500), BASE, margin=0.1).holds
    assert not above("a", "a", alike(0.7, 500), BASE, margin=0.3).holds
    assert above("a", "a", BASE, alike(0.6, 1), margin=-0.2, must=False).holds


def test_longer_compares_tokens_alone() -> None:
    found = longer("a", "a", alike(0.1, 120), BASE)
    assert found.holds and found.effect == pytest.approx(20)
    assert not longer("a", "a", alike(0.9, 100), BASE).holds
    assert not longer("a", "a", alike(0.9, 80), BASE).holds


def test_brief_needs_few_tokens_and_hardly_a_lower_score() -> None:
    found = brief("b", "b", alike(0.48, 40), BASE, share=0.5, loss=0.05)
    assert found.holds and found.effect == pytest.approx(-0.6)
    for ours in (alike(0.48, 60), alike(0.40, 40), alike(0.48, 50), alike(0.45, 40)):
        found = brief("b", "b", ours, BASE, share=0.5, loss=0.05)
        assert not found.holds and found.p == 1


def test_tokens_are_compared_over_all_tasks_and_seeds() -> None:
    ours, theirs = results([(0, 30), (0, 10)], [(0, 20)]), results([(0, 40), (0, 40)], [(0, 40)])
    assert token_ratio(ours, theirs) == 0.5
    assert token_ratio(ours, results([(0, 0)])) == 60, "nothing to compare with"


def test_tasks_are_paired_by_name_and_seed() -> None:
    ours = results([(1.0, 1), (0.0, 1)] * 10, [(0.0, 1), (1.0, 1)] * 10)
    theirs: Results = {
        seed: {task: HeldOut(one.score - 0.5, 1) for task, one in reversed(list(tasks.items()))}
        for seed, tasks in reversed(list(ours.items()))
    }
    found = above("a", "a", ours, theirs, margin=0.49)
    assert found.holds and "interval of the effect 0.500 to 0.500" in found.tried
