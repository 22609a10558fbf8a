"""Evaluation of a policy (checkpoint, model or endpoint) on the held-out tasks of a benchmark.

Each policy has its own store. An interrupted evaluation resumes, a finished one is only read, and one with more samples
plays only the new samples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import model_validator

from coterie.config.folders import make_folder
from coterie.config.plugins import absolute_name, installed, is_spec
from coterie.config.resolve import RECIPE_KEYS, resolve
from coterie.config.settings import MOST_SEED, key
from coterie.datasets.catalogue import Split
from coterie.engines.protocol import Sampling
from coterie.environments.baselines import Method, by_method
from coterie.environments.protocol import Environment, Openers, Votes, agents_of
from coterie.environments.registry import (
    ENVIRONMENTS,
    Choice,
    PlayedSettings,
    content,
    is_data_file,
    is_environment,
    is_name_word,
    make_environment,
    played_type,
    with_file,
)
from coterie.environments.user_simulator import UserSimulatorSettings
from coterie.errors import UserError
from coterie.evaluation.self_consistency import Point, scaling
from coterie.progress import Progress
from coterie.record.store import Store
from coterie.record.tree import Task
from coterie.record.turn import digest
from coterie.rollout.episodes import Episode, first_prompts_async
from coterie.rollout.samplers import Sampler
from coterie.runs.actors import open_actors
from coterie.runs.evaluation_results import (
    STAGE,
    Evaluation,
    evaluation,
    grade_means,
    held_out_draws,
)
from coterie.runs.items import play
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings

PRESETS: dict[Method, dict[str, Any]] = {
    "cot_sc": {"samples": 8, "temperature": 0.5},
    "mad": {"temperature": 0.5},
}
"""Default settings of methods. Agents with equal prompts need sampling to give different answers."""

PUBLISHED: dict[str, tuple[str, ...]] = {"colbench_code": ("temperature=1", "max_tokens=1024")}
"""Evaluation settings of a benchmark's paper (ColBench: SWEET-RL's released code)."""


class BenchmarkSettings(PlayedSettings):
    """Settings of a benchmark. Policies are comparable under equal settings."""

    tasks: int = key(500, "Held-out tasks.", source="Optima: 1000 (exchange), all (debate)", ge=1)
    method: Method = key(
        "dialogue",
        "`dialogue` is the benchmark's own method. Baselines: `cot` (one agent with all facts, without actions), "
        "`cot_sc` (majority of 8 of these), `mad` (multi-agent debate), `autoform` (a dialogue in a format that the "
        "agents choose), `react` (for an agent that acts).",
        source="Optima table 1",
    )
    samples: int = key(
        1,
        "Dialogues per task. Several give coverage and majority accuracy by number of samples.",
        source="Optima section 3.3: 50 at temperature 0.5",
        ge=1,
        le=9999,
    )
    temperature: float = key(0.0, "0 is greedy.", source="Optima section 6", ge=0, le=2)
    max_tokens: int = key(256, "Maximum tokens per turn.", source="Optima: 2000", ge=1)
    seed: int = key(0, "Seed of generated tasks and of sampling.", ge=0, le=MOST_SEED)
    user_simulator: UserSimulatorSettings = UserSimulatorSettings()
    sandbox: SandboxSettings = SandboxSettings()

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples={self.samples} at temperature=0 gives {self.samples} equal dialogues; use temperature=0.5"
            )
        return self

    def sampling(self, timeout: float) -> Sampling:
        """Return the sampling settings. A turn that takes more than ``timeout`` seconds fails."""
        return Sampling(self.temperature, 1.0, self.max_tokens, (), timeout)

    def build_environment(self) -> Environment:
        """Make the environment of the method. Raises ``UserError`` if the method does not fit."""
        return by_method(make_environment(self), self.method)


B = TypeVar("B", bound=PlayedSettings)


def benchmark_settings(
    base: type[B],
    benchmark: str,
    words: Sequence[str] = (),
    layers: Sequence[Mapping[str, Any]] = (),
    *,
    where: str = RECIPE_KEYS,
) -> B:
    """Resolve the settings of a benchmark, named by a data set or by an environment with its own tasks.

    Raises ``UserError`` for an unknown name, and like :func:`resolve`.
    """
    words = with_file([*([f"dataset={benchmark}"] if is_data_file(benchmark) else ()), *words])
    benchmark = "qa" if is_data_file(benchmark) else benchmark
    words_choice = Choice.among(words)
    is_environment_spec = is_spec(benchmark) and is_environment(benchmark)
    if is_environment_spec or benchmark in (*ENVIRONMENTS.built_in, *installed(ENVIRONMENTS)):
        words_choice = replace(words_choice, environment=absolute_name(benchmark))
    else:
        _check_one_set(benchmark, words_choice.dataset)
        words_choice = replace(words_choice, dataset=absolute_name(benchmark))
    choice = words_choice.over(Choice())
    own = [word for word in words if not is_name_word(word)]
    values = [choice.values(), *layers, choice.names()]
    return resolve(played_type(base, choice), values, own, where=where)


def _check_one_set(benchmark: str, dataset: str | None) -> None:
    """Raise ``UserError`` if two different data sets are named."""
    if dataset is not None and dataset != absolute_name(benchmark):
        raise UserError(
            f"{benchmark} and dataset={dataset} are different data sets",
            f"name one of them, or replace {benchmark} with an environment, such as code_maths",
        )


@dataclass(frozen=True, slots=True)
class Consistency:
    """Results of a policy with several dialogues per held-out task."""

    n: int
    failed: int
    """Failed dialogues. Each scores 0 and has no vote."""
    points: tuple[Point, ...]
    """Points for 1, 2, ... dialogues per task."""
    means: Mapping[str, float]
    """Means of the other metrics of grades over all dialogues, such as turns and leaks."""
    fresh: bool = False


def sampler_per_agent(settings: BenchmarkSettings, sampler: Sampler) -> dict[str, Sampler]:
    return dict.fromkeys(agents_of(settings.build_environment()), sampler)


async def evaluate(
    settings: BenchmarkSettings,
    samplers: Mapping[str, Sampler],
    path: Path,
    progress: Progress,
    sampled_tokens: Callable[[], int],
    *,
    again: bool = False,
    split: Split = "heldout",
) -> Evaluation | Consistency:
    """Play a benchmark into a store, or resume it.

    Each ``split`` needs its own store at ``path``. ``again`` repeats a finished benchmark, for a server whose weights
    may have changed. Raises ``UserError`` if data is missing or every dialogue fails.
    """
    environment = settings.build_environment()
    if settings.samples > 1 and not isinstance(environment, Votes):
        raise UserError(
            f"samples={settings.samples}: {settings.played} has no vote over answers",
            "use samples=1, or implement Votes in the environment: answer_to, same, similarity",
        )
    make_folder(path.parent)
    with Store.open(path) as store:
        tasks = environment.tasks(split, settings.tasks, settings.seed)
        attempt = 0
        episodes = _episodes(tasks, settings.samples, attempt)
        while again and _keys(episodes) <= store.finished_keys(attempt, STAGE):
            attempt += 1
            episodes = _episodes(tasks, settings.samples, attempt)
        fresh = not store.finished_keys(attempt, STAGE)
        openers: Openers = {Sandbox: partial(Sandbox, settings.sandbox)}
        logs = path.with_suffix("")
        async with open_actors(environment, logs, settings.user_simulator, openers) as actors:
            driver = actors.driver(samplers, settings.seed)
            await play(store, driver, episodes, progress, sampled_tokens)
        if settings.samples == 1:
            return replace(evaluation(store, attempt), fresh=fresh)
        draws = held_out_draws(store, attempt, settings.samples)
        failed = sum(draw.failed for some in draws.values() for draw in some)
        assert isinstance(environment, Votes), "checked above"
        points = tuple(scaling(draws, environment.similarity))
        means = grade_means(store, attempt, STAGE, settings.samples)
        return Consistency(len(draws), failed, points, means, fresh)


def _episodes(tasks: Sequence[Task], samples: int, attempt: int) -> list[Episode]:
    """Return the episodes. Samples of a task are adjacent, so that they share the prefill of their prompt."""
    return [Episode(task, i, attempt, STAGE) for task in tasks for i in range(samples)]


def _keys(episodes: Sequence[Episode]) -> set[tuple[str, str]]:
    return {(episode.key.task, episode.key.sample) for episode in episodes}


async def store_name(settings: BenchmarkSettings, policy: str, split: Split = "heldout") -> str:
    """Return the file name of a policy's store.

    ``policy`` is the hash of the weights or the model of an endpoint. The name depends on the prompts, but not on the
    number of samples.
    """
    rows = content(settings, make_environment(settings))
    same = settings.model_copy(update={"samples": 1})
    environment = settings.build_environment()
    (task,) = environment.tasks(split, 1, settings.seed)
    first_prompts = await first_prompts_async(environment, task)
    prompts = [
        part.text
        for agent in agents_of(environment)
        for part in first_prompts[agent].messages[0].parts
    ]
    suffix = "" if split == "heldout" else f"-{split}"
    identity = digest(policy, same.fingerprint(), rows, *prompts)[:12]
    return f"{settings.played}-{identity}{suffix}.sqlite"
