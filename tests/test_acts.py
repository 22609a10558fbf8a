"""The tiny model that acts: what it learns from is what environments show, and how it plays."""

import asyncio
import random
import statistics
from collections.abc import Sequence
from functools import cache

from transformers import PreTrainedTokenizerFast

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.acting import Acting, write_action
from coterie.environments.babyai import BabyAI, BabyAISettings, Game, games, new_level
from coterie.environments.protocol import Shared, State
from coterie.environments.sums import Sums, generate, sums_task
from coterie.models.loading import load, load_renderer
from coterie.record.tree import Task, Tree
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.samplers import Sampler, TokenSampler
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings
from scripts.tiny.acts import LEVEL, game_row, right_play, sums_row
from scripts.tiny.acts_player import Room, Step, play
from tests.games import Script

MODEL = "tiny-acts"
TIGHT = 9
"""Steps within which a good player is done with most games."""


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return load_renderer(MODEL)[0].tokenizer


def babyai() -> BabyAI:
    return BabyAI(BabyAISettings(level=LEVEL, steps=TIGHT))


async def trees(
    environment: Acting, sampler: Sampler, tasks: Sequence[Task], shared: Shared, samples: int = 1
) -> dict[str, list[Tree]]:
    driver = Driver(environment, {"agent": sampler}, seed=0, shared=shared)
    episodes = [Episode(task, n, 0, "test") for task in tasks for n in range(samples)]
    found: dict[str, list[Tree]] = {task.id: [] for task in tasks}
    async with driver.play_all(episodes) as playing:
        async for one in playing:
            assert one.tree is not None, one.failure
            found[one.episode.task.id].append(one.tree)
    return found


def score(tree: Tree) -> float:
    (outcome,) = tree.outcomes.values()
    assert outcome.score is not None
    return outcome.score


def scores(model: str, temperature: float, tasks: int, samples: int) -> list[list[float]]:
    loaded, environment = load(model), babyai()
    engine = InProcessEngine(loaded, policy=model, version="0")
    sampling = Sampling(temperature, 1.0, 32, (), 60.0)
    sampler = TokenSampler(engine, loaded.renderer.render, sampling, loaded.context_length)
    drawn = environment.tasks("heldout", tasks, 0)
    found = asyncio.run(trees(environment, sampler, drawn, Shared(), samples))
    return [list(map(score, some)) for some in found.values()]


def share_of_games_won(model: str) -> float:
    return statistics.fmean(one for (one,) in scores(model, 0.0, 60, 1))


def scripted(habit: float, count: int = 60) -> list[tuple[list[Step], bool]]:
    """Held-out games as the script plays them, and whether they are won."""
    game, rng, found = Game(new_level(LEVEL)), random.Random(0), []
    for one in games(LEVEL, "heldout", 0, 0, count):
        steps = play(game, one.seed, TIGHT, habit, rng)
        x, y = map(int, game.level.front_pos)
        found.append((steps, (x, y) in Room(game.level).wanted))
    return found


def shown(environment: Acting, task: Task, tree: Tree) -> tuple[int, ...]:
    """The prompt of the last message of a tree's only path, as the packaged model is asked."""
    (outcome,) = tree.outcomes.values()
    turns = tree.path(outcome.leaf)
    while turns[-1].speaker.name != "agent":
        turns.pop()
    messages = environment.see(State(task, 0, turns=tuple(turns[:-1])), "agent")
    return tuple(load_renderer(MODEL)[0].render(messages, tree, "agent"))


def test_rows_of_games_are_what_the_environment_shows() -> None:
    """Else the packaged model would be asked in words that it has never seen."""
    environment = babyai()
    (task,) = environment.tasks("heldout", 1, 0)
    ((steps, _),) = scripted(0.62, 1)
    words = iter(steps)
    script = Script(lambda _: write_action(next(words).action))
    ((tree,),) = asyncio.run(trees(environment, script, [task], Shared())).values()
    row = game_row(tokenizer(), steps, "test")
    assert shown(environment, task, tree) == row.ids[: row.targets[-1].start]
    assert len(row.targets) == len(steps)


def test_rows_of_sums_are_what_the_environment_shows() -> None:
    environment, rng = Sums(), random.Random(0)
    problem = generate("heldout", 1, 0)[0]
    said = [text for role, text in right_play(problem, random.Random(0)) if role == "assistant"]
    words = iter(said)

    async def play_it() -> Tree:
        async with Sandbox(SandboxSettings()) as sandbox:
            script = Script(lambda _: next(words))
            task = sums_task(problem)
            ((tree,),) = (await trees(environment, script, [task], Shared(sandbox))).values()
            return tree

    tree = asyncio.run(play_it())
    row = sums_row(tokenizer(), problem, 0.0, rng)
    assert score(tree) == 1.0
    assert shown(environment, sums_task(problem), tree) == row.ids[: row.targets[-1].start]


def test_the_packaged_model_often_loses_and_can_win() -> None:
    assert 0.15 < share_of_games_won(MODEL) < 0.75
    sampled = scores(MODEL, 1.0, 30, 8)
    best = statistics.fmean(map(max, sampled))
    assert best - statistics.fmean(map(statistics.fmean, sampled)) > 0.15
