"""Driver that plays episodes of an environment concurrently; the engine batches their requests.

An episode is one sample of one task. Its seeds are hashes of its key (seed, iteration, stage, task, sample, turn
index), so its turns do not depend on what else runs. A failure ends only its own episode, which then has a reason and
no score.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.checks import check_environment
from coterie.environments.protocol import Environment, Grade, Shared
from coterie.record.tree import Credit, Metrics, Outcome, Task, Tree
from coterie.record.turn import digest
from coterie.rollout.bounded_gather import bounded_gather
from coterie.rollout.branches import Branches
from coterie.rollout.episodes import (
    CUT_OFF,
    ENVIRONMENT,
    FINAL_REWARD,
    MESSAGES,
    REWARD,
    THOUGHT_TOKENS,
    Episode,
    EpisodeResult,
)
from coterie.rollout.samplers import OutOfContext, Response, Sampler
from coterie.rollout.sessions import Sessions, sessions_of
from coterie.rollout.transitions import Position

SECONDS = 3600.0
"""Default time limit of each call of an environment, including waits for shared resources."""


class Driver:
    """Plays one environment.

    Args:
        samplers: One sampler for each actor.
        seconds: Time limit of each call of the environment.
    """

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
            raise ValueError(f"{environment.name} needs samplers for {', '.join(sorted(missing))}")
        self.environment = environment
        self.samplers = samplers
        self.seed = seed
        self.shared = shared
        self.seconds = seconds

    @asynccontextmanager
    async def sessions(self) -> AsyncIterator[Sessions]:
        """Open the sessions of all branches; the end of the block closes them."""
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
    async def play_all(
        self, episodes: Sequence[Episode]
    ) -> AsyncIterator[AsyncIterator[EpisodeResult]]:
        """Play all episodes, at most one per session, and yield each result as it finishes.

        The end of the block cancels unfinished episodes.

        Raises:
            EngineGone: The engine failed for good.
        """
        limit = len(episodes) if self.environment.pure else self.environment.max_sessions
        async with (
            self.sessions() as sessions,
            bounded_gather(
                (self._guarded(one, sessions) for one in episodes), max(limit, 1)
            ) as playing,
        ):
            yield playing

    async def _guarded(self, episode: Episode, sessions: Sessions) -> EpisodeResult:
        try:
            return await self._play(episode, sessions)
        except EngineGone:
            raise
        except EngineError as error:
            return EpisodeResult(episode, None, str(error))

    async def _play(self, episode: Episode, sessions: Sessions) -> EpisodeResult:
        tree = Tree(episode.task.id, episode.stage, episode.iteration)
        branches = self.branches(episode.task, tree, sessions, episode.variant)
        agent_responses: list[Response] = []
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
                agent_responses += [
                    response
                    for actor, response in zip(acting, responses, strict=True)
                    if self.environment.actors[actor] == "agent"
                ]
                at = await branches.advance(at, responses)
            grade = await branches.grade(at)
        finally:
            await branches.close()
        tree.end(Outcome(at.node, episode.sample, at.state.end, at.state.answer, grade.score))
        tokens = sum(response.tokens for response in agent_responses)
        credit = _credit(branches, at.node, grade)
        metrics = _metrics(grade, agent_responses)
        return EpisodeResult(episode, tree, None, tokens, metrics, credit)

    def _seed(self, episode: Episode, at: Position, place: int) -> int:
        key = (self.seed, episode.iteration, episode.stage, episode.task.id, episode.sample)
        return int(digest("seed", *key, len(at.state.turns) + place)[:15], 16)


def _credit(branches: Branches, leaf: str, grade: Grade) -> tuple[Credit, ...]:
    rewards = {(node, f"{REWARD}:{actor}"): one for (node, actor), one in branches.rewards.items()}
    rewards |= {(leaf, f"{FINAL_REWARD}:{actor}"): one for actor, one in grade.rewards.items()}
    return tuple(Credit(node, name, one, ENVIRONMENT) for (node, name), one in rewards.items())


def _metrics(grade: Grade, responses: Sequence[Response]) -> Metrics:
    truncated = sum(response.truncated for response in responses)
    thought = sum(response.thought_tokens for response in responses)
    thoughts = {THOUGHT_TOKENS: thought} if thought else {}
    return {**grade.metrics, MESSAGES: len(responses), CUT_OFF: truncated, **thoughts}
