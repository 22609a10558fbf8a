"""Rewards of dialogues (the worked example of Optima's equation 1) and of agents' paths, against values by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.record.tree import LENGTH, Ending, Metrics, Outcome
from coterie.record.turn import Part, Speaker, Turn, make_turn
from coterie.rewards.dialogue_reward import (
    DialogueSample,
    GradedPath,
    PathReward,
    PathRewardSettings,
    RewardSettings,
    add_terms,
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


def talk(*texts: tuple[str, str]) -> list[Turn]:
    return [make_turn("", Speaker("agent", name), [Part(text)]) for name, text in texts]


def test_reward_is_task_minus_tokens_plus_inverse_loss() -> None:
    samples = [sampled(0, 1.0, 80, 2.0), sampled(1, 1.0, 160, 1.25), sampled(2, 0.0, 50, 1.0)]
    results = rewards(samples, RewardSettings(lambda_token=0.6, lambda_loss=1.0))
    assert [r.total for r in results] == pytest.approx([1.2, 1.2, 0.8125])
    assert [r.terms["tokens"] for r in results] == pytest.approx([-0.3, -0.6, -0.1875])
    with pytest.raises(ValueError, match="was not graded"):
        rewards([sampled(0, None, 10, 1.0)], RewardSettings())


ONE = sampled(0, 1.0, 10, 2.0)


@pytest.mark.parametrize(
    ("settings", "samples", "term", "values"),
    [
        ({"lambda_token": 0}, [ONE], "tokens", [0]),
        ({"lambda_loss": 0}, [ONE], "loss", [0]),
        ({"lambda_loss": 2, "loss_term": "bounded"}, [sampled(0, 0, 9, 1)], "loss", [2 / math.e]),
        # A loss near zero is rewarded no more than the smallest one.
        ({"lambda_loss": 0.5}, [sampled(0, 0, 9, n) for n in (0, 1e-9, 0.1, 0.125)], "loss", [5, 5, 5, 4]),
        ({"lambda_loss": 0.5, "min_loss": 0.01}, [sampled(0, 0, 9, 0), sampled(1, 0, 9, 0.05)], "loss", [50, 10]),
        # A truncated dialogue sets no scale, and one that is too short counts as truncated.
        ({}, [sampled(0, 0, 900, 1, LENGTH), sampled(1, 1, 100, 1)], "tokens", [-1, -0.6]),
        ({}, [sampled(0, 0, 900, 1, LENGTH), sampled(1, 1, 100, 1)], "loss", [-1, 1]),
        ({"short_tokens": 40}, [sampled(0, 1, 40, 1), sampled(1, 1, 80, 1)], "tokens", [-1, -0.6]),
        ({}, [replace(ONE, leaks=2)], "leaks", [-20]),
        ({"leaks_lose_task": True}, [replace(ONE, leaks=1)], "task", [0]),
        ({}, [replace(ONE, repeats=1)], "loss", [0]),
        ({"repeats_lose_loss": False}, [replace(ONE, repeats=1)], "loss", [0.5]),
    ],
)  # fmt: skip
def test_each_term_follows_its_settings(
    settings: dict[str, Any], samples: list[DialogueSample], term: str, values: list[float]
) -> None:
    results = rewards(samples, RewardSettings(**settings))
    assert [r.terms[term] for r in results] == pytest.approx(values)


def test_tokens_may_be_relative_to_a_given_number() -> None:
    (result,) = rewards([sampled(0, 1.0, 80, 1.0)], RewardSettings(), max_tokens=40)
    assert result.terms["tokens"] == pytest.approx(-1.2), "longer than the percentile of a probe"


def test_leaks_and_repeats_are_counted_by_the_names_of_speakers() -> None:
    agents = ("Alice", "Bob")
    assert count_leaks(talk(("Alice", "Alice: hello"), ("Bob", "hello Alice")), agents) == 0
    assert count_leaks(talk(("Alice", "I see. Bob: yes. Alice: good")), agents) == 1
    assert count_leaks(talk(("Alice", "Bob: I know it is Paris.")), agents) == 1
    assert count_leaks(talk(("Alice", "Bob: yes"), ("Bob", "Bob: a Bob: b")), agents) == 2
    assert count_leaks(talk(("Alice", "Alice: Alice: yes"), ("Bob", "no Bob: b")), agents) == 2
    assert count_repeats(talk(("Alice", "Alice: Oslo"), ("Bob", " oslo "), ("Alice", "Oslo!"))) == 1
    assert count_repeats(talk(("Alice", "a"), ("Bob", "b"))) == 0


# -- an agent's path in reinforcement learning ------------------------------------------------


def graded(
    score: float | None, measures: Metrics, *texts: str, ending: Ending = AGREED
) -> GradedPath:
    turns, parent = [], "root"
    for text in texts:
        ids = tuple(range(10))
        turns.append(make_turn(parent, Speaker("agent", "Ann"), [Part(text)], ids=ids))
        parent = turns[-1].id
    outcome = Outcome(parent, 0, ending, None, score)
    return GradedPath(outcome, tuple(turns), "Ann", score, measures)


def reward(path: GradedPath, **settings: Any) -> float | None:
    terms = PathReward(PathRewardSettings(**settings)).terms(path)
    return None if terms is None else add_terms(terms)


def test_the_reward_of_a_path_is_the_environments_and_the_settings_terms() -> None:
    rounds: Metrics = {"rounds": 4, "kind": "x"}
    right, wrong, weighed = graded(1.0, rounds, "a"), graded(0.0, rounds, "a"), {"rounds": -0.1}
    assert reward(graded(0.5, {}, "a")) == 0.5
    assert reward(graded(None, {}, "a")) is None, "what was not graded has no reward"
    assert reward(right, measures=weighed) == pytest.approx(0.6)
    assert reward(wrong, measures=weighed) == 0, "nobody gains by being wrong quickly"
    assert reward(wrong, measures=weighed, measures_only_if_correct=False) == pytest.approx(-0.4)
    assert reward(graded(1.0, {}, "a", "b", "A "), repeat_penalty=0.25) == 0.75
    long = {"overlong_penalty": 1.0, "overlong_limit": 30, "overlong_buffer": 20}
    two = graded(1.0, {}, "a", "b")
    assert reward(two, **long) == pytest.approx(0.5), "20 of 30 tokens, 10 in the buffer"
    assert reward(graded(1.0, {}, "a", ending=LENGTH), **long) == 0, "cut off costs all of it"
    assert reward(replace(right, environment_reward=3.0)) == 3, "it comes before the score"
    observed = make_turn(
        two.path[-1].id, Speaker("environment", "game"), [Part("a")], ids=tuple(range(99))
    )
    longer = replace(two, path=(*two.path, observed))
    assert reward(longer, **long, repeat_penalty=1.0) == 0.5, "observations cost nothing"


NAMED = [
    (["a/reward.py:asks", "a/reward.py:thrift"], ["asks", "thrift"]),
    (["a/reward.py:asks", "b/other.py:asks"], ["reward.py:asks", "other.py:asks"]),
    (["a/reward.py:asks", "b/reward.py:asks"], ["a/reward.py:asks", "b/reward.py:asks"]),
    (["a/reward.py:overlong", "b/other.py:asks"], ["reward.py:overlong", "asks"]),
]


@pytest.mark.parametrize(("files", "names"), NAMED)
def test_terms_have_the_shortest_names_that_tell_them_apart(
    files: list[str], names: list[str], tmp_path: Path
) -> None:
    for n, name in enumerate(files):
        file, _, function = name.rpartition(":")
        (tmp_path / file).parent.mkdir(exist_ok=True)
        with (tmp_path / file).open("a") as opened:
            opened.write(f"def {function}(dialogue):\n    return {n + 1}\n")
    terms = {f"{tmp_path / name}": 1.0 for name in files}
    own = PathReward(PathRewardSettings(terms=terms)).terms(graded(0.5, {}, "a"))
    assert own is not None
    assert {name: own[name] for name in names} == dict(zip(names, (1, 2), strict=True))


def test_a_path_that_breaks_its_form_is_worth_what_the_run_says() -> None:
    def malformed(metrics: Metrics, **own: Any) -> float | None:
        return reward(graded(1.0, metrics, "a", "a"), malformed_reward=-0.5, **own)

    assert malformed({"well_formed": 1.0, "violations": 0}) == 1
    assert malformed({"well_formed": 0.0, "violations": 0}) == -0.5
    assert malformed({"violations": 2}) == -0.5
    measured: Metrics = {"well_formed": 0.0, "rounds": 3}
    assert malformed(measured, measures={"rounds": -1.0}, measures_only_if_correct=False) == -0.5
    assert malformed(measured, repeat_penalty=0.25) == -0.75, "no way out of what is taken off"
    with pytest.raises(UserError, match="well_formed or violations"):
        malformed({"rounds": 3})
