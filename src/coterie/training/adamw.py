"""AdamW for weights in float32 and in bfloat16.

A bfloat16 weight has 8 significant bits. Most fine-tuning updates are smaller than half the last bit, so rounding to
nearest would lose them. Both moments and the update are computed in float32, and the new weight is rounded
stochastically, without bias. The random bits come from torch's generator of the device, whose state is in checkpoints.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw


class AdamW(torch.optim.AdamW):
    """Fused AdamW of torch, with float32 moments and stochastic rounding for bfloat16 weights."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient; clear the gradients of bfloat16 weights."""
        low = [
            (group, weight, weight.grad)
            for group in self.param_groups
            for weight in group["params"]
            if weight.dtype == torch.bfloat16 and weight.grad is not None
        ]
        for _, weight, _ in low:
            weight.grad = None
        super().step(closure)
        for group, weight, gradient in low:
            self._update(group, weight, gradient)

    def _update(self, group: dict[str, Any], weight: torch.Tensor, gradient: torch.Tensor) -> None:
        state, exact = self.state[weight], weight.float()
        if not state:
            state["step"] = torch.zeros((), device=weight.device)
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(exact) for _ in range(2))
        adamw(
            *([exact], [gradient.float()], [state["exp_avg"]], [state["exp_avg_sq"]], []),
            [state["step"]],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        weight.copy_(rounded(exact))


def rounded(exact: torch.Tensor) -> torch.Tensor:
    """Round float32 to bfloat16 stochastically and without bias; keep infinities and NaN."""
    if isinstance(exact, DTensor):
        local = rounded(exact.to_local())
        return DTensor.from_local(
            local, exact.device_mesh, exact.placements, shape=exact.shape, stride=exact.stride()
        )
    bits = exact.view(torch.int32)
    noise = torch.randint_like(bits, 1 << 16)
    result = ((bits + noise) & -(1 << 16)).view(torch.float32)
    return torch.where(exact.isfinite(), result, exact).to(torch.bfloat16)
