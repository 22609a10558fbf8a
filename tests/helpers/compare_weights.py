"""How far float32 rounding may move the weights of a training: bounds to compare two ways to take the same steps."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

EPSILON = torch.finfo(torch.float32).eps
ROUNDING = 2e-5
"""Rounding error of a gradient, as a share of the largest gradient of its tensor.

In another order, a sum of n float32 terms differs by about ``EPSILON * sqrt(n)``. With n = 30,000, the tokens of a step
times the width of a layer, that is 2e-5; 4e-6 was measured.
"""


@contextmanager
def weight_bounds(model: torch.nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record, for each weight that AdamW trains in the block, how far rounding may move it.

    A step of AdamW is the learning rate times ``m / sqrt(v)``, so an error of the gradient changes it by about the
    error divided by ``sqrt(v)``, and at most from 1 to -1. A weight whose gradients are small beside the others of its
    tensor may therefore go anywhere, and all others must agree.
    """
    bounds, squares = dict[str, Tensor](), dict[str, Tensor]()
    steps = 0

    def record(optimizer: Optimizer, *_: Any) -> None:
        nonlocal steps
        steps += 1
        rates = {
            id(one): group["lr"] for group in optimizer.param_groups for one in group["params"]
        }
        for name, weight in model.named_parameters():
            if weight.grad is None:
                continue
            gradient = weight.grad.double()
            squares[name] = squares.get(name, torch.zeros(())) + gradient**2
            error = ROUNDING * gradient.abs().max() / (squares[name] / steps).sqrt()
            # A gradient that was always exactly 0 moves nothing.
            error = torch.where(squares[name] > 0, error, 0.0).clamp(max=2.0)
            moved = rates[id(weight)] * error + EPSILON * weight.detach().abs()
            bounds[name] = bounds.get(name, torch.zeros(())) + moved

    hook = register_optimizer_step_pre_hook(record)
    try:
        yield bounds
    finally:
        hook.remove()


def assert_same_weights(
    one: Mapping[str, Tensor], two: Mapping[str, Tensor], bounds: Mapping[str, Tensor]
) -> None:
    """Assert that the trained weights of two sides differ by no more than rounding."""
    assert one.keys() == two.keys() and bounds and bounds.keys() <= one.keys()
    for name, weight in one.items():
        difference = (weight - two[name]).abs()
        bound = bounds.get(name, torch.zeros(()))
        assert bool((difference <= bound).all()), (
            f"{name}: {float(difference.max())}, {float((difference - bound).max())} above rounding"
        )
