"""How good each of several replies is at one turn, to rank them: the step critic and its rivals.

A critic may see more than the agent: the prompt is the critic's own (``ChatRenderer.render`` with
``privileges``), the candidates are the agent's sampled ids.

SWEET-RL (arXiv 2503.15478, equation 3) takes as the advantage of a turn the mean over its tokens of
log pi_critic - log pi_ref, both given what the critic sees. The rivals are those of its ablations: a
regression head, a value function (:class:`HeadCritic`), a judge (``rewards.judge``).
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Literal, Protocol

import torch

from coterie.engines.protocol import Engine, EngineError
from coterie.models.check import check
from coterie.models.heads import token_values
from coterie.models.loading import LoadedModel
from coterie.models.packing import CostRule
from coterie.models.splitting import Splitter

SCORED_TOKENS = 1 << 14
"""Padded tokens of one pass of a :class:`HeadCritic`, unless one candidate needs more."""


class StepCritic(Protocol):
    """Scores candidates for one turn; only their order and differences mean something."""

    async def advantages(
        self, prompt: Sequence[int], candidates: Sequence[Sequence[int]]
    ) -> list[float]:
        """A number for each candidate that could follow ``prompt``, higher for better.

        Raises :class:`~coterie.engines.protocol.EngineError` for what can't be scored.
        """
        ...


class LikelihoodCritic:
    """A language model trained as a critic (``DPO`` on trajectories), against what it was before.

    ``tokens`` takes the mean log-ratio over a candidate's tokens, ``none`` the sum.
    """

    def __init__(
        self, critic: Engine, reference: Engine, normalise: Literal["tokens", "none"] = "tokens"
    ) -> None:
        self.critic = critic
        self.reference = reference
        self.normalise = normalise

    async def advantages(
        self, prompt: Sequence[int], candidates: Sequence[Sequence[int]]
    ) -> list[float]:
        """Log-ratios in nats, a token or in all; the prompt is read once by each model."""
        ours, before = await asyncio.gather(
            self.critic.logprobs(prompt, candidates), self.reference.logprobs(prompt, candidates)
        )
        ratios = [sum(one) - sum(other) for one, other in zip(ours, before, strict=True)]
        if self.normalise == "tokens":
            lengths = map(len, candidates)
            ratios = [ratio / length for ratio, length in zip(ratios, lengths, strict=True)]
        return _checked(ratios)


class HeadCritic:
    """A model with a value head, in this process.

    ``mean`` is the mean value over a candidate's tokens (trained by ``Regression``), ``last`` the
    value at its last token (trained by ``Classifier``: the logit of success). With a ``rule`` what
    candidates share is computed once.
    """

    def __init__(
        self, loaded: LoadedModel, pool: Literal["mean", "last"], rule: CostRule | None = None
    ) -> None:
        check(loaded.model)
        self.loaded = loaded
        self.pool = pool
        self.rule = rule

    async def advantages(
        self, prompt: Sequence[int], candidates: Sequence[Sequence[int]]
    ) -> list[float]:
        """Pooled values. Raises ``EngineError`` for an empty candidate or one beyond the context."""
        if not prompt or not all(map(len, candidates)):
            raise EngineError("values need a prompt and candidates, none of them empty")
        sequences = [(*prompt, *candidate) for candidate in candidates]
        if (longest := max(map(len, sequences), default=0)) > self.loaded.context_length:
            raise EngineError(
                f"context overflow: {longest} tokens, but the critic takes "
                f"{self.loaded.context_length}"
            )
        start = len(prompt)
        splitter = Splitter([[ids] for ids in sequences], self.rule, SCORED_TOKENS)
        found = [0.0] * len(sequences)
        for part in splitter.microbatches(splitter.families(range(len(sequences))))[0]:
            for index, value in zip(part, self._pooled(part, sequences, start), strict=True):
                found[index] = value
        return _checked(found)

    @torch.inference_mode()
    def _pooled(
        self, part: Sequence[int], sequences: Sequence[tuple[int, ...]], start: int
    ) -> list[float]:
        chosen = [sequences[i] for i in part]
        begin = start if self.pool == "mean" else -1
        places = [range(len(ids))[begin:] for ids in chosen]
        return [float(v.mean()) for v in token_values(self.loaded.model, chosen, places, self.rule)]


def _checked(numbers: list[float]) -> list[float]:
    """The numbers, or ``EngineError`` if one is not finite: it would have some place in any order."""
    if not all(map(math.isfinite, numbers)):
        raise EngineError(f"the critic's scores are not all numbers: {numbers}")
    return numbers
