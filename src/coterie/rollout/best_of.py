"""Best-of-n sampling at test time: for each turn, the candidate with the highest critic score.

SWEET-RL (arXiv 2503.15478), figure 3a. The tree keeps all candidates as siblings of the best one.
"""

from collections.abc import Awaitable, Callable, Sequence

from coterie.record.tree import Tree
from coterie.record.turn import Turn, digest
from coterie.rollout.candidates import FIRST_DRAW
from coterie.rollout.samplers import AgentContext, Prompt, Response, TokenSampler

Score = Callable[[Tree, Sequence[Turn]], Awaitable[Sequence[float]]]


class BestOfSampler:
    """Sampler that returns the best of ``count`` candidates."""

    def __init__(self, sampler: TokenSampler, count: int, score: Score) -> None:
        self.sampler = sampler
        self.count = count
        self.score = score

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """Return the candidate with the highest score; the first one on ties."""
        seeds = [int(digest("best of", prompt.seed, n)[:15], 16) for n in range(self.count)]
        first = FIRST_DRAW * (prompt.draw + 1)
        draws = range(first, first + self.count)
        candidates = await self.sampler.candidates(prompt, context, seeds, draws)
        for candidate in candidates:
            prompt.tree.add(candidate.turn, candidate.request)
        scores = await self.score(prompt.tree, [candidate.turn for candidate in candidates])
        best = candidates[max(range(self.count), key=lambda n: scores[n])]
        context.add(best, prompt.messages)
        return best
