"""Episodes of an environment, played concurrently through an engine. A failure ends only its own episode.

Seeds are hashes of an episode's key (seed, iteration, stage, task, sample, turn index), so its turns do not depend on
concurrent episodes.
"""

import asyncio
import contextvars
import gc
import itertools
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

from coterie.engines.protocol import WORK_NUMBER, EngineError, EngineGone, cancel
from coterie.environments.protocol import (
    CUT_OFF,
    MESSAGES,
    Environment,
    EnvironmentFault,
    Grade,
    RequestWithdrawn,
    Shared,
    agents_of,
    check_needs,
    check_parts,
)
from coterie.errors import UserError
from coterie.record.tree import FINAL_REWARD, Credit, ItemKey, Metrics, Outcome, Task, Tree
from coterie.record.turn import Turn, digest
from coterie.rollout.branches import Branches
from coterie.rollout.positions import Position
from coterie.rollout.samplers import OutOfContext, Prompt, Response, Sampler
from coterie.rollout.sessions import Sessions

T = TypeVar("T")
_work_numbers = itertools.count(1)


@asynccontextmanager
async def bounded_gather(
    work: Iterable[Coroutine[Any, Any, T]], limit: int
) -> AsyncIterator[AsyncIterator[T]]:
    """Yield the results of ``work`` in order of completion, with at most ``limit`` coroutines at a time.

    Engines prefer requests of those that began earlier. When the block ends, also by an exception, unfinished
    coroutines are cancelled and awaited.
    """
    source = iter(work)
    running: set[asyncio.Task[T]] = set()
    done: asyncio.Queue[asyncio.Task[T]] = asyncio.Queue()

    def start() -> None:
        while len(running) < limit and (coroutine := next(source, None)) is not None:
            context = contextvars.copy_context()
            context.run(WORK_NUMBER.set, next(_work_numbers))
            task = asyncio.create_task(coroutine, context=context)
            task.add_done_callback(done.put_nowait)
            running.add(task)

    async def results() -> AsyncIterator[T]:
        start()
        while running:
            task = await done.get()
            running.discard(task)
            start()
            yield task.result()

    try:
        yield results()
    finally:
        await cancel(running)


_thresholds: list[tuple[int, int, int]] = []
"""The collector's own thresholds, once for each open block of :func:`rare_collections`."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage less often: trees keep most objects, and the collector takes half of the time of a step.

    Blocks may overlap in any order; the end of the last one restores the thresholds.
    """
    thresholds = _thresholds[0] if _thresholds else gc.get_threshold()
    _thresholds.append(thresholds)
    gc.set_threshold(thresholds[0] and max(thresholds[0], 500_000), *thresholds[1:])
    try:
        yield
    finally:
        _thresholds.pop()
        if not _thresholds:
            gc.set_threshold(*thresholds)


def first_prompts(
    environment: Environment, task: Task, variant: str | None = None
) -> dict[str, Prompt]:
    return asyncio.run(first_prompts_async(environment, task, variant))


async def first_prompts_async(
    environment: Environment, task: Task, variant: str | None = None
) -> dict[str, Prompt]:
    """Return the first prompts of all agents, no matter who acts first. Raises ``UserError``."""
    tree = Tree(task.id, "opening", 0)
    async with Sessions(1, SECONDS) as sessions:
        resources = (sessions, 0, Shared(), SECONDS, variant)
        return await opening_prompts(Branches(environment, {}, task, tree, *resources))


async def opening_prompts(branches: Branches) -> dict[str, Prompt]:
    """Return the first prompts of all agents, and close the branches. Raises ``UserError``."""
    try:
        position = await branches.start()
        agents = agents_of(branches.environment)
        return {agent: branches.prompt(position, agent, seed=0, draw=0) for agent in agents}
    except EnvironmentFault as error:
        raise UserError(
            f"task {branches.task.id} of {branches.environment.name} can't begin: {error}",
            "correct the environment",
        ) from error
    finally:
        await branches.close()


THOUGHT_TOKENS = "thought_tokens"
"""Metric: number of thought tokens, which ``tokens`` includes; absent without thoughts."""

REWARD = "reward"
"""Credit name (``reward:ACTOR``) of a reward for an action, on the last of the simultaneous turns."""
ENVIRONMENT = "environment"
"""Settings key of rewards from the environment, which do not depend on settings of later stages."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One sample of one task."""

    task: Task
    sample: int
    iteration: int
    stage: str
    variant: str | None = None
    """Extra instruction in its prompts, such as a format."""

    @property
    def key(self) -> ItemKey:
        """Key of the episode in the store."""
        return ItemKey(self.iteration, self.stage, self.task.id, f"{self.sample:04d}")


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """A finished episode: its tree of one path, or the reason of its failure."""

    episode: Episode
    tree: Tree | None
    failure: str | None = None
    tokens: int = 0
    """Tokens of all turns of its agents, as their sampler counts."""
    metrics: Metrics = field(default_factory=dict)
    credit: tuple[Credit, ...] = ()
    """Rewards from the environment: :data:`REWARD`, :data:`FINAL_REWARD`."""


def dialogue_tokens(path: Sequence[Turn]) -> int:
    """Return the number of tokens of all turns; those from text endpoints have none (see the item's metrics)."""
    return sum(len(turn.ids) for turn in path)


DIALOGUES_PER_SLOT = 4
"""Dialogues in flight for each request that an engine runs at a time; the others wait for users, tools and grades."""
DEFAULT_WIDTH = 128
SECONDS = 3600.0
"""Default time limit of each call of an environment, including waits for shared resources."""


@dataclass(eq=False)
class Driver:
    """Plays one environment, with one sampler for each actor."""

    environment: Environment
    samplers: Mapping[str, Sampler]
    _: KW_ONLY
    seed: int
    shared: Shared
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        check_parts(self.environment)
        check_needs(self.environment, self.shared)

    @property
    def in_flight(self) -> int:
        """Maximum number of concurrent episodes: sessions, or a multiple of the requests that the widest engine runs.

        Results are recorded when episodes finish, so with all of them in flight a kill would lose nearly every reply.
        """
        if not self.environment.pure:
            return self.environment.max_sessions
        widths = [getattr(sampler, "width", 0) for sampler in self.samplers.values()]
        return DIALOGUES_PER_SLOT * (max(widths, default=0) or DEFAULT_WIDTH)

    @asynccontextmanager
    async def sessions(self) -> AsyncIterator[Sessions]:
        """Open the sessions of all branches; the end of the block closes them."""
        with rare_collections():
            async with Sessions(self.environment.max_sessions, self.seconds) as sessions:
                yield sessions

    def branches(
        self, task: Task, tree: Tree, sessions: Sessions, variant: str | None = None
    ) -> Branches:
        resources = (sessions, self.seed, self.shared, self.seconds, variant)
        return Branches(self.environment, self.samplers, task, tree, *resources)

    @asynccontextmanager
    async def play_all(
        self, episodes: Sequence[Episode], sessions: Sessions | None = None
    ) -> AsyncIterator[AsyncIterator[EpisodeResult]]:
        """Play all episodes and yield each result as it finishes. Raises ``EngineGone``.

        They may share ``sessions`` with other episodes.
        """
        async with nullcontext(sessions) if sessions else self.sessions() as opened:
            work = (self.play(episode, opened) for episode in episodes)
            async with bounded_gather(work, self.in_flight) as playing:
                yield playing

    async def play(self, episode: Episode, sessions: Sessions) -> EpisodeResult:
        """Play an episode. Raises ``EngineGone``."""
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
            position = await branches.start()
            while position.state.end is None:
                acting = branches.next_actors(position)
                seeds = {actor: self._seed(episode, position, n) for n, actor in enumerate(acting)}
                try:
                    responses = await branches.respond(position, seeds, episode.sample)
                except (OutOfContext, RequestWithdrawn) as error:
                    position = await branches.refuse(position, error)
                    continue
                kinds = [self.environment.actors[actor] for actor in acting]
                answers = zip(kinds, responses, strict=True)
                agent_responses += [response for kind, response in answers if kind == "agent"]
                position = await branches.advance(position, responses)
                if self.environment.pure:
                    branches.forget()
            grade = await branches.grade(position)
        finally:
            await branches.close()
        tree.end(
            Outcome(
                position.node,
                episode.sample,
                position.state.end,
                position.state.answer,
                grade.score,
            )
        )
        tokens = sum(response.tokens for response in agent_responses)
        thought = sum(response.thought_tokens for response in agent_responses)
        truncated = sum(response.turn.truncated for response in agent_responses)
        metrics = {**grade.metrics, MESSAGES: len(agent_responses), CUT_OFF: truncated}
        metrics |= {THOUGHT_TOKENS: thought} if thought else {}
        credit = environment_credit(branches.rewards) + final_credit(position.node, grade)
        return EpisodeResult(episode, tree, None, tokens, metrics, credit)

    def _seed(self, episode: Episode, position: Position, index: int) -> int:
        key = (self.seed, episode.iteration, episode.stage, episode.task.id, episode.sample)
        return int(digest("seed", *key, len(position.state.turns) + index)[:15], 16)


def environment_credit(rewards: Mapping[tuple[str, str], float]) -> tuple[Credit, ...]:
    """Return the credit of rewards of acts, by (last of the simultaneous turns, actor)."""
    return tuple(
        Credit(node, f"{REWARD}:{actor}", reward, ENVIRONMENT)
        for (node, actor), reward in rewards.items()
    )


def final_credit(leaf: str, grade: Grade) -> tuple[Credit, ...]:
    """Return the credit of the rewards that a grade gives to actors."""
    return tuple(
        Credit(leaf, f"{FINAL_REWARD}:{actor}", reward, ENVIRONMENT)
        for actor, reward in grade.rewards.items()
    )
