"""What the model in this process says, to compare a server with."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, Sampling
from coterie.environments.exchange import Exchange
from coterie.models.adapters import add_lora, save_adapter
from coterie.models.loading import LoadedModel, load
from coterie.record.tree import Tree
from coterie.record.turn import Message

TOLERANCE = 1e-4
"""Nats, in float32: other kernels sum in another order."""


def prompts(model: LoadedModel, count: int = 4) -> list[tuple[int, ...]]:
    """What the first agent is shown of some tasks."""
    environment, tree = Exchange(), Tree("task", "rollout", 0)
    return [
        model.renderer.render(
            [
                Message("system", environment.system_parts(task, "Alice")),
                Message.of("user", "Begin."),
            ],
            tree,
            "Alice",
        )
        for task in environment.tasks("train", count, 3)
    ]


def behaviour(
    model: LoadedModel, prompt: Sequence[int], said: Completion, sampling: Sampling
) -> list[float]:
    """Log-probs of a completion under this model with temperature and top-p applied."""
    ids = torch.tensor([[*prompt, *said.ids]])
    with torch.inference_mode():
        logits = model.model(ids).logits[0, len(prompt) - 1 : -1].float() / sampling.temperature
    found = logits.log_softmax(-1)
    ordered, order = found.sort(-1, descending=True)
    outside = ordered.exp().cumsum(-1) - ordered.exp() >= sampling.top_p
    kept = found.scatter(-1, order, ordered.masked_fill(outside, -torch.inf)).log_softmax(-1)
    chosen: list[float] = kept.gather(-1, torch.tensor(said.ids)[:, None])[:, 0].tolist()
    return chosen


def scores(
    model: LoadedModel, prompt: Sequence[int], said: Sequence[Sequence[int]]
) -> list[list[float]]:
    """Log-probs at temperature 1 by the in-process engine."""
    engine = InProcessEngine(model, policy="talker", version="0")
    return asyncio.run(engine.logprobs(prompt, said))


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def other_checkpoint(folder: Path) -> Path:
    """The packaged model with other weights in its last layer, and in the embeddings, to which its output is tied."""
    changed = load("tiny-exchange")
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        weight = changed.model.get_input_embeddings().weight
        weight.add_(torch.randn(weight.shape, generator=noise) * 0.2 * weight.std())
        changed.model.model.layers[-1].mlp.down_proj.weight.mul_(-0.5)
    changed.model.save_pretrained(folder)
    changed.tokenizer.save_pretrained(folder)
    return folder


def adapter(folder: Path, seed: int) -> Path:
    """A random LoRA adapter on the packaged model."""
    adapted = add_lora(load("tiny-exchange").model, r=4, alpha=8, name="policy")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1, generator=generator)
    save_adapter(adapted, folder, name="policy")
    return folder
