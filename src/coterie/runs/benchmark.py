"""Evaluates any policy on a benchmark's held-out tasks: a run's checkpoints, a model, an endpoint.

Each policy has a small store of its own, so that an evaluation that was cut off goes on, and one that
is done is only read.
"""

from collections.abc import Callable
from pathlib import Path

from coterie.config.settings import Settings, key
from coterie.engines.protocol import Sampling
from coterie.environments.registry import DataSettings, content, environment
from coterie.progress import Progress
from coterie.rollout.episodes import Episode, Player
from coterie.rollout.voices import Voice
from coterie.runs.held_out import STAGE, Evaluation, evaluation
from coterie.runs.play import play
from coterie.trajectories.store import Store
from coterie.trajectories.turn import digest


class BenchmarkSettings(Settings):
    """How a benchmark is run. The same values on all policies make their figures comparable."""

    tasks: int = key(500, "Held-out tasks.", source="Optima: 1000 (exchange), all (debate)", ge=1)
    temperature: float = key(0.0, "0 is greedy.", source="Optima section 6", ge=0, le=2)
    max_tokens: int = key(256, "Most tokens of one turn.", source="Optima: 2000", ge=1)
    seed: int = key(0, "Seed of generated tasks and of sampling.", ge=0)
    data: DataSettings = DataSettings()

    def sampling(self, timeout: float) -> Sampling:
        """How turns are sampled; one that takes more than ``timeout`` seconds fails."""
        return Sampling(self.temperature, 1.0, self.max_tokens, (), timeout)


async def evaluate(
    benchmark: str,
    settings: BenchmarkSettings,
    voice: Voice,
    path: Path,
    progress: Progress,
    sampled_tokens: Callable[[], int],
    *,
    again: bool = False,
) -> Evaluation:
    """Play the benchmark with a policy into the store at ``path``, or the rest of it.

    ``again`` plays it anew if it is done there, as for a server whose weights may have changed.
    Raises ``UserError`` for an unknown benchmark, missing data, or if every dialogue fails.
    """
    world = environment(benchmark, settings.data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with Store.open(path) as store:
        tasks = world.tasks("heldout", settings.tasks, settings.seed)
        attempt = 0
        while again and len(store.finished_keys(attempt, STAGE)) == len(tasks):
            attempt += 1
        episodes = [Episode(task, 0, attempt, STAGE) for task in tasks]
        await play(store, Player(world, voice, settings.seed), episodes, progress, sampled_tokens)
        return evaluation(store, attempt)


def store_name(benchmark: str, settings: BenchmarkSettings, policy: str) -> str:
    """A file name for the store of a policy (its weights' hash, or an endpoint's model)."""
    rows = content(benchmark, settings.data)
    return f"{benchmark}-{digest(policy, settings.fingerprint(), rows)[:12]}.sqlite"
