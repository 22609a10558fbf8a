"""Plays episodes of an environment: every episode starts at once, the engine batches whatever waits.

One episode is one sample of one task. Its random numbers come from its key (seed, iteration, stage, task, sample,
turn, actor), so what is said does not depend on what else runs. A failure ends that episode alone, is reported with its
reason, and has no score.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.protocol import Environment, Shared
from coterie.rollout.branches import Branches, Position
from coterie.rollout.episodes import Episode, Finished, dialogue_tokens
from coterie.rollout.flight import in_flight
from coterie.rollout.samplers import Sampler
from coterie.rollout.sessions import Sessions, sessions_of
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.turn import digest


class Driver:
    """Plays one environment. ``samplers`` has one for each actor."""

    def __init__(
        self,
        environment: Environment,
        samplers: Mapping[str, Sampler],
        *,
        seed: int,
        shared: Shared,
        seconds: float,
    ) -> None:
        missing = environment.actors.keys() - samplers.keys()
        if missing:
            raise ValueError(f"nobody plays {', '.join(sorted(missing))} of {environment.name}")
        self.environment = environment
        self.samplers = samplers
        self.seed = seed
        self.shared = shared
        self.seconds = seconds
        """Time limit of what the environment does at a time."""

    @asynccontextmanager
    async def play_all(self, episodes: Sequence[Episode]) -> AsyncIterator[AsyncIterator[Finished]]:
        """Start all episodes (no more than there are sessions); gives each as it finishes.

        None outlives the block, which raises ``EngineGone`` when the engine will answer nobody.
        """
        environment = self.environment
        limit = len(episodes) if environment.pure else environment.max_sessions
        async with (
            sessions_of(environment.max_sessions, self.seconds) as sessions,
            in_flight((self._guarded(one, sessions) for one in episodes), max(limit, 1)) as playing,
        ):
            yield playing

    async def _guarded(self, episode: Episode, sessions: Sessions) -> Finished:
        try:
            return await self._play(episode, sessions)
        except EngineGone:
            raise
        except EngineError as error:
            return Finished(episode, None, str(error))

    async def _play(self, episode: Episode, sessions: Sessions) -> Finished:
        tree = Tree(episode.task.id, episode.stage, episode.iteration)
        branches = Branches(
            self.environment,
            self.samplers,
            episode.task,
            tree,
            seed=self.seed,
            shared=self.shared,
            sessions=sessions,
            seconds=self.seconds,
        )
        try:
            at = await branches.start()
            while at.state.end is None:
                seeds = {actor: self._seed(episode, at, actor) for actor in branches.acting(at)}
                at = await branches.advance(at, await branches.respond(at, seeds, episode.sample))
            grade = await branches.grade(at)
        finally:
            await branches.close()
        tree.end(Outcome(at.node, episode.sample, at.state.end, at.state.answer, grade.score))
        tokens = dialogue_tokens(tree.path(at.node))
        return Finished(episode, tree, None, tokens, grade.metrics, branches.rewards)

    def _seed(self, episode: Episode, at: Position, actor: str) -> int:
        key = (self.seed, episode.iteration, episode.stage, episode.task.id, episode.sample)
        return int(digest("seed", *key, len(at.state.turns), actor)[:15], 16)
