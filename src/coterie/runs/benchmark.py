"""Evaluates any policy on a benchmark's held-out tasks: a run's checkpoints, a model, an endpoint.

Each policy has a small store of its own, so that an evaluation that was cut off goes on, one that
is done is only read, and one of more samples plays only those that are new.
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
from coterie.environments.protocol import Environment
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
from coterie.environments.traits import Votes, agents_of
from coterie.environments.user_simulator import UserSimulatorSettings
from coterie.errors import UserError
from coterie.evaluation.self_consistency import Point, scaling
from coterie.progress import Progress
from coterie.rollout.episodes import Episode
from coterie.rollout.opening import opening
from coterie.rollout.samplers import Sampler
from coterie.runs.casting import Openers, open_cast
from coterie.runs.held_out import (
    STAGE,
    Evaluation,
    evaluation,
    grade_means,
    held_out_draws,
)
from coterie.runs.play import play
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.trajectories.store import Store
from coterie.trajectories.task import Task
from coterie.trajectories.turn import digest

PRESETS: dict[Method, dict[str, Any]] = {
    "cot_sc": {"samples": 8, "temperature": 0.5},
    "mad": {"temperature": 0.5},
}
"""What a method sets if it is not said otherwise: agents that are told the same must differ somehow."""

PUBLISHED: dict[str, tuple[str, ...]] = {"colbench_code": ("temperature=1", "max_tokens=1024")}
"""How a benchmark's paper evaluates, as settings (ColBench: SWEET-RL's released code)."""


class BenchmarkSettings(PlayedSettings):
    """How a benchmark is run. The same values on all policies make their figures comparable."""

    tasks: int = key(500, "Held-out tasks.", source="Optima: 1000 (exchange), all (debate)", ge=1)
    method: Method = key(
        "dialogue",
        "`dialogue` is the benchmark's own; baselines: `cot` (one agent with all facts, without actions), `cot_sc` "
        "(8 of these and a majority), `mad` (multi-agent debate), `autoform` (a dialogue in a form "
        "that the agents choose), `react` (for an agent that acts).",
        source="Optima table 1",
    )
    samples: int = key(
        1,
        "Dialogues a task; more than one gives coverage and majority by their number.",
        source="Optima section 3.3: 50 at temperature 0.5",
        ge=1,
        le=9999,
    )
    temperature: float = key(0.0, "0 is greedy.", source="Optima section 6", ge=0, le=2)
    max_tokens: int = key(256, "Most tokens of one turn.", source="Optima: 2000", ge=1)
    seed: int = key(0, "Seed of generated tasks and of sampling.", ge=0, le=MOST_SEED)
    user_simulator: UserSimulatorSettings = UserSimulatorSettings()
    sandbox: SandboxSettings = SandboxSettings()

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples={self.samples} at temperature=0 would be one dialogue {self.samples} "
                "times; give temperature=0.5"
            )
        return self

    def sampling(self, timeout: float) -> Sampling:
        """How turns are sampled; one that takes more than ``timeout`` seconds fails."""
        return Sampling(self.temperature, 1.0, self.max_tokens, (), timeout)

    def made(self) -> Environment:
        """Where the tasks are played, by the method. Raises ``UserError`` for what can't be."""
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
    """How a benchmark is run: a data set, or an environment that makes its own tasks, by the one name given.

    Raises ``UserError`` for a name that nothing has, and as :func:`resolve`.
    """
    words = with_file([*([f"dataset={benchmark}"] if is_data_file(benchmark) else ()), *words])
    benchmark = "qa" if is_data_file(benchmark) else benchmark
    asked = Choice.among(words)
    environments = is_spec(benchmark) and is_environment(benchmark)
    if environments or benchmark in (*ENVIRONMENTS.built_in, *installed(ENVIRONMENTS)):
        asked = replace(asked, environment=absolute_name(benchmark))
    else:
        _check_one_set(benchmark, asked.dataset)
        asked = replace(asked, dataset=absolute_name(benchmark))
    choice = asked.over(Choice())
    own = [word for word in words if not is_name_word(word)]
    values = [choice.values(), *layers, choice.names()]
    return resolve(played_type(base, choice), values, own, where=where)


def _check_one_set(benchmark: str, asked: str | None) -> None:
    """Refuse two data sets, of which one would not be played."""
    if asked is not None and asked != absolute_name(benchmark):
        raise UserError(
            f"{benchmark} is a data set, and dataset={asked} is another one",
            f"name one of them, or in the place of {benchmark} an environment, such as code_maths",
        )


@dataclass(frozen=True, slots=True)
class Consistency:
    """A policy with several dialogues on each held-out task."""

    n: int
    failed: int
    """Dialogues that failed for good; each counts with a score of 0 and has no vote."""
    points: tuple[Point, ...]
    """For 1, 2, ... dialogues a task."""
    means: Mapping[str, float]
    """Over all dialogues, of what else the environment's grades say, such as turns and leaks."""
    fresh: bool = False


def everybody(settings: BenchmarkSettings, sampler: Sampler) -> dict[str, Sampler]:
    return dict.fromkeys(agents_of(settings.made()), sampler)


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
    """Play the benchmark into the store at ``path``, or the rest of it; ``samplers`` has one for each agent.

    Tasks are those of ``split``; each split has a store of its own. ``again`` plays it anew if it is done there, as
    for a server whose weights may have changed.
    Raises ``UserError`` for missing data, or if every dialogue fails.
    """
    environment = settings.made()
    if settings.samples > 1 and not isinstance(environment, Votes):
        raise UserError(
            f"samples={settings.samples}: answers in {settings.played} can't be voted on",
            "use samples=1, or give the environment what traits.Votes has: answer_to, same, similarity",
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
        async with open_cast(environment, logs, settings.user_simulator, openers) as cast:
            driver = cast.driver(samplers, settings.seed)
            await play(store, driver, episodes, progress, sampled_tokens)
        if settings.samples == 1:
            return replace(evaluation(store, attempt), fresh=fresh)
        draws = held_out_draws(store, attempt, settings.samples)
        failed = sum(draw.failed for some in draws.values() for draw in some)
        assert isinstance(environment, Votes), "that was checked"
        points = tuple(scaling(draws, environment.similarity))
        means = grade_means(store, attempt, STAGE, settings.samples)
        return Consistency(len(draws), failed, points, means, fresh)


def _episodes(tasks: Sequence[Task], samples: int, attempt: int) -> list[Episode]:
    """Samples of one task are neighbours: they start together, so that their prompt is read once."""
    return [Episode(task, i, attempt, STAGE) for task in tasks for i in range(samples)]


def _keys(episodes: Sequence[Episode]) -> set[tuple[str, str]]:
    return {(episode.key.task, episode.key.sample) for episode in episodes}


async def store_name(settings: BenchmarkSettings, policy: str, split: Split = "heldout") -> str:
    """A file name for the store of a policy (its weights' hash, or an endpoint's model).

    It is the same for any number of samples: a store holds those that were played so far. Other
    prompts have another store.
    """
    rows = content(settings, make_environment(settings))
    same = settings.model_copy(update={"samples": 1})
    environment = settings.made()
    (task,) = environment.tasks(split, 1, settings.seed)
    shown = await opening(environment, task)
    prompts = [
        part.text for agent in agents_of(environment) for part in shown[agent].messages[0].parts
    ]
    beside = "" if split == "heldout" else f"-{split}"
    known = digest(policy, same.fingerprint(), rows, *prompts)[:12]
    return f"{settings.played}-{known}{beside}.sqlite"
