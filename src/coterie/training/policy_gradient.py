"""Clipped policy gradient.

Per trained token, with ratio = p / p_old and A its advantage:

    loss = w * max(-ratio * A, -clip(ratio, 1 - clip_low, 1 + clip_high) * A)     at most -dual_clip * A * w if A < 0
         + kl * divergence - entropy * H

PPO, GRPO and DAPO use this loss with different settings and advantages: Schulman et al. 2017 (PPO, equation 7),
separate clips as in DAPO (arXiv 2503.14476, equation 10), dual clip of Ye et al. 2020 (arXiv 1912.09729, equation 5).
H is the entropy of the token's distribution over the whole vocabulary. See :mod:`coterie.training.means` for the mean
and :mod:`coterie.training.divergence` for the divergence.

p_old is the probability at sampling: from the engine (``old=behaviour``), or computed by the trainer under the same
weights before it changes them (``old=recomputed``, :mod:`coterie.training.recomputed`). In the second case
``importance`` corrects for the numerical difference of the engine: w = p_old / p_engine of each token, without a
gradient, truncated at ``importance_cap`` or masked (set to 0) above it.

All log-probs are of the sampling distribution: logits divided by ``temperature``. Rows that were sampled at another
temperature or with top_p < 1 raise an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from coterie.errors import UserError
from coterie.record.rows import Row
from coterie.training.divergence import divergence, log_ratio
from coterie.training.means import row_count, row_scale
from coterie.training.measures import Measure
from coterie.training.objective import Reads, TargetValue
from coterie.training.on_rows import OnRows
from coterie.training.settings import PolicyGradientSettings
from coterie.training.targets import at_predicted


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Losses and measures of the trained tokens of a row, all ``(tokens,)``."""

    losses: torch.Tensor
    measures: Mapping[str, Measure]


class PolicyGradient(OnRows):
    """Policy gradient on :class:`Row` items.

    Rows need ``advantages``, and depending on the settings ``logprobs`` (from the engine), ``old`` (from the trainer)
    and ``reference`` (for kl > 0).
    """

    name = "policy gradient"
    refuses = ("a policy gradient", "use negative advantages for a bad row")

    def __init__(self, settings: PolicyGradientSettings | None = None) -> None:
        self.settings = settings or PolicyGradientSettings()
        self.reads: Reads = "entropies" if self.settings.entropy else "shown entropies"
        self.needs: Sequence[TargetValue] = _needs(self.settings)

    @property
    def temperature(self) -> float:
        return self.settings.temperature

    def count(self, item: Row) -> float:
        """Return the row's share of the denominator. Raises ``UserError`` for another sampling distribution."""
        super().count(item)
        _check_distribution(item, self.settings.temperature)
        return row_count(item, self.settings.mean)

    def losses(self, items: Sequence[Row], read: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
        """Return scale * sum over the trained tokens of each row, shape ``(rows,)``."""
        s = self.settings
        sums = [
            row_scale(row, s.mean, s.constant) * self._tokens(row, values).losses.sum()
            for row, (values,) in zip(items, read, strict=True)
        ]
        return torch.stack(sums)

    def measures(
        self, items: Sequence[Row], read: Sequence[Sequence[torch.Tensor]]
    ) -> dict[str, Measure]:
        """Return measures of all trained tokens of the rows.

        ``ratio`` (with extremes); ``clip_share``: share of clipped tokens, which have no gradient; ``policy_kl``: k3
        estimate from p_old; ``entropy``; ``reference_kl``: k3 estimate; ``engine_ratio``: p_old / p_engine before
        truncation (with extremes); ``engine_cut_share``: share of tokens above ``importance_cap``.
        """
        rows = [
            self._tokens(row, values).measures for row, (values,) in zip(items, read, strict=True)
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: _joined([row[name] for row in rows if name in row]) for name in names}

    def _tokens(self, row: Row, read: torch.Tensor) -> _Tokens:
        s = self.settings
        logprobs, entropies = read.unbind(-1)
        name: TargetValue = "logprobs" if s.old == "behaviour" else "old"
        old = at_predicted(row, name, logprobs)
        advantages = at_predicted(row, "advantages", logprobs)
        log_ratios = log_ratio(logprobs, old)
        ratio = log_ratios.exp()
        clipped = ratio.clamp(1 - s.clip_low, 1 + s.clip_high)
        losses = torch.maximum(-ratio * advantages, -clipped * advantages)
        is_clipped = losses > -ratio * advantages
        if s.dual_clip is not None:
            limit = torch.where(advantages < 0, -s.dual_clip * advantages, torch.inf)
            is_clipped |= losses > limit
            losses = torch.minimum(losses, limit)
        measures = {
            "ratio": Measure(ratio, extremes=True),
            "clip_share": Measure(is_clipped),
            "policy_kl": Measure(ratio - 1 - log_ratios),
            "entropy": Measure(entropies),
        }
        if s.old == "recomputed" and row.logprobs is not None:
            weights = log_ratio(old, at_predicted(row, "logprobs", logprobs)).exp()
            measures["engine_ratio"] = Measure(weights, extremes=True)
            if s.importance != "off":
                over = weights > s.importance_cap
                measures["engine_cut_share"] = Measure(over)
                cut = 0.0 if s.importance == "mask" else s.importance_cap
                losses = losses * torch.where(over, cut, weights)
        if s.kl:
            reference = at_predicted(row, "reference", logprobs)
            losses = losses + s.kl * divergence(s.divergence, logprobs, reference, ratio)
            value = divergence("k3_forward", logprobs, reference, ratio)
            measures["reference_kl"] = Measure(value)
        if s.entropy:
            losses = losses - s.entropy * entropies
        return _Tokens(losses, measures)


def _needs(settings: PolicyGradientSettings) -> tuple[TargetValue, ...]:
    needs: list[TargetValue] = ["advantages"]
    if settings.old == "behaviour" or settings.importance != "off":
        needs.append("logprobs")
    if settings.old == "recomputed":
        needs.append("old")
    if settings.kl:
        needs.append("reference")
    return tuple(needs)


def _check_distribution(row: Row, temperature: float) -> None:
    """Raise ``UserError`` if log-probs of sampling and training are of different distributions."""
    for target in row.targets:
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


def _joined(measures: Sequence[Measure]) -> Measure:
    return Measure(torch.cat([one.values for one in measures]), measures[0].extremes)
