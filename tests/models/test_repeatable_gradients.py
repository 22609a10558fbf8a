"""A gradient is bitwise the same each time, also where siblings share a parent and threads share the work."""

import pytest
import torch

from coterie.models import logprobs
from coterie.models.loading import load

PLACES, PARENTS, TOKENS, REPEATS = 2000, 400, 1500, 60


def test_gradients_of_siblings_are_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("tiny-exchange").model
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, PLACES, model.config.hidden_size, generator=rng, requires_grad=True)
    monkeypatch.setattr(logprobs, "hidden_states", lambda *_, **__: hidden)
    ids = torch.zeros(1, PLACES, dtype=torch.long)
    parents = torch.randint(0, PARENTS, (TOKENS,), generator=rng)  # each of several tokens
    tokens = torch.randint(0, model.config.vocab_size, (TOKENS,), generator=rng)
    found = set()
    for _ in range(REPEATS):
        hidden.grad = None
        logprobs.token_logprobs(model, ids, parents, tokens).sum().backward()
        assert hidden.grad is not None
        found.add(hidden.grad.numpy().tobytes())
    assert len(found) == 1
