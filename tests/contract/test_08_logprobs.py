"""Contract 8: stored log-probs equal those recomputed by the trainer's code (float32, 1e-4 nats)."""

import pytest
import torch

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.models.logprobs import targets, token_logprobs
from coterie.trajectories.row import rows
from coterie.trajectories.view import view
from tests.dialogue import AGENTS, play
from tests.templates import model

TOLERANCE = 1e-4


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_behaviour_logprobs_are_those_of_the_trainer(
    template: str, engine: InProcessEngine, temperature: float
) -> None:
    sampling = Sampling(max_tokens=70, temperature=temperature)
    game = play(engine, lambda _: sampling, turns=6)
    trainer = model(template).model
    for agent in AGENTS:
        for row in rows(view(game.tree, game.leaf, agent)):
            ids = torch.tensor([row.ids])
            at, tokens = targets(ids, torch.tensor([row.mask]))
            found = token_logprobs(trainer, ids, at, tokens, temperature=temperature)
            assert row.logprobs is not None
            assert (found - torch.tensor(row.logprobs)).abs().max() < TOLERANCE


def test_the_trainers_forward_agrees(template: str, engine: InProcessEngine) -> None:
    from coterie.training.forward import row_logprobs

    game = play(engine, lambda _: Sampling(max_tokens=40), turns=4)
    batch = [row for agent in AGENTS for row in rows(view(game.tree, game.leaf, agent))]
    for row, found in zip(batch, row_logprobs(model(template).model, batch), strict=True):
        assert (found - torch.tensor(row.logprobs)).abs().max() < TOLERANCE
