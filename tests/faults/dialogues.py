"""Dialogues of the packaged model on some engine, in a form that can be compared."""

from dataclasses import dataclass

from coterie.engines.protocol import Engine, Sampling
from coterie.environments.exchange import Exchange
from coterie.environments.protocol import Shared
from coterie.models.loading import LoadedModel
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.samplers import TokenSampler

SAMPLING = Sampling(temperature=1.2, top_p=0.98, max_tokens=64, timeout=60)
TASKS = 4


@dataclass(frozen=True)
class SampledTurn:
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str


Played = dict[str, list[SampledTurn] | str]
"""Per task: what was said, or why it failed."""


async def play(engine: Engine, model: LoadedModel, long: int | None = None) -> Played:
    """Play all tasks; the one of number ``long`` has a system prompt that exceeds the context."""
    environment = Exchange()
    tasks = environment.tasks("train", TASKS, 0)
    episodes = [
        Episode(task, 0, 0, "rollout", "Talk on and on. " * 400 if index == long else None)
        for index, task in enumerate(tasks)
    ]
    sampler = TokenSampler(engine, model.renderer.render, SAMPLING, model.context_length)
    cast = dict.fromkeys(environment.actors, sampler)
    driver = Driver(environment, cast, seed=5, shared=Shared())
    played: Played = {}
    async with driver.play_all(episodes) as playing:
        async for one in playing:
            name = str([task.id for task in tasks].index(one.episode.task.id))
            if one.tree is None:
                played[name] = one.failure or ""
                continue
            (leaf,) = one.tree.outcomes
            played[name] = [
                SampledTurn(turn.ids, turn.sample.logprobs, turn.parts[0].text)
                for turn in one.tree.path(leaf)
                if turn.sample
            ]
    return played
