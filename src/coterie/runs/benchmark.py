"""Evaluation of a policy (checkpoint, model or endpoint) on the held-out tasks of a benchmark.

Each policy has its own store. An interrupted evaluation resumes, a finished one is only read, and one with more samples
plays only the new samples. A judge may pick the best of several dialogues of a task (AFM, arXiv 2508.13167, table 4).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import model_validator

from coterie.config.folders import atomic_file, make_folder
from coterie.config.plugins import absolute_name, installed, is_spec
from coterie.config.resolve import RECIPE_KEYS, flatten, resolve
from coterie.config.settings import MOST_SEED, key
from coterie.datasets.catalogue import Split
from coterie.datasets.load import Rows
from coterie.engines.protocol import Sampling
from coterie.environments.protocol import Environment, Openers, Votes, agents_of, draw_tasks
from coterie.environments.qa_metrics import known_answers
from coterie.environments.registry import (
    ENVIRONMENTS,
    NAMES,
    Choice,
    TaskSettings,
    content,
    is_data_file,
    is_environment,
    is_played,
    is_task_pair,
    make_environment,
    task_settings_type,
    with_file,
)
from coterie.environments.settings import Method
from coterie.environments.user_simulator import UserSimulatorSettings
from coterie.errors import UserError, did_you_mean
from coterie.progress import Progress
from coterie.record.store import Store
from coterie.record.turn import Turn, digest
from coterie.rollout.episodes import Episode, first_prompts_async
from coterie.rollout.samplers import Sampler
from coterie.runs.evaluation import Evaluation, evaluation
from coterie.runs.loop import EVALUATION
from coterie.runs.work_items import open_actors, play
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings

PRESETS: dict[Method, dict[str, Any]] = {
    "cot_sc": {"samples": 8, "temperature": 0.5},
    "mad": {"temperature": 0.5},
}
"""Default settings of methods. Agents with equal prompts need sampling to give different answers."""

PUBLISHED: dict[str, tuple[str, ...]] = {
    "colbench_code": ("temperature=1", "max_tokens=1024"),
    "websight": (
        "tasks=500", "temperature=1", "max_tokens=1024", "environment.similarity=clip",
        "user_simulator.max_tokens=4096",
    ),
}  # fmt: skip
"""Evaluation settings of a benchmark's paper (ColBench: SWEET-RL's released code)."""


class BenchmarkSettings(TaskSettings):
    """Settings of a benchmark. Policies are comparable under equal settings."""

    tasks: int = key(500, "Held-out tasks.", source="Optima: 1000 (exchange), all (debate)", ge=1)
    method: Method = key(
        "dialogue",
        "`dialogue` is the benchmark's own method. Baselines: `cot` (one agent with all facts, without actions), "
        "`cot_sc` (majority of 8 of these), `mad` (multi-agent debate), `autoform` (a dialogue in a format that the "
        "agents choose). For an agent that acts: `react`, `reflexion` (attempts), `code_as_policy` (a program).",
        source="Optima table 1",
    )
    attempts: int = key(3, "Attempts at a task with method=reflexion.", ge=1)
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
        environment = make_environment(self)
        if self.method == "dialogue":
            return environment
        from coterie.environments.baselines import by_method

        return by_method(environment, self.method, self.attempts)


B = TypeVar("B", bound=TaskSettings)


def benchmark_settings(
    base: type[B],
    benchmark: str,
    overrides: Sequence[str] = (),
    layers: Sequence[Mapping[str, Any]] = (),
    *,
    where: str = RECIPE_KEYS,
) -> B:
    """Resolve the settings of a benchmark, named by a data set or by an environment with its own tasks.

    Raises ``UserError`` for an unknown name, and like :func:`resolve`.
    """
    # A file of rows becomes the data set of the environment for questions.
    if is_data_file(benchmark):
        overrides, benchmark = [f"dataset={benchmark}", *overrides], "qa"
    overrides = with_file(overrides)
    typed_choice = Choice.among(overrides)
    # An environment by this name has tasks of its own; every other name is a data set.
    is_environment_spec = is_spec(benchmark) and is_environment(benchmark)
    if is_environment_spec or benchmark in (*ENVIRONMENTS.built_in, *installed(ENVIRONMENTS)):
        typed_choice = replace(typed_choice, environment=absolute_name(benchmark))
    else:
        if not is_played(benchmark):
            near = did_you_mean(benchmark, NAMES)
            raise UserError(f"no benchmark is called {benchmark!r}", f"{near}see `coterie list`")
        if typed_choice.dataset not in (None, absolute_name(benchmark)):
            problem = f"{benchmark} and dataset={typed_choice.dataset} are different data sets"
            raise UserError(problem, "name one, or give an environment such as code_maths first")
        typed_choice = replace(typed_choice, dataset=absolute_name(benchmark))
    choice = typed_choice.with_defaults(Choice())
    # The names are settled now, so that only the other settings remain to be resolved.
    keys = [pair for pair in overrides if not is_task_pair(pair)]
    # Later layers win: what the data set implies, then the caller's values, then the names.
    values = [choice.values(), *layers, choice.names()]
    return resolve(task_settings_type(base, choice), values, keys, where=where)


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
) -> Evaluation:
    """Play a benchmark into a store, or resume it.

    Each ``split`` needs its own store at ``path``. ``again`` repeats a finished benchmark, for a server whose weights
    may have changed. Raises ``UserError`` if data is missing or every dialogue fails.
    """
    environment = settings.build_environment()
    if settings.samples > 1 and not isinstance(environment, Votes):
        raise UserError(
            f"samples={settings.samples}: {settings.benchmark} has no vote over answers",
            "use samples=1, or implement Votes in the environment: answer_to, same, similarity",
        )
    make_folder(path.parent)
    with Store.open(path) as store:
        tasks = draw_tasks(environment, split, settings.tasks, settings.seed)
        attempt, samples = 0, range(settings.samples)
        # Samples of a task are adjacent, so that they share the prefill of their prompt.
        episodes = [Episode(task, n, attempt, EVALUATION) for task in tasks for n in samples]
        # ``again`` leaves the finished attempt in the store and plays the next number.
        keys = {(episode.key.task, episode.key.sample) for episode in episodes}
        while again and keys <= store.finished_keys(attempt, EVALUATION):
            attempt += 1
        episodes = [replace(episode, iteration=attempt) for episode in episodes]
        fresh = not store.finished_keys(attempt, EVALUATION)
        openers: Openers = {Sandbox: partial(Sandbox, settings.sandbox)}
        logs = path.with_suffix("")
        async with open_actors(environment, logs, settings.user_simulator, openers) as actors:
            driver = actors.driver(samplers, settings.seed)
            await play(store, driver, episodes, progress, sampled_tokens)
        return replace(
            evaluation(store, attempt, settings.samples),
            store=path,
            fresh=fresh,
            similarity=environment.similarity if isinstance(environment, Votes) else None,
        )


def task_values(settings: BenchmarkSettings, split: Split, column: str) -> dict[str, str]:
    """Return the value of a column (`a.b` is inside `a`) of each task: of its row, or of its public fields.

    Raises ``UserError`` if no task has the column.
    """
    environment, fields = make_environment(settings), dict[str, dict[str, Any]]()
    # The rows of the data set may have columns that the environment does not make public.
    if isinstance(rows := getattr(environment, "rows", None), Rows):
        for row in rows.split(split):
            fields[row.id] = flatten(json.loads(row.model_dump_json()))
    tasks, values = draw_tasks(environment, split, settings.tasks, settings.seed), dict[str, str]()
    columns = dict[str, None]()
    for task in tasks:
        # Task ids are row ids, in some environments with the environment's name before them.
        row_id = task.id if task.id in fields else task.id.removeprefix(f"{environment.name}-")
        row_values = {**flatten(task.public), **fields.get(row_id, {})}
        columns |= dict.fromkeys(row_values)
        values[task.id] = str(row_values.get(column, "(none)"))
    if column not in columns:
        problem = f"by={column}: no task of {settings.benchmark} has a column {column!r}"
        fix = f"{did_you_mean(column, columns)}its columns are {', '.join(columns)}"
        raise UserError(problem, fix)
    return values


async def store_name(settings: BenchmarkSettings, policy: str, split: Split = "heldout") -> str:
    """Return the file name of a policy's store.

    ``policy`` is the hash of the weights or the model of an endpoint. The name depends on the prompts, but not on the
    number of samples.
    """
    rows = content(settings, make_environment(settings))
    # More samples extend the same store, so their number is not part of its name. Neither are the
    # keys of outputs and of the engine.
    same = settings.model_copy(update={"samples": 1})
    fingerprint = same.fingerprint(BenchmarkSettings.model_fields)
    environment = settings.build_environment()
    (task,) = environment.tasks(split, 1, settings.seed)
    # Prompts can change with the environment's code while all settings stay the same.
    first_prompts = await first_prompts_async(environment, task)
    messages = [first_prompts[agent].messages[0] for agent in agents_of(environment)]
    prompts = [part.text for message in messages for part in message.parts]
    suffix = "" if split == "heldout" else f"-{split}"
    identity = digest(policy, fingerprint, rows, *prompts)[:12]
    return f"{settings.benchmark}-{identity}{suffix}.sqlite"


async def write_dialogues(file: Path, store: Store, settings: BenchmarkSettings, step: int) -> None:
    """Write a new JSONL file with a row for each dialogue of the newest evaluation that did not fail.

    ``input`` is the first prompt of the first agent, ``output`` all later turns including tool results, with a
    paragraph per turn if there are several agents. ``ground_truth`` lists the known answers. Ungraded dialogues have no
    score.
    """
    environment = settings.build_environment()
    several = len(agents_of(environment)) > 1
    attempt = store.iterations(EVALUATION)[-1]
    with atomic_file(file) as part, part.open("w", encoding="utf-8", newline="\n") as opened:
        for tree in store.outlines(attempt, EVALUATION):
            task = store.task(tree.task)
            first_prompt = next(iter((await first_prompts_async(environment, task)).values()))
            messages = ("".join(part.text for part in m.parts) for m in first_prompt.messages)
            row: dict[str, Any] = {
                "step": step,
                "data_source": settings.benchmark,
                "ground_truth": list(known_answers(task)),
                "input": "\n\n".join(messages),
            }
            for outcome, path in tree.trajectories():
                texts = [(turn.speaker.name, _text(environment, turn)) for turn in path]
                output = "".join(f"{name}: {text}\n\n" if several else text for name, text in texts)
                row |= {"output": output, "score": outcome.score}
                opened.write(json.dumps(row, ensure_ascii=False) + "\n")


def _text(environment: Environment, turn: Turn) -> str:
    """Return a turn as the agents see it: its text or the results of tools."""
    if turn.text or not turn.results:
        return turn.text
    assert environment.syntax is not None, "results answer calls"
    return environment.syntax.show(turn.results)
