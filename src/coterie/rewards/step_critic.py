"""Critics that score the candidates of one turn.

A critic may see more than the agent: it has its own prompt (``ChatRenderer.render`` with ``privileges``), followed by
the agent's sampled ids.

In SWEET-RL (arXiv 2503.15478, equation 3) the advantage of a turn is the mean over its tokens of log pi_critic - log
pi_ref under the critic's prompt. Its ablations use a regression head, a value function (:class:`HeadCritic`) or a judge
(``rewards.judge``).
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
"""Maximum padded tokens of one forward pass of a :class:`HeadCritic`, unless one candidate needs more."""


class StepCritic(Protocol):
    """Scores candidates of one turn; only order and differences are meaningful."""

    async def advantages(
        self, prompt: Sequence[int], candidates: Sequence[Sequence[int]]
    ) -> list[float]:
        """Return a score for each candidate after ``prompt``; higher is better. Raises ``EngineError``."""
        ...


class LikelihoodCritic:
    """Log-ratio of a language model trained as a critic (``DPO`` on trajectories) and its reference.

    ``tokens`` takes the mean over a candidate's tokens, ``none`` the sum.
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
        """Return log-ratios in nats, with one pass over the prompt for each model."""
        ours, before = await asyncio.gather(
            self.critic.logprobs(prompt, candidates), self.reference.logprobs(prompt, candidates)
        )
        ratios = [sum(one) - sum(other) for one, other in zip(ours, before, strict=True)]
        if self.normalise == "tokens":
            lengths = map(len, candidates)
            ratios = [ratio / length for ratio, length in zip(ratios, lengths, strict=True)]
        return _checked(ratios)


class HeadCritic:
    """Model with a value head, in this process.

    ``mean`` is the mean value over a candidate's tokens (trained by ``Regression``), ``last`` the value at its last
    token (trained by ``Classifier``: the logit of success). With a ``rule``, shared prefixes are computed once.
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
        """Return pooled values. Raises ``EngineError`` for candidates that are empty or exceed the context."""
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
        scores = [0.0] * len(sequences)
        for part in splitter.microbatches(splitter.families(range(len(sequences))))[0]:
            for index, value in zip(part, self._pooled(part, sequences, start), strict=True):
                scores[index] = value
        return _checked(scores)

    @torch.inference_mode()
    def _pooled(
        self, part: Sequence[int], sequences: Sequence[tuple[int, ...]], start: int
    ) -> list[float]:
        chosen = [sequences[i] for i in part]
        begin = start if self.pool == "mean" else -1
        places = [range(len(ids))[begin:] for ids in chosen]
        return [float(v.mean()) for v in token_values(self.loaded.model, chosen, places, self.rule)]


def _checked(numbers: list[float]) -> list[float]:
    """Return the numbers; raise ``EngineError`` if one is not finite, since it would still sort somewhere."""
    if not all(map(math.isfinite, numbers)):
        raise EngineError(f"the critic's scores are not all numbers: {numbers}")
    return numbers
