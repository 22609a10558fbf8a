"""What a text is worth after each of several prompts: against a model's plain forward passes."""

import asyncio
import math
from functools import cache

import pytest
import torch

from coterie.engines.inprocess import InProcessEngine
from coterie.models.loading import LoadedModel, load
from coterie.record.tree import Tree
from coterie.record.turn import Message
from coterie.rewards.critics import mean_loglikelihoods, perplexity
from coterie.rewards.dialogue_reward import quotes

PLANS = ("Find what Ben has.", "Add 5 to 14, then double it.", "Find what Ben has. Then stop.", "x")


@cache
def tiny() -> LoadedModel:
    return load("tiny-exchange")


def prompts() -> list[tuple[int, ...]]:
    begin = Message.of("system", "You turn subgoals into actions. Task: Ana has 14 pens.")
    render, tree = tiny().renderer.render, Tree("t", "rollout", 0)
    return [render([begin, Message.of("user", plan)], tree, "grounder") for plan in PLANS]


def naive(prompt: tuple[int, ...], target: tuple[int, ...]) -> float:
    """The same by a plain forward pass of the whole sequence."""
    with torch.no_grad():
        logprobs = tiny().model(torch.tensor([[*prompt, *target]])).logits[0].log_softmax(-1)
    found = [logprobs[len(prompt) - 1 + n, token] for n, token in enumerate(target)]
    return float(torch.stack(found).double().mean())


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_tokens_of_the_target_count_and_no_other(count):
    target = tiny().renderer.encode_turn("R1 = Calculator(14 + 5)")
    engine = InProcessEngine(tiny(), policy="grounder", version="0")
    given = prompts()[:count]
    found = asyncio.run(mean_loglikelihoods(engine, given, target))
    assert found == pytest.approx([naive(prompt, target) for prompt in given], abs=1e-4)
    assert target[-1] in tiny().renderer.end_ids, "the end of the actions is one of their tokens"


def test_prompts_of_which_one_begins_the_other_are_scored_apart():
    target = tiny().renderer.encode_turn("R1 = Count(a)")
    engine = InProcessEngine(tiny(), policy="grounder", version="0")
    long = prompts()[0]
    given = [long, long[:-3], long]
    found = asyncio.run(mean_loglikelihoods(engine, given, target))
    assert found == pytest.approx([naive(prompt, target) for prompt in given], abs=1e-4)
    assert found[0] == found[2] != found[1]


def test_an_empty_target_is_refused_and_no_prompts_have_no_likelihood():
    engine = InProcessEngine(tiny(), policy="grounder", version="0")
    with pytest.raises(ValueError, match="an empty target"):
        asyncio.run(mean_loglikelihoods(engine, prompts(), ()))
    assert asyncio.run(mean_loglikelihoods(engine, [], (5,))) == []


def test_a_perplexity_is_the_exponential_of_the_mean_loss():
    assert perplexity(0.0) == 1.0
    assert perplexity(-math.log(7)) == pytest.approx(7)
    assert perplexity(-1e6) == math.inf


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        ("Subgoal 1: R1 = Calculator(48 / 2)", True),
        ("Subgoal 1: use calculator( 48/2 ) for May", True),
        ("Subgoal 1: R9=Calculator(48 /2) and go on", True),
        ("Subgoal 1: divide 48 by 2 with the calculator", False),
        ("Subgoal 1: find 48 / 2", False),
        ("", False),
    ],
)
def test_a_plan_that_quotes_an_action_is_a_leak(text, leaks):
    assert quotes(text, ["R1 = Calculator(48 / 2)", "R2 = Calculator(R1 + 48)"]) is leaks


def test_what_is_too_short_to_be_a_quote_is_none():
    assert not quotes("Count(a) and so on", ["R1 = a+b"])
    assert not quotes("anything", [])
