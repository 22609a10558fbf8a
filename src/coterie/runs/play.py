"""Plays episodes into a store: each is written as it finishes, and what is written is not played again."""

from collections.abc import AsyncIterator, Callable, Sequence

from coterie.engines.protocol import EngineGone
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.rollout.episodes import Episode, Finished, Player
from coterie.trajectories.store import Metrics, Store


async def play(
    store: Store,
    player: Player,
    episodes: Sequence[Episode],
    progress: Progress,
    sampled_tokens: Callable[[], int],
) -> None:
    """Play the episodes that are left. All are of one iteration and stage.

    Raises :class:`UserError` if every one of them fails.
    """
    iteration, stage = episodes[0].iteration, episodes[0].stage
    finished = {key for key in store.finished_keys(iteration, stage) if key[0]}
    store.put_tasks({e.task.id: e.task for e in episodes}.values())
    left = [e for e in episodes if (e.key.task, e.key.sample) not in finished]
    progress.start(len(left), f"{stage} {iteration}")
    before = sampled_tokens()
    succeeded = len(finished) > sum(key.stage == stage for key, _ in store.failures(iteration))
    try:
        async with player.play_all(left) as playing:
            await _record(
                store, playing, progress, lambda: sampled_tokens() - before, succeeded=succeeded
            )
    except EngineGone as error:
        raise UserError(
            f"{stage} {iteration} can't go on: {error}",
            "mend the cause and run again: what is finished is kept, the rest is played then",
        ) from error
    finally:
        progress.close()


def summary(store: Store, iteration: int, stage: str) -> Metrics:
    """How many dialogues of a stage there are and how many failed; mean score and tokens.

    A failed dialogue counts with a score and tokens of 0.
    """
    scores = [
        outcome.score
        for tree in store.trees(iteration, stage)
        for outcome, _ in tree.trajectories()
    ]
    played = [m for key, m in store.metrics(iteration, stage).items() if "tokens" in m and key.task]
    failed = sum(key.stage == stage for key, _ in store.failures(iteration))
    n = len(scores) + failed
    return {
        "n": n,
        "failed": failed,
        "score": sum(scores) / n if n else 0.0,
        "tokens": sum(int(metrics["tokens"]) for metrics in played) / n if n else 0.0,
    }


async def _record(
    store: Store,
    finished: AsyncIterator[Finished],
    progress: Progress,
    sampled_tokens: Callable[[], int],
    *,
    succeeded: bool,
) -> None:
    """Write each episode as it finishes.

    Failures are withheld until one episode succeeds: if all fail, that is no property of the
    episodes, nothing is written, and :class:`UserError` says why.
    """
    withheld: list[Finished] = []
    async for done in finished:
        progress.advance(1, sampled_tokens=sampled_tokens())
        withheld.append(done)
        succeeded = succeeded or done.tree is not None
        if not succeeded:
            continue
        for one in withheld:
            metrics = {"tokens": one.tokens, **one.metrics}
            store.finish(one.episode.key, tree=one.tree, failure=one.failure, metrics=metrics)
        withheld.clear()
    if withheld:
        raise UserError(
            f"all {len(withheld)} dialogues failed; the first because: {withheld[0].failure}",
            "mend the cause and run again; nothing was recorded of them",
        )
