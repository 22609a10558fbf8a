"""Estimates of the divergence from a reference, of sampled tokens, as terms of a loss.

Of a token drawn from p, with d = log p - log p_ref (Schulman, "Approximating KL Divergence", 2020):

* k1 = d, k2 = d² / 2, k3 = exp(-d) - 1 + d.

As values k1 and k3 are unbiased for KL(p, p_ref). What a loss needs is the right *gradient*, which is another matter,
because the tokens were drawn from p as well:

* ``k2``: its gradient is d · grad log p, of which the mean over tokens drawn from p is the gradient of KL(p, p_ref).
* ``k3``: k3 times the ratio p / p_old, so that the way in which p draws counts too. Its gradient is that of KL(p,
  p_ref), also for tokens drawn from p_old.
* ``k3_forward``: k3 alone, as in GRPO's paper (arXiv 2402.03300, equation 4). Its gradient is that of KL(p_ref, p), the
  other direction.
* k1 in a loss has a gradient that is 0 in the mean, so it is none of these. It belongs into the reward
  (:func:`coterie.rewards.advantages.kl_rewards`).
"""

import torch

from coterie.training.settings import Divergence

MOST_LOG_RATIO = 20.0
"""Log-ratios are held within this of 0: beyond it ``exp`` would soon overflow. There they have no gradient."""


def log_ratio(above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    """``above - below``, held within :data:`MOST_LOG_RATIO` of 0."""
    return (above - below).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)


def divergence(
    kind: Divergence, logprobs: torch.Tensor, reference: torch.Tensor, ratio: torch.Tensor
) -> torch.Tensor:
    """The term of each token, in nats; ``ratio`` is p / p_old, with its gradient. All ``(tokens,)``."""
    apart = log_ratio(logprobs, reference)
    if kind == "k2":
        return apart.square() / 2
    value = (-apart).exp() - 1 + apart
    return value * ratio if kind == "k3" else value
