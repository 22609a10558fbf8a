"""Contract 8: stored log-probs equal those recomputed by the trainer's code (float32, 1e-4 nats)."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.models.logprobs import token_logprobs
from coterie.record.rows import rows, view
from tests.helpers.recorded_dialogues import AGENTS, play_exchange
from tests.helpers.template_models import make_model, targets
from tests.helpers.training_models import SHAPE

TOLERANCE = 1e-4
OWN_WAYS = {
    "tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "untied": LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "capped": Gemma2Config(**SHAPE, head_dim=8, final_logit_softcapping=0.5),
}
"""Ways from hidden states to logits."""


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_behaviour_logprobs_are_those_of_the_trainer(
    template: str, engine: InProcessEngine, temperature: float
) -> None:
    sampling = Sampling(max_tokens=70, temperature=temperature)
    game = play_exchange(engine, lambda _: sampling, turns=6)
    trainer = make_model(template).model
    for agent in AGENTS:
        for row in rows(view(game.tree, game.leaf, agent)):
            ids = torch.tensor([row.ids])
            at, tokens = targets(ids, torch.tensor([row.mask]))
            found = token_logprobs(trainer, ids, at, tokens, temperature=temperature)
            assert row.logprobs is not None
            assert (found - torch.tensor(row.logprobs)).abs().max() < TOLERANCE


def test_the_trainers_forward_agrees(template: str, engine: InProcessEngine) -> None:
    from coterie.training.reference import row_logprobs

    game = play_exchange(engine, lambda _: Sampling(max_tokens=40), turns=4)
    batch = [row for agent in AGENTS for row in rows(view(game.tree, game.leaf, agent))]
    for row, found in zip(batch, row_logprobs(make_model(template).model, batch), strict=True):
        assert (found - torch.tensor(row.logprobs)).abs().max() < TOLERANCE


@pytest.mark.parametrize("way", OWN_WAYS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_models_own_logits(way: str, temperature: float) -> None:
    torch.manual_seed(0)
    own = AutoModelForCausalLM.from_config(OWN_WAYS[way]).eval()
    with torch.no_grad():
        for weight in own.parameters():
            weight.mul_(3)
        ids = torch.randint(32, (3, 10))
        at, tokens = targets(ids, torch.arange(10).expand(3, 10) > 4)
        found = token_logprobs(own, ids, at, tokens, temperature=temperature)
        logits = own(ids).logits.flatten(0, 1)[at] / temperature
    expected = logits.log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
    assert (found - expected).abs().max() < TOLERANCE
