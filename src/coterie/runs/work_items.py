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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from coterie.engines.chat_model import open_chat
from coterie.engines.protocol import EngineGone
from coterie.environments.protocol import (
    Environment,
    Openers,
    Shared,
    openers_of,
    persons_of,
)
from coterie.environments.user_simulator import (
    ModelUserSimulator,
    UserSimulator,
    UserSimulatorSettings,
    check_script,
)
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.record.store import Store
from coterie.record.tree import Credit, Item, ItemKey, Metrics, Task, Tree
from coterie.rollout.episodes import (
    Driver,
    Episode,
    EpisodeResult,
    bounded_gather,
    dialogue_tokens,
)
from coterie.rollout.samplers import Sampler, TokenSampler, UserSampler
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Rollout, Search, path_tree
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
class Done:
    """Result of a finished item."""

    key: ItemKey
    metrics: Metrics
    tree: Tree | None = None
    credit: tuple[Credit, ...] = ()
    failure: str | None = None


async def do_items(
    store: Store,
    items: Mapping[ItemKey, Callable[[], Coroutine[Any, Any, Done]]],
    progress: Progress,
    items_name: str,
    title: str,
    *,
    in_flight: int,
    sampled_tokens: Callable[[], int] | None = None,
) -> None:
    """Do the unfinished items of one iteration and stage; ``items_name`` is a plural noun for them in messages.

    An item reports its own failure (``Done.failure``). Raises :class:`UserError` if all fail or the engine is lost.
    """
    stages = {(key.iteration, key.stage) for key in items}
    finished = {stage: store.finished_keys(*stage) for stage in stages}
    unfinished = [
        do
        for key, do in items.items()
        if (key.task, key.sample) not in finished[key.iteration, key.stage]
    ]
    progress.start(len(unfinished), title)
    with going_on(title, progress):
        async with bounded_gather((do() for do in unfinished), in_flight) as done:
            await record(store, done, progress, items_name, sampled_tokens)


async def on_trees(
    store: Store,
    iteration: int,
    do: Callable[[Tree], Coroutine[Any, Any, Done]],
    progress: Progress,
    title: str,
    *,
    in_flight: int,
    stage: str = "reward",
) -> None:
    """Do the unfinished items of a stage with one item per tree of the iteration's rollouts.

    Each tree is read when its item starts, so at most ``in_flight`` trees are in memory.
    """

    async def one(task: str) -> Done:
        return await do(store.tree(iteration, "rollout", task))

    tasks = store.tree_tasks(iteration, "rollout")
    items = {ItemKey(iteration, stage, task): partial(one, task) for task in tasks}
    await do_items(store, items, progress, "trees", title, in_flight=in_flight)


@contextmanager
def going_on(task_name: str, progress: Progress) -> Iterator[None]:
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
    items: AsyncIterator[Done],
    progress: Progress,
    items_name: str,
    sampled_tokens: Callable[[], int] | None = None,
    on_written: Callable[[ItemKey], None] = lambda _: None,
) -> None:
    """Write each item of a stage when it finishes, and call ``on_written`` with its key.

    Failures are written only after a first success, now or in an earlier session. If all items fail, the cause is not
    in the items, so nothing is written and :class:`UserError` is raised.
    """
    pending: list[Done] = []
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


def done_of(result: EpisodeResult) -> Done:
    metrics = {"tokens": result.tokens, **result.metrics}
    return Done(result.episode.key, metrics, result.tree, result.credit, result.failure)


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
    with going_on(f"{stage} {iteration}", progress):
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
    dialogues = [
        metrics for key, metrics in items if "tokens" in metrics and key.task not in skipped
    ]
    failed = sum(key.task not in skipped for key, _ in store.failures(iteration, stage))
    failed += len(all_scores) - len(scores)
    n = len(scores) + failed
    return {
        "n": n,
        "failed": failed,
        "score": sum(scores) / n if n else 0.0,
        "tokens": sum(int(metrics["tokens"]) for metrics in dialogues) / n if n else 0.0,
        **grade_means(store, iteration, stage, samples=None),
    }


def totals(
    store: Store, iteration: int, stage: str, names: Iterable[str]
) -> dict[str, float | int | str]:
    items = [metrics for key, metrics in store.metrics(iteration, stage).items() if key.task]
    return {name: sum(int(metrics.get(name, 0)) for metrics in items) for name in names}


BeginSearch = Callable[[Driver, Sessions, Task], Search]


@dataclass(slots=True)
class TreeWriter:
    """Reads the stored trees of an iteration and writes new searches."""

    store: Store
    iteration: int
    progress: Progress
    sampled_tokens: Callable[[], int]
    by_rollout: bool = False
    """True if the progress counts rollouts instead of searches."""
    rollouts: dict[str, list[Rollout]] = field(init=False)

    def __post_init__(self) -> None:
        self.rollouts = rollouts(self.store, self.iteration)

    def left(self, tasks: Iterable[Task], searches: int) -> int:
        done = [{rollout.search for rollout in self.rollouts.get(task.id, ())} for task in tasks]
        return sum(searches - len(numbers) for numbers in done)

    def load(self, task: Task) -> tuple[Tree, list[Rollout]]:
        recorded = self.rollouts.get(task.id, [])
        if not any(rollout.leaf for rollout in recorded):
            return Tree(task.id, "rollout", self.iteration), recorded
        return self.store.tree(self.iteration, "rollout", task.id), recorded

    def record(self, tree: Tree, new: Sequence[Rollout], credit: Sequence[Credit]) -> None:
        """Write all rollouts of a finished search in one transaction."""
        last_number = max((r.number for r in new if r.leaf is not None), default=-1)
        with self.store.together():
            for rollout in new:
                name = f"{rollout.search:03d}/{rollout.number:02d}"
                key = ItemKey(self.iteration, "rollout", tree.task, name)
                path = None if rollout.leaf is None else path_tree(tree, [rollout.leaf])
                rollout_credit, metrics = (
                    credit if rollout.number == last_number else (),
                    _metrics(rollout, path),
                )
                self.store.finish(
                    key, tree=path, credit=rollout_credit, metrics=metrics, failure=rollout.failure
                )
        done = len(new) if self.by_rollout else 1
        self.progress.advance(done, sampled_tokens=self.sampled_tokens())


async def grow_trees(
    driver: Driver,
    writer: TreeWriter,
    tasks: Sequence[Task],
    begin: BeginSearch,
    max_trees: int,
    on_finish: Callable[[Search], None] | None = None,
) -> None:
    """Grow the trees of tasks, ``max_trees`` concurrently, and call ``on_finish`` with each finished search."""

    async def one(task: Task, sessions: Sessions) -> Search:
        search = begin(driver, sessions, task)
        await search.grow(writer.record)
        return search

    async with (
        driver.sessions() as sessions,
        bounded_gather((one(task, sessions) for task in tasks), max_trees) as done,
    ):
        async for search in done:
            if on_finish is not None:
                on_finish(search)


def growth_summary(store: Store, iteration: int) -> Metrics:
    """Return counts and means of an iteration's rollouts. Raises ``UserError`` if all of them failed."""
    items = store.items(iteration, "rollout")
    all_rollouts = [rollout for of_task in _rollouts(items).values() for rollout in of_task]
    failed = sum(rollout.leaf is None for rollout in all_rollouts)
    if all_rollouts and failed == len(all_rollouts):
        problem = f"all {failed} rollouts failed; the first with: {all_rollouts[0].failure}"
        raise UserError(problem, "fix the cause, and run again in a new folder or with --fork")
    trees = list(store.outlines(iteration, "rollout"))
    scores = {leaf: outcome.score for tree in trees for leaf, outcome in tree.outcomes.items()}
    return {
        "n": len(all_rollouts),
        "failed": failed,
        "score": sum(scores.get(r.leaf or "") or 0.0 for r in all_rollouts) / len(all_rollouts),
        "tokens": sum(int(item.metrics.get("tokens", 0)) for item in items) / len(all_rollouts),
        "trees": len(trees),
        "turns": sum(len(tree.turns) for tree in trees),
    }


def rollouts(store: Store, iteration: int, task: str | None = None) -> dict[str, list[Rollout]]:
    return _rollouts(store.items(iteration, "rollout", task))


def _rollouts(items: Iterable[Item]) -> dict[str, list[Rollout]]:
    by_task: dict[str, list[Rollout]] = {}
    for item in items:
        if not item.key.task:
            continue
        search, _, number = item.key.sample.partition("/")
        leaf, reward = item.metrics.get("leaf"), item.metrics.get("reward")
        labels = str(item.metrics.get("labels", ""))
        rollout = Rollout(
            int(search),
            int(number),
            str(item.metrics["start"]),
            None if leaf is None else str(leaf),
            None if reward is None else float(reward),
            item.failure,
            int(item.metrics["sampled"]),
            tuple(map(int, labels.split(","))) if labels else (),
        )
        by_task.setdefault(item.key.task, []).append(rollout)
    for task_rollouts in by_task.values():
        task_rollouts.sort(key=lambda rollout_: (rollout_.search, rollout_.number))
    return by_task


def _metrics(rollout: Rollout, path: Tree | None) -> Metrics:
    shared: dict[str, float | int | str] = {"start": rollout.start, "sampled": rollout.sampled}
    if rollout.labels:
        shared["labels"] = ",".join(map(str, rollout.labels))
    if path is None or rollout.leaf is None or rollout.reward is None:
        return {**shared, "tokens": 0}
    tokens = dialogue_tokens(path.path(rollout.leaf))
    return {**shared, "tokens": tokens, "leaf": rollout.leaf, "reward": rollout.reward}
