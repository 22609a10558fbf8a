"""Plays episodes of an environment: every episode starts at once, the engine batches whatever waits.

One episode is one sample of one task. Its random numbers come from its key (seed, iteration, stage, task, sample, place
of the turn), so what is said does not depend on what else runs. A failure ends that episode alone, is reported with its
reason, and has no score.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.checks import check_environment
from coterie.environments.protocol import Environment, Grade, Shared
from coterie.rollout.branches import Branches
from coterie.rollout.episodes import (
    CUT_OFF,
    ENVIRONMENT,
    FINAL_REWARD,
    MESSAGES,
    REWARD,
    THOUGHT_TOKENS,
    Episode,
    Finished,
)
from coterie.rollout.flight import in_flight
from coterie.rollout.samplers import OutOfContext, Response, Sampler
from coterie.rollout.sessions import Sessions, sessions_of
from coterie.rollout.transitions import Position
from coterie.trajectories.credit import Credit
from coterie.trajectories.item import Metrics
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.turn import digest

SECONDS = 3600.0
"""Time limit of what an environment does at a time; waiting for what it shares with others counts too."""


class Driver:
    """Plays one environment. ``samplers`` has one for each actor."""

    def __init__(
        self,
        environment: Environment,
        samplers: Mapping[str, Sampler],
        *,
        seed: int,
        shared: Shared,
        seconds: float = SECONDS,
    ) -> None:
        check_environment(environment, shared)
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
    async def sessions(self) -> AsyncIterator[Sessions]:
        """Sessions for all branches; closed at the end of the block."""
        async with sessions_of(self.environment.max_sessions, self.seconds) as sessions:
            yield sessions

    def branches(
        self, task: Task, tree: Tree, sessions: Sessions, variant: str | None = None
    ) -> Branches:
        return Branches(
            self.environment,
            self.samplers,
            task,
            tree,
            seed=self.seed,
            shared=self.shared,
            sessions=sessions,
            seconds=self.seconds,
            variant=variant,
        )

    @asynccontextmanager
    async def play_all(self, episodes: Sequence[Episode]) -> AsyncIterator[AsyncIterator[Finished]]:
        """Start all episodes (no more than there are sessions); gives each as it finishes.

        None outlives the block, which raises ``EngineGone`` when the engine will answer nobody.
        """
        limit = len(episodes) if self.environment.pure else self.environment.max_sessions
        async with (
            self.sessions() as sessions,
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
        branches = self.branches(episode.task, tree, sessions, episode.variant)
        said: list[Response] = []
        try:
            at = await branches.start()
            while at.state.end is None:
                acting = branches.acting(at)
                seeds = {actor: self._seed(episode, at, n) for n, actor in enumerate(acting)}
                try:
                    responses = await branches.respond(at, seeds, episode.sample)
                except OutOfContext as error:
                    at = branches.cut(at, error)
                    continue
                said += [
                    response
                    for actor, response in zip(acting, responses, strict=True)
                    if self.environment.actors[actor] == "agent"
                ]
                at = await branches.advance(at, responses)
            grade = await branches.grade(at)
        finally:
            await branches.close()
        tree.end(Outcome(at.node, episode.sample, at.state.end, at.state.answer, grade.score))
        tokens = sum(response.tokens for response in said)
        credit = _credit(branches, at.node, grade)
        return Finished(episode, tree, None, tokens, _metrics(grade, said), credit)

    def _seed(self, episode: Episode, at: Position, place: int) -> int:
        key = (self.seed, episode.iteration, episode.stage, episode.task.id, episode.sample)
        return int(digest("seed", *key, len(at.state.turns) + place)[:15], 16)


def _credit(branches: Branches, leaf: str, grade: Grade) -> tuple[Credit, ...]:
    given = {(node, f"{REWARD}:{actor}"): one for (node, actor), one in branches.rewards.items()}
    given |= {(leaf, f"{FINAL_REWARD}:{actor}"): one for actor, one in grade.rewards.items()}
    return tuple(Credit(node, name, one, ENVIRONMENT) for (node, name), one in given.items())


def _metrics(grade: Grade, said: Sequence[Response]) -> Metrics:
    truncated = sum(response.truncated for response in said)
    thought = sum(response.thought_tokens for response in said)
    own = {THOUGHT_TOKENS: thought} if thought else {}
    return {**grade.metrics, MESSAGES: len(said), CUT_OFF: truncated, **own}
