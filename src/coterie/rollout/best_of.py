"""Best of n at test time: of several ways to say each turn, the one that a critic scores highest is said.

SWEET-RL (arXiv 2503.15478), figure 3a. All candidates are in the tree, as siblings of the one that was said.
"""

from collections.abc import Awaitable, Callable, Sequence

from coterie.rollout.candidates import FIRST_DRAW
from coterie.rollout.samplers import AgentContext, Prompt, Response, TokenSampler
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn, digest

Score = Callable[[Tree, Sequence[Turn]], Awaitable[Sequence[float]]]


class BestOfSampler:
    """A :class:`~coterie.rollout.samplers.Sampler` that says the best of ``count`` candidates."""

    def __init__(self, sampler: TokenSampler, count: int, score: Score) -> None:
        self.sampler = sampler
        self.count = count
        self.score = score

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """The candidate with the highest score; of equal ones the first."""
        seeds = [int(digest("best of", prompt.seed, n)[:15], 16) for n in range(self.count)]
        first = FIRST_DRAW * (prompt.draw + 1)
        found = await self.sampler.candidates(
            prompt, context, seeds, range(first, first + self.count)
        )
        for response in found:
            prompt.tree.add(response.turn, response.request)
        scores = await self.score(prompt.tree, [response.turn for response in found])
        best = max(range(self.count), key=lambda n: scores[n])
        context.add(found[best], prompt.shown)
        return found[best]
