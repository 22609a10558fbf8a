"""Items of a stage: episodes and trees played concurrently, each written to the store as it finishes; their results."""

from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coterie.engines.chat_model import open_chat
from coterie.engines.protocol import EngineGone
from coterie.environments.protocol import Environment, Openers, Shared, openers_of, persons_of
from coterie.environments.user_simulator import (
    ModelUserSimulator,
    UserSimulator,
    UserSimulatorSettings,
    check_script,
)
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.record.store import Store
from coterie.record.tree import Credit, ItemKey, LeftOut, Metrics, Tree
from coterie.rollout.episodes import Driver, Episode, EpisodeResult, bounded_gather
from coterie.rollout.samplers import Sampler, TokenSampler, UserSampler
from coterie.rollout.sessions import Sessions
from coterie.runs.evaluation import grade_means, left_out


@dataclass(frozen=True, slots=True)
class Actors:
    """Simulated users and resources of an environment."""

    environment: Environment
    persons: Mapping[str, Sampler]
    shared: Shared

    def driver(self, samplers: Mapping[str, Sampler], seed: int) -> Driver:
        all_samplers = {**samplers, **self.persons}
        return Driver(self.environment, all_samplers, seed=seed, shared=self.shared)


@asynccontextmanager
async def open_actors(
    environment: Environment,
    logs: Path,
    user_simulator: UserSimulatorSettings | None = None,
    openers: Openers | None = None,
) -> AsyncIterator[Actors]:
    """Open the simulated users (by default the environment's script) and resources that an environment needs.

    ``openers`` are added to the environment's own. Servers write to ``logs``.
    """
    async with AsyncExitStack() as stack:
        all_openers = {**openers_of(environment, logs), **(openers or {})}
        needs = [all_openers[need] for need in environment.needs if need in all_openers]
        shared = Shared(*[await stack.enter_async_context(need()) for need in needs])
        persons: dict[str, Sampler] = {}
        for name in persons_of(environment):
            simulator: UserSimulator
            user = user_simulator
            if user is None or user.is_script:
                simulator = check_script(environment)
            else:
                chat = await stack.enter_async_context(open_chat(user))
                make = getattr(environment, "chat_user", None)
                if make is None:
                    simulator = ModelUserSimulator(chat, user, environment, name)
                else:
                    simulator = make(chat, user, shared)
            persons[name] = UserSampler(simulator)
        yield Actors(environment, persons, shared)


@dataclass(frozen=True, slots=True)
class ItemResult:
    """Result of a finished item."""

    key: ItemKey
    metrics: Metrics
    tree: Tree | None = None
    credit: tuple[Credit, ...] = ()
    failure: str | None = None
    left_out: tuple[LeftOut, ...] = ()


async def do_items(
    store: Store,
    items: Mapping[ItemKey, Callable[[], Coroutine[Any, Any, ItemResult]]],
    progress: Progress,
    items_name: str,
    title: str,
    *,
    in_flight: int,
    sampled_tokens: Callable[[], int] | None = None,
) -> None:
    """Do the unfinished items of one iteration and stage; ``items_name`` is a plural noun for them in messages.

    An item reports its failure in ``ItemResult.failure``. Raises :class:`UserError` if all fail or the engine is lost.
    """
    stages = {(key.iteration, key.stage) for key in items}
    finished = {stage: store.finished_keys(*stage) for stage in stages}
    unfinished = [
        do
        for key, do in items.items()
        if (key.task, key.sample) not in finished[key.iteration, key.stage]
    ]
    progress.start(len(unfinished), title)
    with engine_errors(title, progress):
        async with bounded_gather((do() for do in unfinished), in_flight) as done:
            await record(store, done, progress, items_name, sampled_tokens)


async def on_trees(
    store: Store,
    iteration: int,
    do: Callable[[Tree], Coroutine[Any, Any, ItemResult]],
    progress: Progress,
    title: str,
    *,
    in_flight: int,
    stage: str = "reward",
) -> None:
    """Do the unfinished items of a stage with one item per tree of the iteration's rollouts.

    Each tree is read when its item starts, so at most ``in_flight`` trees are in memory.
    """

    async def do_tree(task: str) -> ItemResult:
        return await do(store.tree(iteration, "rollout", task))

    tasks = store.tree_tasks(iteration, "rollout")
    items = {ItemKey(iteration, stage, task): partial(do_tree, task) for task in tasks}
    await do_items(store, items, progress, "trees", title, in_flight=in_flight)


@contextmanager
def engine_errors(task_name: str, progress: Progress) -> Iterator[None]:
    """Close the progress at the end, and turn ``EngineGone`` into a ``UserError``."""
    try:
        yield
    except EngineGone as error:
        problem = f"{task_name} cannot continue: {error}"
        raise UserError(problem, "fix the cause and run again; finished work is kept") from error
    finally:
        progress.close()


async def record(
    store: Store,
    items: AsyncIterator[ItemResult],
    progress: Progress,
    items_name: str,
    sampled_tokens: Callable[[], int] | None = None,
    on_written: Callable[[ItemKey], None] = lambda _: None,
) -> None:
    """Write each item of a stage when it finishes, and call ``on_written`` with its key.

    Failures are written only after a first success, now or in an earlier session. If all items fail, the cause is not
    in the items, so nothing is written and :class:`UserError` is raised.
    """
    pending: list[ItemResult] = []
    succeeded: bool | None = None
    async for done in items:
        if succeeded is None:
            succeeded = _has_succeeded(store, done.key.iteration, done.key.stage)
        progress.advance(1, **({"sampled_tokens": sampled_tokens()} if sampled_tokens else {}))
        pending.append(done)
        succeeded = succeeded or done.failure is None
        if not succeeded:
            continue
        for result in pending:
            store.finish(
                result.key,
                tree=result.tree,
                credit=result.credit,
                left_out=result.left_out,
                metrics=result.metrics,
                failure=result.failure,
            )
            on_written(result.key)
        pending.clear()
    if pending:
        problem = f"all {len(pending)} {items_name} failed; the first with: {pending[0].failure}"
        raise UserError(problem, "fix the cause and run again; no failure was recorded")


def _has_succeeded(store: Store, iteration: int, stage: str) -> bool:
    return any(item.key.task and item.failure is None for item in store.items(iteration, stage))


def done_of(result: EpisodeResult) -> ItemResult:
    metrics = {"tokens": result.tokens, **result.metrics}
    return ItemResult(result.episode.key, metrics, result.tree, result.credit, result.failure)


async def play(
    store: Store,
    driver: Driver,
    episodes: Sequence[Episode],
    progress: Progress,
    sampled_tokens: Callable[[], int],
    sessions: Sessions | None = None,
) -> None:
    """Play the unfinished episodes of one iteration and stage. Raises :class:`UserError` if all of them fail."""
    iteration, stage = episodes[0].iteration, episodes[0].stage
    finished = {key for key in store.finished_keys(iteration, stage) if key[0]}
    store.put_tasks({e.task.id: e.task for e in episodes}.values())
    unfinished = [e for e in episodes if (e.key.task, e.key.sample) not in finished]
    progress.start(len(unfinished), f"{stage} {iteration}")
    tokens_before = sampled_tokens()
    with engine_errors(f"{stage} {iteration}", progress):
        async with driver.play_all(unfinished, sessions) as playing:
            done = (done_of(result) async for result in playing)
            await record(
                store, done, progress, "dialogues", lambda: sampled_tokens() - tokens_before
            )


def sampled_tokens(samplers: Iterable[TokenSampler]) -> Callable[[], int]:
    """Return a function that returns the number of tokens that the engines sample from now on."""
    all_stats = {id(sampler.engine): sampler.engine.stats for sampler in samplers}.values()
    tokens_before = sum(stats.sampled_tokens for stats in all_stats)
    return lambda: sum(stats.sampled_tokens for stats in all_stats) - tokens_before


def summary(store: Store, iteration: int, stage: str) -> Metrics:
    """Return counts and means of a stage's dialogues; a failed or ungraded one scores 0. Tasks may be left out."""
    skipped = {"", *left_out(store, iteration, stage)}
    trees = (tree for tree in store.trees(iteration, stage) if tree.task not in skipped)
    all_scores = [outcome.score for tree in trees for outcome in tree.outcomes.values()]
    scores = [score for score in all_scores if score is not None]
    items = store.metrics(iteration, stage).items()
    dialogues = [m for key, m in items if "tokens" in m and key.task not in skipped]
    failed = sum(key.task not in skipped for key, _ in store.failures(iteration, stage))
    failed += len(all_scores) - len(scores)
    n = len(scores) + failed
    return {
        "n": n,
        "failed": failed,
        "score": sum(scores) / n if n else 0.0,
        "tokens": sum(int(m["tokens"]) for m in dialogues) / n if n else 0.0,
        **grade_means(store, iteration, stage, samples=None),
    }


def totals(
    store: Store, iteration: int, stage: str, names: Iterable[str]
) -> dict[str, float | int | str]:
    items = [metrics for key, metrics in store.metrics(iteration, stage).items() if key.task]
    return {name: sum(int(metrics.get(name, 0)) for metrics in items) for name in names}
