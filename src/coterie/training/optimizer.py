"""AdamW as one fused step, and the learning rate as a plain function of the step."""

import math
from collections.abc import Mapping

import torch
from torch import nn

from coterie.errors import UserError
from coterie.training.settings import TrainingSettings


def make_optimizer(
    weights: Mapping[str, nn.Parameter], settings: TrainingSettings
) -> torch.optim.AdamW:
    """AdamW that decays matrices only (norms and biases are vectors)."""
    matrices = [weight for weight in weights.values() if weight.ndim > 1]
    vectors = [weight for weight in weights.values() if weight.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    filled = [group for group in groups if group["params"]]
    return torch.optim.AdamW(filled, lr=settings.learning_rate, betas=settings.betas, fused=True)


def check_schedule(settings: TrainingSettings, total: int | None) -> None:
    """Refuse a schedule that goes by the number of steps where that is not known."""
    if total is None and (settings.schedule != "constant" or settings.warmup_ratio):
        raise UserError(
            f"schedule={settings.schedule} with warmup_ratio={settings.warmup_ratio} goes by the number of steps, "
            "which is not known",
            "say how many steps there will be, or use schedule=constant warmup_ratio=0",
        )


def rate_at(step: int, total: int | None, settings: TrainingSettings) -> float:
    """Learning rate of a step (from 0): a linear climb, then the schedule down to zero at the end.

    It is constant where the number of steps is not known.
    """
    if total is None:
        return settings.learning_rate
    climb = math.ceil(settings.warmup_ratio * total)
    if step < climb:
        return settings.learning_rate * (step + 1) / climb
    done = (step - climb) / max(total - climb, 1)
    shape = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 + 0.5 * math.cos(math.pi * done),
    }
    return settings.learning_rate * shape[settings.schedule]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
