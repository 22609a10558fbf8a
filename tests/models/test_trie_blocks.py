"""Attention over long tries by blocks: less work, and the numbers of the dense mask."""

import random

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from coterie.models.logprobs import BlockedMask, by_blocks, pack_batch
from coterie.models.prefix_trie import CostRule
from coterie.record.rows import Row, Target
from coterie.training.reference import row_logprobs
from tests.helpers.training_models import tiny_llama


def group(seed: int, prompt: int, own: int, paths: int = 6) -> list[Row]:
    """Paths of different lengths on one prompt, two of which share half of what comes after it."""
    rng = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [rng.randrange(2, 32) for _ in range(count)]

    start, half = [seed, *ids(prompt - 1)], ids(own // 2)
    ends = [half + ids(own), half + ids(own), *(ids(own + 9 * path) for path in range(2, paths))]
    return [Row((*start, *end), (Target(prompt, prompt + len(end), "a"),)) for end in ends]


def mask_of(rows: list[Row]):
    return pack_batch([row.ids for row in rows], [[1]] * len(rows), CostRule(0.0)).mask


def logprobs_and_gradient(model, rows: list[Row], rule: CostRule | None):
    model.zero_grad()
    found = torch.cat(row_logprobs(model, rows, rule))
    (found * torch.linspace(-1, 1, len(found))).sum().backward()
    return found.detach(), torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.mark.parametrize("checkpointing", [False, True])
def test_blocks_have_the_logprobs_and_the_gradient_of_flat_rows(checkpointing):
    rows = group(0, prompt=300, own=80) + group(1, prompt=200, own=60)
    assert isinstance(mask_of(rows), BlockedMask), "two tries of different widths"
    model = tiny_llama(max_position_embeddings=512).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    flat = logprobs_and_gradient(model, rows, None)
    blocks = logprobs_and_gradient(model, rows, CostRule(0.0))
    torch.testing.assert_close(blocks[0], flat[0], atol=1e-5, rtol=1e-5)
    assert float((blocks[1] - flat[1]).norm() / flat[1].norm()) < 1e-5


def test_blocks_leave_out_what_no_node_attends_to():
    mask = mask_of(group(0, prompt=600, own=200, paths=8))
    computed = sum(block.mask.numel() for row in mask.blocks for block in row)
    needed = sum(int(block.mask.sum()) for row in mask.blocks for block in row)
    assert needed == int(mask.sum())
    assert computed < 0.4 * mask.numel()
    chain = torch.ones(1, 1, 1024, 1024, dtype=torch.bool).tril()
    assert by_blocks(chain) is chain, "blocks would save little"


def test_a_blocked_mask_is_a_plain_tensor_otherwise():
    mask = mask_of(group(0, prompt=600, own=200))
    width = mask.shape[-1]
    query, key, value = torch.randn(3, 1, 2, width, 8).unbind()
    last = mask[..., -5:, :]
    assert type(last) is torch.Tensor
    torch.testing.assert_close(
        scaled_dot_product_attention(query[..., -5:, :], key, value, attn_mask=last),
        scaled_dot_product_attention(query, key, value, attn_mask=mask)[..., -5:, :],
    )
