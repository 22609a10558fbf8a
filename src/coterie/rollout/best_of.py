"""Best of n at test time: of several ways to say each turn, the one that a critic scores highest is said.

SWEET-RL (arXiv 2503.15478), figure 3a. All candidates are in the tree, as siblings of the one that was said.
"""

from collections.abc import Awaitable, Callable, Sequence

from coterie.rollout.candidates import FIRST_DRAW
from coterie.rollout.voices import Ask, Memory, Said, TokenVoice
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn, digest

Score = Callable[[Tree, Sequence[Turn]], Awaitable[Sequence[float]]]
"""Scores the candidates of one turn, which are in the tree."""


class BestOfVoice:
    """A :class:`~coterie.rollout.voices.Voice` that says the best of ``count`` candidates."""

    def __init__(self, voice: TokenVoice, count: int, score: Score) -> None:
        self.voice = voice
        self.count = count
        self.score = score

    async def speak(self, ask: Ask, memory: Memory) -> Said:
        """The candidate with the highest score; of equal ones the first."""
        seeds = [int(digest("best of", ask.seed, n)[:15], 16) for n in range(self.count)]
        first = FIRST_DRAW * (ask.draw + 1)
        found = await self.voice.candidates(ask, memory, seeds, range(first, first + self.count))
        for said in found:
            ask.tree.add(said.turn, said.request)
        scores = await self.score(ask.tree, [said.turn for said in found])
        best = max(range(self.count), key=lambda n: scores[n])
        memory.hear(found[best], ask.shown)
        return found[best]
