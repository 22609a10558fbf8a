"""Recorded rollouts once more, in lock-step through Transformers' batched ``generate``.

The way of most research code: all rollouts that can run together take one turn after another; each turn is one
left-padded batch, whose prompts are read anew and which ends when its longest row does. Rewards' likelihoods
are plain forward passes over whole sequences in padded batches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from coterie.environments.protocol import agents_of
from coterie.models.loading import LoadedModel
from coterie.record.rows import prompts, view
from coterie.rollout.tree_search import Rollout, TreeSearch

SCORED = 32
"""Sequences of a forward pass."""


@dataclass(frozen=True)
class Turns:
    """Turns that all rollouts of one search take at the same time."""

    prompts: list[list[int]]
    new: int
    """Tokens of the longest."""


def lockstep(trees: Sequence[TreeSearch], searches: int) -> list[Turns]:
    """The batches of all searches: the rollouts of all trees, turn by turn."""
    batches: list[Turns] = []
    for search in range(searches):
        found = [
            _turns(tree, rollout)
            for tree in trees
            for rollout in tree.rollouts
            if rollout.search == search
        ]
        for step in range(max(map(len, found))):
            now = [turns[step] for turns in found if step < len(turns)]
            batches.append(Turns([list(p) for p, _ in now], max(count for _, count in now)))
    return batches


def _turns(tree: TreeSearch, rollout: Rollout) -> list[tuple[tuple[int, ...], int]]:
    """(prompt, sampled tokens) of each turn that a rollout sampled, in order."""
    assert rollout.leaf is not None, rollout.failure
    asked = {
        turn.id: (prompt, len(turn.ids))
        for agent in agents_of(tree.branches.environment)
        for prompt, turn in prompts(tree.tree, rollout.leaf, agent)
    }
    path = [turn.id for turn in tree.tree.path(rollout.leaf)]
    start = path.index(rollout.start) + 1 if rollout.start in path else 0
    return [asked[turn] for turn in path[start:]]


def generate(model: LoadedModel, batches: Iterable[Turns], *, greedy: bool = False) -> None:
    """Sample all turns; ends are off, so that each batch takes the steps of its longest row."""
    pad = model.tokenizer.pad_token_id
    with torch.inference_mode():
        for batch in batches:
            width = max(map(len, batch.prompts))
            rows = [[pad] * (width - len(prompt)) + prompt for prompt in batch.prompts]
            mask = [[0] * (width - len(p)) + [1] * len(p) for p in batch.prompts]
            model.model.generate(
                torch.tensor(rows),
                attention_mask=torch.tensor(mask),
                do_sample=not greedy,
                min_new_tokens=batch.new,
                max_new_tokens=batch.new,
                eos_token_id=None,
                pad_token_id=pad,
            )


def scored(trees: Sequence[TreeSearch]) -> list[tuple[int, ...]]:
    """The sequences whose likelihoods the rewards need: both agents' views of each new dialogue."""
    return [
        segment.ids
        for tree in trees
        for leaf in dict.fromkeys(r.leaf for r in tree.rollouts if r.leaf is not None)
        for agent in agents_of(tree.branches.environment)
        for segment in view(tree.tree, leaf, agent).segments
    ]


def score(model: LoadedModel, sequences: Sequence[tuple[int, ...]], size: int = SCORED) -> None:
    """Log-probs of all tokens, whole sequences sorted by length in padded batches."""
    ordered = sorted(sequences, key=len)
    with torch.inference_mode():
        for start in range(0, len(ordered), size):
            part = ordered[start : start + size]
            width = max(map(len, part))
            ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in part])
            mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in part])
            logits = model.model(ids, attention_mask=mask, use_cache=False).logits[:, :-1]
            logits.log_softmax(-1).gather(-1, ids[:, 1:, None])
