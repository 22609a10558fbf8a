"""Policy gradient losses: PPO, GSPO and CISPO, their mean over the tokens of a step, and the KL penalty.

Per trained token, with A its advantage, ratio = p / p_old, and clip(x) between 1 - clip_low and 1 + clip_high:

    ppo     w * max(-ratio * A, -clip(ratio) * A)     at most -dual_clip * A * w if A < 0
    gspo    as ppo, with ratio = exp(mean of log(p / p_old) over the trained tokens of the row)
    cispo   -w * clip(ratio) * A * log p              without a gradient of the ratio

plus kl_coef * divergence - entropy_coef * H. H is the entropy of the token's distribution over the whole vocabulary.

* ``ppo``: PPO, GRPO and DAPO, with different settings and advantages. Schulman et al. 2017 (PPO, equation 7), separate
  clips as in DAPO (arXiv 2503.14476, equation 10), dual clip of Ye et al. 2020 (arXiv 1912.09729, equation 5).
* ``gspo``: arXiv 2507.18071, in the form of its equation 13 (GSPO-token): all tokens of a sequence have the value of
  its ratio, and each has the gradient of its own log-prob. With one advantage for the sequence it has the gradient of
  equation 5; with an advantage for each turn or token the credit stays there. A sequence is a row, so each segment
  of a path whose template rewrites the history has its own ratio.
* ``cispo``: MiniMax-M1, arXiv 2506.13585, equations 4 and 5. A clipped token keeps its gradient. The paper has no lower
  clip (``clip_low=1``). The maximum weight is 1 + clip_high, which TRL calls ``epsilon_high``.

Dr. GRPO (arXiv 2503.20783) is ``ppo`` with ``aggregation=constant`` and advantages that are not divided by the standard
deviation (``advantage.baseline=mean``).

p_old is the probability at sampling: from the engine (``old_logprobs=behavior``), or computed by the trainer under the
same weights before it changes them (``old_logprobs=recomputed``, :mod:`coterie.training.reference`). In the second case
``importance_sampling`` corrects for the numerical difference of the engine: w = p_old / p_engine of each token
(``token_truncate``, ``token_mask``), or the product of these ratios over the trained tokens of the row
(``sequence_truncate``, ``sequence_mask``; names of TRL's ``vllm_importance_sampling_mode``). It has no gradient, and is
truncated at ``importance_sampling_cap`` or masked (set to 0) above it.

**On-policy distillation.** ``distill_coef`` adds distill_coef * (log p_teacher - log p_old) to the advantage of each
token (Lu, "On-Policy Distillation", Thinking Machines Lab 2025; Agarwal et al., arXiv 2306.13649, with the reverse KL).
For tokens drawn from p the expected gradient equals the gradient of distill_coef * KL(p, p_teacher) at each token given
the tokens before it: earlier tokens get no credit for later divergence. ``Row.teacher`` has the log-probs of a frozen
model, or of the policy itself under a prompt with privileged information, at the same temperature.

All log-probs are of the sampling distribution: logits divided by ``temperature``. Rows that were sampled at another
temperature or with top_p < 1 raise an error.

**Aggregation.** Implementations of the same algorithm define the mean over the tokens of a step differently:

* ``token``: mean over all trained tokens of the step (DAPO, arXiv 2503.14476, section 3.3); long paths weigh more.
* ``sequence``: mean over the step's paths of the mean over a path's trained tokens (GRPO, arXiv 2402.03300, eq. 3).
* ``constant``: mean over the step's paths of the sum over a path's trained tokens divided by a constant (Dr. GRPO,
  arXiv 2503.20783).

A path has all tokens of one agent up to one leaf, in one or several rows (segments). Each row has the number of tokens
of its path (``Row.path_tokens``) and counts as that share of it. Numerator and denominator use the same tokens and
weights, so a row of weight 0 is in neither.

**Divergence.** For a token drawn from p, with d = log p - log p_ref (Schulman, "Approximating KL Divergence", 2020):

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

from collections.abc import Mapping, Sequence

import torch

from coterie.errors import UserError
from coterie.record.rows import Row
from coterie.training.losses import Measure, OnTokens, TargetValue, Values, at_predicted
from coterie.training.settings import Aggregation, KLEstimator, PolicyGradientSettings, Reads


def row_count(row: Row, aggregation: Aggregation) -> float:
    """Return the row's share of the denominator: its weighted tokens (``token``), or its weighted share of its path."""
    # A path may have several rows, which are in different micro-batches or on different ranks. Each
    # counts its share of the tokens, so that the rows of a path add up to its weight.
    tokens = sum(map(len, row.predicted))
    return row.weight * (tokens if aggregation == "token" else tokens / path_tokens(row))


def row_scale(row: Row, aggregation: Aggregation, length_constant: int | None) -> float:
    # `loss` sums over the row's tokens. Divided by the tokens of the whole path, the sums of all
    # rows of a path add up to the path's mean.
    if aggregation == "token":
        return row.weight
    return row.weight / ((length_constant or 1) if aggregation == "constant" else path_tokens(row))


def path_tokens(row: Row) -> int:
    """Return the trained tokens of the row's path. Raises ``UserError`` if unknown, or fewer than the row's own."""
    own_tokens = sum(map(len, row.predicted))
    if row.path_tokens is None or row.path_tokens < own_tokens:
        raise UserError(
            f"row {row.origin or '?'} has {own_tokens} trained tokens but path_tokens={row.path_tokens}",
            "set path_tokens to the sum over all rows of the path (record.rows.rows does), or use mean=token",
        )
    # Rows of a path without trained tokens count 0; avoid 0 / 0.
    return max(row.path_tokens, 1)


MOST_LOG_RATIO = 20.0
"""Bound of the absolute log-ratio, so that ``exp`` can't overflow. Beyond it the gradient is 0."""


def log_ratio(above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    """Return ``above - below``, clamped to ±:data:`MOST_LOG_RATIO`."""
    return (above - below).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)


def divergence(
    kind: KLEstimator, logprobs: torch.Tensor, reference: torch.Tensor, ratio: torch.Tensor
) -> torch.Tensor:
    """Return the term of each token, in nats; ``ratio`` is p / p_old, with its gradient. All ``(tokens,)``."""
    difference = log_ratio(logprobs, reference)
    if kind == "k2":
        return difference.square() / 2
    # k3 is never negative, unlike k1, and has less variance.
    value = (-difference).exp() - 1 + difference
    return value * ratio if kind == "k3" else value


def sequence_ratio(log_ratios: torch.Tensor) -> torch.Tensor:
    """Return GSPO's ratio of a sequence for each of its tokens, given their log-ratios, both ``(tokens,)``.

    All values are exp of the mean log-ratio; each has the gradient of its own token's log-ratio, times the value.
    """
    return (log_ratios.detach().mean() + (log_ratios - log_ratios.detach())).exp()


class PolicyGradient(OnTokens):
    """Policy gradient on :class:`Row` items.

    Rows need ``advantages``, and depending on the settings ``logprobs`` (from the engine), ``old`` (from the trainer),
    ``reference`` (for ``kl_coef`` above 0) and ``teacher`` (for ``distill_coef`` above 0).
    """

    name = "policy gradient"

    def __init__(self, settings: PolicyGradientSettings | None = None) -> None:
        self.settings = settings or PolicyGradientSettings()
        # The entropy is a metric in any case. Its gradient takes memory for each logit, so it is
        # computed only for an entropy bonus.
        self.reads: Reads = "entropies" if self.settings.entropy_coef else "entropies_no_grad"
        s, needs = self.settings, list[TargetValue](["advantages"])
        # The engine's log-probs are p_old, or the denominator of the importance weight.
        is_sampled = s.old_logprobs == "behavior"
        needs += ["logprobs"] if is_sampled or s.importance_sampling != "off" else []
        needs += [] if is_sampled else ["old"]
        needs += ["reference"] if s.kl_coef else []
        self.needs: Sequence[TargetValue] = [*needs, "teacher"] if s.distill_coef else needs

    @property
    def temperature(self) -> float:
        """Temperature at which the rows were sampled."""
        return self.settings.temperature

    def count(self, item: Row) -> float:
        """Return the row's share of the denominator. Raises ``UserError`` for another sampling distribution."""
        # Negative weights raise an error; a negative advantage is the way to train against a row.
        self.weight(item)
        _check_distribution(item, self.settings.temperature)
        return row_count(item, self.settings.aggregation)

    def scale(self, row: Row) -> float:
        return row_scale(row, self.settings.aggregation, self.settings.length_constant)

    def facts(
        self, items: Sequence[Row], read: Values, measures: Mapping[str, Measure]
    ) -> list[dict[str, torch.Tensor]]:
        """Return the log-prob and entropy of each trained token, and whether it was clipped."""
        # The measures are joined over the rows of the micro-batch, in the same order.
        clipped = measures["clip_share"].values.split([len(values) for (values,) in read])
        return [
            {"logprob": values[:, 0], "entropy": values[:, 1], "clipped": is_clipped}
            for (values,), is_clipped in zip(read, clipped, strict=True)
        ]

    def tokens(
        self, rows: Sequence[Row], values: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, Measure]]:
        """Return the losses, and as measures:

        ``ratio`` (with extremes); ``clip_share``: share of clipped tokens, which have no gradient (except with
        ``cispo``), and ``clip_share_low`` and ``clip_share_high``: its parts with a ratio below and above 1;
        ``policy_kl``: k3 estimate from p_old; ``entropy``; ``reference_kl`` and ``teacher_kl``: k3 estimates;
        ``engine_kl``: k3 estimate of the trainer's p_old from p_engine; ``engine_ratio``: p_old / p_engine before
        truncation (with extremes); ``engine_cut_share``: share of tokens above ``importance_sampling_cap``.
        """
        s, lengths = self.settings, [len(of_row) for of_row in values]
        # `(tokens, 2)`: log-prob and entropy of each trained token of all rows.
        logprobs, entropies = torch.cat(list(values)).unbind(-1)
        name: TargetValue = "logprobs" if s.old_logprobs == "behavior" else "old"
        old = at_predicted(rows, name, logprobs)
        advantages = at_predicted(rows, "advantages", logprobs)
        # Probability ratio p / p_old of PPO, equation 7. At ratio 1 it has the gradient of log p.
        log_ratios = log_ratio(logprobs, old)
        token_ratio = log_ratios.exp()
        measures = {"policy_kl": token_ratio - 1 - log_ratios, "entropy": entropies}
        if s.distill_coef:
            # Teacher and old log-probs are constants, so only log p has a gradient.
            teacher = at_predicted(rows, "teacher", logprobs)
            advantages = advantages + s.distill_coef * log_ratio(teacher, old)
            measures["teacher_kl"] = divergence("k3_forward", logprobs, teacher, token_ratio)
        ratio = token_ratio
        if s.kind == "gspo":
            ratio = torch.cat([sequence_ratio(of_row) for of_row in log_ratios.split(lengths)])
        clipped = ratio.clamp(1 - s.clip_low, 1 + s.clip_high)
        if s.kind == "cispo":
            # The weight is a constant, so a clipped token is trained, too.
            losses = -clipped.detach() * advantages * logprobs
            is_clipped = clipped != ratio
        else:
            # The maximum of two losses is the minimum of two objectives, a pessimistic bound. The
            # two clips may differ, as in DAPO's equation 10.
            losses = torch.maximum(-ratio * advantages, -clipped * advantages)
            # A token whose clipped term is larger has no gradient. Equality, as at ratio 1, is no
            # clipping.
            is_clipped = losses > -ratio * advantages
        if s.dual_clip is not None:
            # Dual clip (Ye et al. 2020, equation 5): for a negative advantage, PPO's clip does not
            # bound the loss of a token whose ratio has grown.
            limit = torch.where(advantages < 0, -s.dual_clip * advantages, torch.inf)
            is_clipped |= losses > limit
            losses = torch.minimum(losses, limit)
        # A ratio of 1 is never clipped, so the two sides add up to the whole share.
        sides = {"low": is_clipped & (ratio < 1), "high": is_clipped & (ratio > 1)}
        measures |= {"ratio": ratio, "clip_share": is_clipped}
        measures |= {f"clip_share_{side}": is_side for side, is_side in sides.items()}
        if s.old_logprobs == "recomputed" and all(row.logprobs is not None for row in rows):
            # Both log-probs are under the same weights. They differ because the engine and the
            # trainer use other kernels, precision or batch sizes; both are constants here.
            log_weights = log_ratio(old, at_predicted(rows, "logprobs", logprobs))
            measures["engine_kl"] = log_weights.exp() - 1 - log_weights
            if s.importance_sampling.startswith("sequence"):
                # The probability of a sequence is the product of its tokens' probabilities.
                totals = (of_row.sum().expand_as(of_row) for of_row in log_weights.split(lengths))
                log_weights = torch.cat([*totals]).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)
            weights = log_weights.exp()
            measures["engine_ratio"] = weights
            if s.importance_sampling != "off":
                # Large weights have a large variance: cut them at the cap, or leave the token out.
                # Masked tokens still count in the denominator.
                over = weights > s.importance_sampling_cap
                measures["engine_cut_share"] = over
                is_mask = s.importance_sampling.endswith("mask")
                cut = 0.0 if is_mask else s.importance_sampling_cap
                losses = losses * torch.where(over, cut, weights)
        if s.kl_coef:
            # The divergence has its own ratio (`k3`), so the importance weight does not apply to
            # it.
            reference = at_predicted(rows, "reference", logprobs)
            losses = losses + s.kl_coef * divergence(
                s.kl_estimator, logprobs, reference, token_ratio
            )
            # The metric needs the value of the divergence, for which k3 is right in all settings.
            measures["reference_kl"] = divergence("k3_forward", logprobs, reference, token_ratio)
        if s.entropy_coef:
            losses = losses - s.entropy_coef * entropies
        # The measures have no gradient. Every second number of `values` would be summed in another order.
        return losses, {
            name: Measure(of_tokens.detach().contiguous(), name.endswith("ratio"))
            for name, of_tokens in measures.items()
        }


def _check_distribution(row: Row, temperature: float) -> None:
    """Raise ``UserError`` if log-probs of sampling and training are of different distributions."""
    for target in row.targets:
        # A ratio of two distributions of different temperature is not 1 for unchanged weights.
        if target.temperature != temperature:
            raise UserError(
                f"row {row.origin or '?'} was sampled at temperature {target.temperature:g}, but the policy "
                f"gradient has temperature {temperature:g}",
                "use the same temperature for both",
            )
        if target.top_p != 1.0:
            raise UserError(
                f"row {row.origin or '?'} was sampled with top_p={target.top_p:g}, so its log-probs can't be "
                "recomputed: the excluded tokens are not recorded",
                "sample with top_p=1",
            )
