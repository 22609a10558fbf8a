"""Playing of episodes into a store. Each episode is written when it finishes and is not repeated."""

from collections.abc import AsyncIterator, Callable, Sequence

from coterie.progress import Progress
from coterie.record.store import Metrics, Store
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.runs.evaluation_results import grade_means
from coterie.runs.items import Done, going_on, record


async def play(
    store: Store,
    driver: Driver,
    episodes: Sequence[Episode],
    progress: Progress,
    sampled_tokens: Callable[[], int],
) -> None:
    """Play the unfinished episodes of one iteration and stage.

    Raises :class:`UserError` if all of them fail.
    """
    iteration, stage = episodes[0].iteration, episodes[0].stage
    finished = {key for key in store.finished_keys(iteration, stage) if key[0]}
    store.put_tasks({e.task.id: e.task for e in episodes}.values())
    left = [e for e in episodes if (e.key.task, e.key.sample) not in finished]
    progress.start(len(left), f"{stage} {iteration}")
    before = sampled_tokens()
    with going_on(f"{stage} {iteration}", progress):
        async with driver.play_all(left) as playing:
            await record(
                *(store, _items(playing), progress, "dialogues"), lambda: sampled_tokens() - before
            )


def summary(store: Store, iteration: int, stage: str) -> Metrics:
    """Return the number of dialogues and failures, and the mean score, tokens and metrics of grades.

    A failed or ungraded dialogue scores 0.
    """
    all_scores = [o.score for tree in store.trees(iteration, stage) for o in tree.outcomes.values()]
    scores = [score for score in all_scores if score is not None]
    dialogues = [
        m for key, m in store.metrics(iteration, stage).items() if "tokens" in m and key.task
    ]
    failed = sum(key.stage == stage for key, _ in store.failures(iteration))
    failed += len(all_scores) - len(scores)
    n = len(scores) + failed
    return {
        "n": n,
        "failed": failed,
        "score": sum(scores) / n if n else 0.0,
        "tokens": sum(int(metrics["tokens"]) for metrics in dialogues) / n if n else 0.0,
        **grade_means(store, iteration, stage, samples=None),
    }


async def _items(playing: AsyncIterator[EpisodeResult]) -> AsyncIterator[Done]:
    async for one in playing:
        metrics = {"tokens": one.tokens, **one.metrics}
        yield Done(one.episode.key, metrics, one.tree, one.credit, one.failure)
