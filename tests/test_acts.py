"""The tiny model that acts: how it plays."""

import asyncio
import statistics

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.babyai import BabyAI, BabyAISettings
from coterie.environments.protocol import Shared
from coterie.models.loading import load
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.samplers import TokenSampler
from scripts.tiny.acts import LEVEL

MODEL = "tiny-acts"
TIGHT = 9
"""Steps within which a good player is done with most games."""


def scores(model: str, temperature: float, tasks: int, samples: int) -> list[list[float]]:
    """Play held-out games; return the scores of the samples of each."""
    loaded, environment = load(model), BabyAI(BabyAISettings(level=LEVEL, steps=TIGHT))
    engine = InProcessEngine(loaded, policy=model, version="0")
    sampling = Sampling(temperature, 1.0, 32, (), 60.0)
    sampler = TokenSampler(engine, loaded.renderer.render, sampling, loaded.context_length)
    games = environment.tasks("heldout", tasks, 0)
    found: dict[str, list[float]] = {game.id: [] for game in games}

    async def play() -> None:
        driver = Driver(environment, {"agent": sampler}, seed=0, shared=Shared())
        episodes = [Episode(game, n, 0, "test") for game in games for n in range(samples)]
        async with driver.play_all(episodes) as playing:
            async for one in playing:
                assert one.tree is not None, one.failure
                (outcome,) = one.tree.outcomes.values()
                found[one.episode.task.id].append(outcome.score or 0.0)

    asyncio.run(play())
    return list(found.values())


def share_of_games_won(model: str) -> float:
    return statistics.fmean(one for (one,) in scores(model, 0.0, 60, 1))


def test_the_packaged_model_often_loses_and_can_win() -> None:
    assert 0.15 < share_of_games_won(MODEL) < 0.75
    sampled = scores(MODEL, 1.0, 30, 8)
    best = statistics.fmean(map(max, sampled))
    assert best - statistics.fmean(map(statistics.fmean, sampled)) > 0.15
