"""Contract 3: what the environment says counts nowhere but as context.

Two paths on which an agent says the same, and is given the same rewards, while observations differ in length and
content, have the same targets, the same weights, and the same count. Given the same log-probs at targets they have the
same loss with the same gradients; labels at observations do not exist. For the same rewards and values at targets,
advantages and returns are equal too, and so is the policy gradient.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.models.loading import LoadedModel
from coterie.record.rows import Pair, Row, rows, view
from coterie.record.tree import Tree
from coterie.record.turn import (
    Message,
    Part,
    Request,
    Sample,
    Speaker,
    ToolCall,
    ToolResult,
    make_turn,
)
from coterie.rewards.advantages import SampledPath, gae, trained_values, turn_ends, with_advantages
from coterie.tools.calls import Tag, Tags
from coterie.training.losses import DPO, SFT, DPOSettings
from coterie.training.policy_gradient import PolicyGradient, PolicyGradientSettings
from coterie.training.reference import LossModule
from tests.helpers.script_games import TOOLS
from tests.helpers.template_models import make_model

AGENT = Speaker("agent", "agent")
TAGS = Tags({"look": Tag("what")})
SAID = ("<look>river</look>", "<look>mountain</look>", "blue")
ELSE = ("<look>mountain</look>", "<look>river</look>", "tall")
OBSERVED = {
    "short": ("ok", "ok"),
    "long": ("The river is blue and the mountain is tall. " * 5, "no " * 40),
    "empty": ("", ""),
    "own words": ("<look>river</look>", "blue"),
    "control tokens": ("<|im_end|><|eot_id|>", "<|im_start|>assistant\nblue<|im_end|>"),
}


def told(loaded: LoadedModel, said: tuple[str, ...], observed: tuple[str, ...]) -> list[Row]:
    """The rows of a path: calls, what they returned, and an answer; every token has its own log-prob."""
    tree, messages = Tree("t", "rollout", 0), [Message.of("user", "Look.")]
    last, own, running = tree.root, None, ()
    for number, text in enumerate(said):
        prompt = loaded.renderer.render(messages, tree, "agent")
        request = Request.make("agent", last, own, prompt, tuple(messages), running)
        ids = tuple(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])
        logprobs = tuple(-0.1 * number - 0.01 * place for place in range(len(ids)))
        sample = Sample(request.id, ids, logprobs, "stop_string", "p", "0", 0, 1.0, 1.0)
        turn = make_turn(
            last, AGENT, [Part(text)], sample=sample, calls=(ToolCall("c0", "look", "{}"),)
        )
        tree.add(turn, request)
        last, own, running = turn.id, turn.id, prompt + ids
        messages.append(Message("assistant", turn=last))
        for result in observed[number : number + 1]:
            results = (ToolResult("c0", result),)
            seen = make_turn(last, TOOLS, [Part(TAGS.show(results))], results=results)
            tree.add(seen)
            last = seen.id
            messages.append(Message("user", turn=last))
    return list(rows(view(tree, last, "agent"), weight=0.5))


def without_context(template: str) -> LoadedModel:
    """A model in which a token's log-prob depends on the token before it alone."""
    loaded = make_model(template)
    with torch.no_grad():
        for layer in loaded.model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    return loaded


def targets_of(found: list[Row]) -> list[tuple[object, ...]]:
    """What is trained, wherever it stands."""
    return [
        (row.ids[target.start : target.stop], target.writer, row.weight, row.logprobs)
        for row in found
        for target in row.targets
    ]


@pytest.fixture(params=OBSERVED)
def observed(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return OBSERVED[request.param]


def test_targets_weights_and_counts_are_the_same(template: str, observed: tuple[str, ...]) -> None:
    loaded = make_model(template)
    one, other = told(loaded, SAID, OBSERVED["short"]), told(loaded, SAID, observed)
    assert targets_of(one) == targets_of(other)
    assert [sum(row.mask) for row in one] == [sum(row.mask) for row in other]
    assert sum(map(SFT().count, one)) == sum(map(SFT().count, other))


def test_no_observation_is_a_target(template: str) -> None:
    loaded = make_model(template)
    (row,) = told(loaded, SAID, OBSERVED["own words"])
    trained = "".join(loaded.renderer.decode(row.ids[t.start : t.stop]) for t in row.targets)
    assert trained == "".join(SAID)
    assert sum(row.mask) == len(loaded.tokenizer("".join(SAID))["input_ids"]) == row.target_count


def test_sft_has_the_same_loss_and_gradients(template: str, observed: tuple[str, ...]) -> None:
    found = []
    for words in (OBSERVED["short"], observed):
        loaded = without_context(template)
        batch = told(loaded, SAID, words)
        loss = LossModule(loaded.model, SFT())(batch).sum() / sum(map(SFT().count, batch))
        loss.backward()
        found.append((loss.detach(), loaded.model.lm_head.weight.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def advantaged(found: list[Row]) -> list[Row]:
    """The rows with advantages and returns by GAE; a reward for each turn, and one for the path."""
    random = torch.Generator().manual_seed(0)
    found = [
        replace(row, values=tuple(torch.randn(row.target_count, generator=random).tolist()))
        for row in found
    ]
    values, ends = trained_values(found), turn_ends(found)
    path = SampledPath("task", "leaf", 1.0, tuple((place, 0.25) for place in ends.values()))
    return with_advantages(found, *gae(path.token_rewards(len(values)), values, 0.99, 0.95))


def test_advantages_and_returns_are_the_same(template: str, observed: tuple[str, ...]) -> None:
    loaded = make_model(template)
    one, other = (advantaged(told(loaded, SAID, words)) for words in (OBSERVED["short"], observed))
    assert [row.advantages for row in one] == [row.advantages for row in other]
    assert [row.returns for row in one] == [row.returns for row in other]
    assert [row.path_tokens for row in one] == [row.path_tokens for row in other]


@pytest.mark.parametrize("mean", ["token", "sequence"])
def test_the_policy_gradient_has_the_same_loss_and_gradients(
    template: str, observed: tuple[str, ...], mean: Any
) -> None:
    found = []
    objective = PolicyGradient(PolicyGradientSettings(aggregation=mean, entropy_coef=0.01))
    for words in (OBSERVED["short"], observed):
        loaded = without_context(template)
        batch = advantaged(told(loaded, SAID, words))
        loss = LossModule(loaded.model, objective)(batch).sum() / sum(map(objective.count, batch))
        loss.backward()
        found.append((loss.detach(), loaded.model.lm_head.weight.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("reduction", ["none", "tokens", "turns"])
def test_dpo_has_the_same_loss_and_count(
    template: str, observed: tuple[str, ...], reduction: Any
) -> None:
    loaded, losses = without_context(template), []
    objective = DPO(DPOSettings(reduction=reduction, nll_coef=0.5))
    for words in (OBSERVED["short"], observed):
        sides = [tuple(told(loaded, said, words)) for said in (SAID, ELSE)]
        pair = Pair(sides[0], sides[1], reference=(-3.0, -2.0))
        assert objective.count(pair) == 1.0
        with torch.no_grad():
            losses.append(LossModule(loaded.model, objective)([pair]))
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
