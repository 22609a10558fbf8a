"""The candidates of ``sweet_rl``'s second round, an item a dialogue."""

from functools import partial

from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.coding import AGENT
from coterie.progress import Progress
from coterie.recipes.sweet_rl.data import SECOND, SweetData, played
from coterie.rollout.candidates import Branching, Played, candidates
from coterie.runs.folder import Run
from coterie.runs.items import Done, do_items
from coterie.trajectories.item import ItemKey, Metrics


async def branch(recipe: SweetData, run: Run, progress: Progress) -> Metrics:
    """Candidates for the turns of the first dialogues, by the base policy."""
    s = recipe.settings
    sampler = await recipe.sampler(run, 0, s.candidates.temperature, s.rollout.top_p)
    stats, before = sampler.engine.stats, sampler.engine.stats.sampled_tokens
    async with recipe.cast(run) as cast:
        driver = cast.driver({AGENT: sampler}, s.seed)
        async with driver.sessions() as sessions:
            count = s.candidates.count
            branching = Branching(driver, sampler, sessions, SECOND, "rollout", count)
            items = {
                ItemKey(SECOND, "rollout", one.task.id, one.key): partial(_branched, branching, one)
                for one in played(run, s.candidates.share)
            }
            await do_items(
                *(run.store, items, progress, "dialogues", f"candidates {SECOND}"),
                in_flight=s.candidates.in_flight,
                sampled_tokens=lambda: stats.sampled_tokens - before,
            )
    found = [m for key, m in run.store.metrics(SECOND, "rollout").items() if key.task]
    failed = sum(key.stage == "rollout" for key, _ in run.store.failures(SECOND))
    count = sum(int(metrics["candidates"]) for metrics in found)
    return {"dialogues": len(found), "failed": failed, "candidates": count}


async def _branched(branching: Branching, dialogue: Played) -> Done:
    key = ItemKey(SECOND, "rollout", dialogue.task.id, dialogue.key)
    try:
        tree = await branching.branch(dialogue)
    except EngineGone:
        raise
    except EngineError as error:
        return Done(key, {"candidates": 0}, failure=str(error))
    return Done(key, {"candidates": sum(map(len, candidates(tree)))}, tree)
