"""The clipped policy gradient: sampled tokens become likelier by their advantage, within a trust region.

Per trained token, with ratio = p / p_old and A its advantage:

    loss = w * max(-ratio * A, -clip(ratio, 1 - clip_low, 1 + clip_high) * A)     at most -dual_clip * A * w where A < 0
         + kl * divergence - entropy * H

PPO, GRPO and DAPO are this under different settings and with other advantages. Schulman et al. 2017 (PPO, equation 7);
each side has a clip of its own as in DAPO (arXiv 2503.14476, equation 10); the dual clip is that of Ye et al. 2020
(arXiv 1912.09729, equation 5). H is the entropy of the distribution that the token was drawn from, over the whole
vocabulary. The mean is one of :mod:`coterie.training.means`, the divergence one of :mod:`coterie.training.divergence`.

p_old is what the token was sampled with: as the engine said (``old=behaviour``), or as the trainer computed it under
the weights that sampled, before it changed them (``old=recomputed``, :mod:`coterie.training.recomputed`). In the second
case ``importance`` corrects for what the engine computes differently: w = p_old / p_engine of each token, cut at
``importance_cap`` or set to 0 above it, without a gradient (truncated importance sampling; masked).

All are of the distribution that was sampled from: logits divided by ``temperature``. Rows that were sampled at another
one, or from a part of the distribution (top_p), are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from coterie.errors import UserError
from coterie.training.divergence import divergence, log_ratio
from coterie.training.means import row_count, row_scale
from coterie.training.measures import Measure
from coterie.training.objective import Reads, TargetValue
from coterie.training.on_rows import OnRows
from coterie.training.settings import PolicyGradientSettings
from coterie.training.targets import at_predicted
from coterie.trajectories.row import Row


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What is known of each trained token of a row, all ``(tokens,)``."""

    losses: torch.Tensor
    measures: Mapping[str, Measure]


class PolicyGradient(OnRows):
    """The item is a :class:`Row` with ``advantages`` of its targets, and what the settings need: ``logprobs`` (the
    engine's), ``old`` (the trainer's), ``reference`` if kl > 0.
    """

    name = "policy gradient"
    refuses = ("a policy gradient", "say by advantages below 0 that it was bad")

    def __init__(self, settings: PolicyGradientSettings | None = None) -> None:
        self.settings = settings or PolicyGradientSettings()
        self.reads: Reads = "entropies" if self.settings.entropy else "shown entropies"
        self.needs: Sequence[TargetValue] = _needs(self.settings)

    @property
    def temperature(self) -> float:
        return self.settings.temperature

    def count(self, item: Row) -> float:
        """Its share of the denominator, as the mean says; ``UserError`` for a row from another distribution."""
        super().count(item)
        _refuse_other_distribution(item, self.settings.temperature)
        return row_count(item, self.settings.mean)

    def losses(self, items: Sequence[Row], read: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
        """Per row, scale * sum over its trained tokens; shape ``(rows,)``."""
        s = self.settings
        sums = [
            row_scale(row, s.mean, s.constant) * self._tokens(row, values).losses.sum()
            for row, (values,) in zip(items, read, strict=True)
        ]
        return torch.stack(sums)

    def measures(
        self, items: Sequence[Row], read: Sequence[Sequence[torch.Tensor]]
    ) -> dict[str, Measure]:
        """Of all trained tokens of these rows, where it is known.

        ``ratio`` (with extremes); ``clip_share``, of tokens that a clip keeps from moving; ``policy_kl``, from p_old by
        k3; ``entropy``; ``reference_kl``, by k3; ``engine_ratio``, p_old / p_engine before anything is cut (with
        extremes); ``engine_cut_share``.
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
        apart = log_ratio(logprobs, old)
        ratio = apart.exp()
        clipped = ratio.clamp(1 - s.clip_low, 1 + s.clip_high)
        losses = torch.maximum(-ratio * advantages, -clipped * advantages)
        still = losses > -ratio * advantages
        if s.dual_clip is not None:
            most = torch.where(advantages < 0, -s.dual_clip * advantages, torch.inf)
            still |= losses > most
            losses = torch.minimum(losses, most)
        measures = {
            "ratio": Measure(ratio, extremes=True),
            "clip_share": Measure(still),
            "policy_kl": Measure(ratio - 1 - apart),
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


def _refuse_other_distribution(row: Row, temperature: float) -> None:
    """Ratios of log-probs of different distributions say nothing of how far a policy has moved."""
    for target in row.targets:
        if target.temperature != temperature:
            raise UserError(
                f"row {row.origin or '?'} was sampled at temperature {target.temperature:g}, and the policy "
                f"gradient reads the distribution at {temperature:g}",
                "set the objective's temperature to that of sampling",
            )
        if target.top_p != 1.0:
            raise UserError(
                f"row {row.origin or '?'} was sampled with top_p={target.top_p:g}: which tokens could not be drawn "
                "is not recorded, so its log-probs can't be computed again",
                "sample with top_p=1",
            )


def _joined(measures: Sequence[Measure]) -> Measure:
    return Measure(torch.cat([one.values for one in measures]), measures[0].extremes)
