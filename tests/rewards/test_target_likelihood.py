"""Mean log-likelihoods of a target after several prompts, against plain forward passes, and quotes in plans."""

import asyncio
import math

import pytest
import torch

from coterie.engines.inprocess import InProcessEngine
from coterie.models.loading import load
from coterie.record.tree import Tree
from coterie.record.turn import Message
from coterie.rewards.critics import mean_loglikelihoods, perplexity
from coterie.rewards.dialogue_reward import quotes

PLANS = ("Find what Ben has.", "Add 5 to 14, then double it.", "Find what Ben has. Then stop.", "x")


def test_mean_loglikelihoods_are_over_the_tokens_of_the_target():
    model = load("tiny-exchange")
    engine = InProcessEngine(model, policy="grounder", version="0")
    system = Message.of("system", "You turn subgoals into actions. Task: Ana has 14 pens.")
    render, tree = model.renderer.render, Tree("t", "rollout", 0)
    prompts = [render([system, Message.of("user", p)], tree, "grounder") for p in PLANS]
    target = model.renderer.encode_turn("R1 = Calculator(14 + 5)")

    def naive(prompt: tuple[int, ...]) -> float:
        with torch.no_grad():
            logprobs = model.model(torch.tensor([[*prompt, *target]])).logits[0].log_softmax(-1)
        values = [logprobs[len(prompt) - 1 + n, token] for n, token in enumerate(target)]
        return float(torch.stack(values).double().mean())

    # The last list has a prompt that another one begins with, and a repeat.
    for given in (prompts[:1], prompts[:2], prompts, [prompts[0], prompts[0][:-3], prompts[0]]):
        scores = asyncio.run(mean_loglikelihoods(engine, given, target))
        assert scores == pytest.approx([naive(prompt) for prompt in given], abs=1e-4)
    assert scores[0] == scores[2] != scores[1]
    assert target[-1] in model.renderer.end_ids, "the end of the turn is a token of the target"
    with pytest.raises(ValueError, match="an empty target"):
        asyncio.run(mean_loglikelihoods(engine, prompts, ()))
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
        ("Count(a) and so on", False),
    ],
)
def test_a_plan_that_quotes_an_action_is_a_leak(text, leaks):
    assert (
        quotes(text, ["R1 = Calculator(48 / 2)", "R2 = Calculator(R1 + 48)", "R3 = a+b"]) is leaks
    )
