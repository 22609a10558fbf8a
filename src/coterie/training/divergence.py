"""Divergence of sampled tokens from a reference, estimated as a term of the loss.

For a token drawn from p, with d = log p - log p_ref (Schulman, "Approximating KL Divergence", 2020):

* k1 = d, k2 = d² / 2, k3 = exp(-d) - 1 + d.

The values of k1 and k3 are unbiased for KL(p, p_ref). A loss needs the right *gradient* instead, and the distribution
of the tokens depends on p too:

* ``k2``: has the gradient d · grad log p; its mean over tokens drawn from p is the gradient of KL(p, p_ref).
* ``k3``: k3 times the ratio p / p_old, to account for the sampling. Its expected gradient is the gradient of
  KL(p, p_ref), also for tokens drawn from p_old.
* ``k3_forward``: k3 alone, as in GRPO's paper (arXiv 2402.03300, equation 4). Its expected gradient is the gradient of
  KL(p_ref, p), the reverse direction.
* k1 in a loss has an expected gradient of 0. It belongs in the reward (:func:`coterie.rewards.advantages.kl_rewards`).
"""

import torch

from coterie.training.settings import Divergence

MOST_LOG_RATIO = 20.0
"""Bound of the absolute log-ratio, so that ``exp`` can't overflow. Beyond it the gradient is 0."""


def log_ratio(above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    """Return ``above - below``, clamped to ±:data:`MOST_LOG_RATIO`."""
    return (above - below).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)


def divergence(
    kind: Divergence, logprobs: torch.Tensor, reference: torch.Tensor, ratio: torch.Tensor
) -> torch.Tensor:
    """Return the term of each token, in nats; ``ratio`` is p / p_old, with its gradient. All ``(tokens,)``."""
    difference = log_ratio(logprobs, reference)
    if kind == "k2":
        return difference.square() / 2
    value = (-difference).exp() - 1 + difference
    return value * ratio if kind == "k3" else value
