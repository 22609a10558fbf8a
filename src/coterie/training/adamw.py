"""AdamW for weights in float32 and in bfloat16.

A bfloat16 weight has 8 significant bits. Most fine-tuning updates are smaller than half the last bit, so rounding to
nearest would lose them. Both moments and the update are computed in float32, and the new weight is rounded
stochastically, without bias. The random bits come from torch's generator of the device, whose state is in checkpoints.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

BUCKET = 1 << 24
"""Elements of one fused update: a small model has hundreds of weights, and each kernel takes microseconds to launch."""


class AdamW(torch.optim.AdamW):
    """Fused AdamW of torch, with float32 moments and stochastic rounding for bfloat16 weights."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient; clear the gradients of bfloat16 weights."""
        low = [
            (
                group,
                [w for w in group["params"] if w.dtype == torch.bfloat16 and w.grad is not None],
            )
            for group in self.param_groups
        ]
        gradients = {weight: weight.grad for _, weights in low for weight in weights}
        for weight in gradients:
            weight.grad = None
        super().step(closure)
        for group, weights in low:
            for bucket in _buckets(weights):
                self._update(group, bucket, [gradients.pop(weight) for weight in bucket])

    def _update(
        self, group: dict[str, Any], weights: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> None:
        for weight in weights:
            if not self.state[weight]:
                zeros = (torch.zeros_like(weight, dtype=torch.float32) for _ in range(2))
                self.state[weight].update(
                    zip(("exp_avg", "exp_avg_sq"), zeros, strict=True),
                    step=torch.zeros((), device=weight.device),
                )
        states = [self.state[weight] for weight in weights]
        stored = [_local(weight) for weight in weights]
        buffer, exact = _copies(stored, torch.float32)
        adamw(
            exact,
            _copies([_local(one) for one in gradients], torch.float32)[1],
            [_local(state["exp_avg"]) for state in states],
            [_local(state["exp_avg_sq"]) for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        torch._foreach_copy_(stored, _views(rounded(buffer), stored))


def rounded(exact: Tensor) -> Tensor:
    """Round float32 to bfloat16 stochastically and without bias; keep infinities and NaN."""
    bits = exact.view(torch.int32)
    noise = torch.randint_like(bits, 1 << 16)
    result = ((bits + noise) & -(1 << 16)).view(torch.float32)
    return torch.where(exact.isfinite(), result, exact).to(torch.bfloat16)


def _buckets(weights: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield weights of one device in groups of about :data:`BUCKET` elements, at least one in each."""
    bucket: list[Tensor] = []
    count = 0
    for weight in weights:
        size = _local(weight).numel()
        if bucket and (count + size > BUCKET or weight.device != bucket[0].device):
            yield bucket
            bucket, count = [], 0
        bucket.append(weight)
        count += size
    if bucket:
        yield bucket


def _local(tensor: Tensor) -> Tensor:
    """Return the slice of a sharded tensor that this rank has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """Return a flat buffer with all elements, and views of it in the shapes of the tensors."""
    count = sum(one.numel() for one in tensors)
    buffer = torch.empty(count, dtype=dtype, device=tensors[0].device)
    views = _views(buffer, tensors)
    torch._foreach_copy_(views, list(tensors))
    return buffer, views


def _views(buffer: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    parts = buffer.split([one.numel() for one in tensors])
    return [part.view(one.shape) for part, one in zip(parts, tensors, strict=True)]
