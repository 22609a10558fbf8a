"""Claims of papers on micro-worlds: variants over seeds, paired tests, and the output of ``coterie reproduce``.

A module of this folder tests the claims of one paper, which its docstring has as they were fixed before the run. It has
these names. ``TUNING`` and ``DEFAULTS`` are optional:

* ``gate(x)`` plays a spare seed before the runs of the claims. It chooses the best decode of the base, and measures
  whether the micro-world leaves something to learn;
* ``run(x)`` runs the methods with each seed and records their policies;
* ``claims(measurements)`` tests the claims, and runs nothing;
* ``QUICK`` has the methods and settings of ``--quick``;
* ``TUNING`` has the settings that were tried for each method on a spare seed, with their scores;
* ``DEFAULTS`` has settings that differ from the preset.

Every policy is evaluated at the temperature of the preset and at the one at which the base is best, on at most 500
held-out tasks of a seed. No task belongs to two seeds.
"""

import ctypes
import gc
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from coterie.config.folders import make_folder
from coterie.config.plugins import label
from coterie.config.resolve import flatten
from coterie.environments.protocol import Environment
from coterie.errors import UserError, did_you_mean
from coterie.progress import Progress, Silent
from coterie.recipes.base import Recipe
from coterie.recipes.registry import played_by, settings
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.settings import RecipeSettings
from coterie.record.store import Store
from coterie.record.tree import Task
from coterie.record.turn import digest
from coterie.rollout.episodes import Episode
from coterie.runs.evaluation import grade_means, held_out_draws
from coterie.runs.loop import EVALUATION, Stage, command_line, fork, run_stages
from coterie.runs.run import Run, StageKey, open_run
from coterie.runs.work_items import open_actors, play, sampled_tokens
from coterie.terminal import ConsoleProgress, notes, results
from experiments.claims import HeldOutResult
from experiments.cost import training_of
from experiments.results import (
    BEST,
    CHECKOUT,
    MIN_TASKS,
    Measurements,
    Training,
    machine,
    protocol_commit,
    read,
    show,
    show_decodes,
    write,
)

NAMES = (
    *("optima", "optima/isft", "optima-transfer", "moat", "multi_agent", "rl", "rl-smollm2"),
    *("sweet_rl", "sweet_rl-critics", "sweet_rl-frontend"),
    *("dense_tree", "dense_tree-density", "dense_tree-textworld", "gap", "gap-sft", "gap-rounds"),
)
SPARE_SEED = 1_000
"""Seed of gates and decodes. No claim has it."""
GROUPS = "gate_sampled"
"""Stage with several episodes of each task of a gate."""
DECODES = (0.0, 0.3, 0.5, 1.0)
"""Temperatures from which the best one is chosen for the base."""


def held_out_results(store: Store, version: int) -> dict[str, HeldOutResult]:
    draws = held_out_draws(store, version, samples=1)
    return {task: HeldOutResult(draw.score, draw.tokens) for task, (draw,) in draws.items()}


@dataclass(frozen=True, slots=True)
class Gate:
    """Measurements before any training, and whether they allow the claims to be tested."""

    values: Mapping[str, float]
    passed: bool
    conditions: str
    """The conditions on the values, in words."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Claims that have a condition of their own which is not met, and the condition. They are reported only."""


UNGATED = Gate({}, passed=True, conditions="")
"""Gate of an experiment whose world is not checked; the spare seed gives the best decode only."""


@dataclass(frozen=True, slots=True)
class Quick:
    """Two methods that ``--quick`` runs with one seed in some minutes."""

    methods: Sequence[str]
    overrides: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Decode:
    """Best temperature of the base in a world, and the score at each."""

    temperature: float
    scores: Mapping[str, float]


class Experiment:
    """Runs of one ``coterie reproduce``, and the results measured so far."""

    def __init__(
        self,
        folder: Path,
        overrides: Sequence[str],
        seeds: Sequence[int],
        progress: Progress,
        quick: Quick | None = None,
    ) -> None:
        self.folder, self.overrides, self.seeds = folder, list(overrides), seeds
        self.progress, self.quick = progress, quick
        self.measurements = Measurements(partial=quick is not None)
        self.decodes: dict[str, Decode] = {}
        """Best decode by world."""
        self.settings: dict[str, dict[str, Any]] = {}
        """Settings of each method, with its first seed."""
        self._held_out: dict[Hashable, dict[int, list[Task]]] = {}

    @property
    def is_spare(self) -> bool:
        """True for the spare seed, whose runs make no rows of claims."""
        return self.seeds == (SPARE_SEED,)

    def spare(self) -> "Experiment":
        """Return an experiment with the spare seed alone, which chooses the decodes of this one."""
        spare = Experiment(
            self.folder / "gate", self.overrides, (SPARE_SEED,), self.progress, self.quick
        )
        spare.decodes = self.decodes
        return spare

    def chosen(self, methods: Iterable[str]) -> list[str]:
        """Return the methods to run: all, or the two methods of ``--quick``."""
        return [method for method in methods if self.quick is None or method in self.quick.methods]

    def path(self, method: str, seed: int) -> Path:
        """Return the folder of a method's run."""
        return self.folder / f"seed-{seed}" / slug(method)

    @contextmanager
    def run(
        self,
        method: str,
        recipe: Recipe,
        *,
        shares: str | None = None,
        steps: Collection[StageKey] | None = None,
    ) -> Iterator[Run]:
        """Run (or resume) a method. It takes over the equal steps of the method that it ``shares``."""
        s = recipe.settings
        # A gate or a decode that saw a seed of the claims would choose by their results.
        if s.seed not in self.seeds:
            raise ValueError(f"seed {s.seed} does not belong to this experiment: {[*self.seeds]}")
        self.progress.say(f"seed {s.seed}: {method}")
        # The recipe draws by its seed alone. Here all its stages get the tasks that no other seed has.
        tasks = self.held_out(recipe)
        recipe.heldout_tasks = lambda: tasks  # type: ignore[method-assign]
        self.settings.setdefault(method, portable(s, self.folder))
        folder = self.path(method, s.seed)
        # Stages with results are refused if their settings have changed. Without stages nothing is compared, so other
        # settings get another folder.
        if steps == ():
            folder = folder.with_name(f"{folder.name}-{digest(s.model_dump_json())[:8]}")
        make_folder(folder.parent)
        if shares is None:
            recipe.plan()
        elif not folder.exists():
            fork(recipe, self.path(shares, s.seed), folder, s)
        with open_run(folder, recipe.name, s) as run:
            run_stages(recipe, run, self.progress, None if steps is None else [*steps])
            try:
                yield run
            finally:
                recipe.close()
                release_memory()

    @contextmanager
    def base(self, recipe: Recipe) -> Iterator[Run]:
        """Open a run without its stages, for measurements before any training."""
        with self.run("base", recipe, steps=()) as run:
            yield run

    # -- held-out tasks ----------------------------------------------------------------------

    def held_out(self, recipe: Recipe, environment: Environment | None = None) -> list[Task]:
        """Return a seed's held-out tasks that neither an earlier seed nor the spare one has, at most 500.

        ``environment`` replaces the recipe's own.
        """
        s = recipe.settings
        world = environment or recipe.environment
        count = s.evaluate.tasks
        by_seed = self._held_out.setdefault((s.benchmark, environment is None, count), {})
        for seed in (SPARE_SEED, *(() if s.seed == SPARE_SEED else range(s.seed + 1))):
            if seed not in by_seed:
                # Worlds with few questions draw equal ones under other ids, so contents are compared.
                earlier = {content_of(task) for tasks in by_seed.values() for task in tasks}
                candidates = world.tasks("heldout", count, seed)
                by_seed[seed] = [t for t in candidates if content_of(t) not in earlier][:MIN_TASKS]
        return by_seed[s.seed]

    @contextmanager
    def evaluate(
        self,
        method: str,
        recipe: Recipe,
        run: Run,
        version: int,
        temperature: float,
        environment: Environment | None = None,
    ) -> Iterator[Store]:
        """Play (or resume) the held-out tasks with a policy at a temperature, and open the store of the dialogues."""
        tasks, seed = self.held_out(recipe, environment), recipe.settings.seed
        world = environment or recipe.environment
        make_folder(run.folder / "evaluations")
        file = run.folder / "evaluations" / f"{slug(method)}-{version}-{temperature:g}.sqlite"

        async def play_tasks(store: Store) -> None:
            samplers = await recipe.samplers(run, version, temperature)
            episodes = [Episode(task, 0, version, EVALUATION) for task in tasks]
            logs, user = run.folder / "user_simulator", recipe.settings.user_simulator
            async with open_actors(world, logs, user, recipe.openers()) as actors:
                driver = actors.driver(samplers, seed)
                tokens = sampled_tokens(samplers.values())
                await play(store, driver, episodes, self.progress, tokens)

        with Store.open(file) as store:
            # A finished evaluation is only read, so that no model is loaded.
            if len(store.finished_keys(version, EVALUATION)) < len(tasks):
                recipe.models(run).engines.run(play_tasks(store))
            yield store

    def choose_decode(self, recipe: Recipe, run: Run, version: int = 0) -> dict[float, float]:
        """Play the spare seed with the base at each temperature, and keep the one with the highest score.

        ``version`` is the policy that the claims call their base. Returns the scores.
        """
        assert self.is_spare, "decodes are not chosen by results of the claims"
        scores = dict[float, float]()
        for temperature in DECODES:
            with self.evaluate("decode", recipe, run, version, temperature) as store:
                tasks = held_out_results(store, version)
            scores[temperature] = fmean(task.score for task in tasks.values())
        rounded = {f"{temperature:g}": round(score, 4) for temperature, score in scores.items()}
        # Of equal scores the lowest temperature wins, because it comes first.
        best = max(scores, key=scores.__getitem__)
        self.decodes[label(recipe.settings.benchmark)] = Decode(best, rounded)
        return scores

    def sample_groups(
        self,
        recipe: Recipe,
        run: Run,
        samples: int,
        *,
        version: int = 0,
        temperature: float = 1.0,
        tasks: int | None = None,
    ) -> list[list[float]]:
        """Play (or resume) the first ``tasks`` held-out tasks, by default all, several times for a gate.

        Returns the scores of each task's episodes.
        """

        async def sample() -> None:
            samplers = await recipe.samplers(run, version, temperature)
            chosen, numbers = recipe.heldout_tasks()[:tasks], range(samples)
            episodes = [Episode(task, n, version, GROUPS) for task in chosen for n in numbers]
            await recipe.play_by(run, episodes, samplers, self.progress)

        recipe.models(run).engines.run(sample())
        return sampled_scores(run, version, GROUPS)

    # -- results -----------------------------------------------------------------------------

    def add_run(
        self,
        method: str,
        recipe: Recipe,
        run: Run,
        version: int,
        environment: Environment | None = None,
    ) -> None:
        """Record one policy of a run, at the recipe's temperature and at the best one of the base.

        It is evaluated in ``environment``, by default the recipe's.
        """
        preset = recipe.settings.evaluate.temperature
        temperatures = {method: preset}
        if not self.is_spare:
            best = self.decodes[label(recipe.settings.benchmark)].temperature
            # The base has a row at its best decode in any case: claims over the base are against that row.
            if best != preset or version == 0:
                temperatures[method + BEST] = best
        training = training_of(recipe, run, version)
        is_recorded = environment is None and version in run.store.iterations(EVALUATION)
        for name, temperature in temperatures.items():
            # The recipe's own evaluation is in the record of its run.
            if temperature == preset and is_recorded:
                self._add(name, recipe, run.store, version, temperature, training)
                continue
            with self.evaluate(method, recipe, run, version, temperature, environment) as store:
                self._add(name, recipe, store, version, temperature, training)

    def _add(
        self,
        method: str,
        recipe: Recipe,
        store: Store,
        version: int,
        temperature: float,
        training: Training,
    ) -> None:
        # A task that failed scores 0, and one that nothing could grade is left out, as in evaluations of runs.
        tasks, means = held_out_results(store, version), grade_means(store, version, EVALUATION)
        policy = (method, recipe.settings.seed, version, temperature)
        self.measurements.add(*policy, tasks, means, training)


def release_memory() -> None:
    """Return free memory to the system. Otherwise the process keeps what small tensors of each run have fragmented."""
    gc.collect()
    # Only the C library of most Linux systems has it.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def content_of(task: Task) -> Hashable:
    """Return all that makes a task, without its id."""
    return json.dumps(task.public, sort_keys=True), frozenset(task.secrets.items())


def portable(settings: RecipeSettings, folder: Path) -> dict[str, Any]:
    """Return the settings by dotted key, with paths below the experiment's ``folder`` or the checkout relative."""
    text = json.dumps(flatten(settings.model_dump(mode="json")))
    # The relative form of the folder may end the absolute one, so it comes last.
    for path in (folder.absolute(), CHECKOUT, folder):
        text = text.replace(f"{path}/", "")
    relative: dict[str, Any] = json.loads(text)
    return relative


def slug(method: str) -> str:
    return method.lower().replace(" ", "_").replace("/", "_of_")


def make_recipe(name: str, overrides: Sequence[str], micro_world: str = "") -> Any:
    """Return a recipe under its settings; refuse data other than the micro-world, which is the recipe's first one."""
    world = micro_world or played_by(name)[0]
    values = settings(name, [f"environment={world}", *overrides] if micro_world else overrides)
    if values.benchmark != label(world):
        raise UserError(
            f"{values.benchmark}: claims are tested on the micro-world {label(world)}",
            "leave dataset and environment out; `coterie run` takes any",
        )
    return recipe_of(values)


def marked(stages: Sequence[Stage], *control: object) -> list[Stage]:
    """Return the stages of a control, whose selections and trainings differ from those of the run that it shares."""
    return [
        replace(stage, depends=(*stage.depends, *control))
        if stage.key.stage in ("select", "train")
        else stage
        for stage in stages
    ]


def sampled_scores(run: Run, version: int, stage: str) -> list[list[float]]:
    """Return the scores of each task's episodes; an episode without a grade has 0."""
    return [
        [outcome.score or 0.0 for outcome in tree.outcomes.values()]
        for tree in run.store.trees(version, stage)
    ]


# -- the command -----------------------------------------------------------------------------------


def load(name: str) -> Any:
    """Import the experiment of a name."""
    if name not in NAMES:
        fix = f"use {', '.join(NAMES[:-1])}, or {NAMES[-1]}"
        raise UserError(f"there are no claims {name!r} to test", did_you_mean(name, NAMES) + fix)
    return import_module(f"experiments.{name.replace('/', '_').replace('-', '_')}")


def main(
    name: str,
    folder: Path | None,
    seeds: Sequence[int],
    overrides: Sequence[str],
    console: Console,
    *,
    gate: bool,
    quick: bool,
    processes: int,
    source: Path | None,
) -> None:
    """Measure the gate and test the claims, unless only the ``gate`` is wanted.

    Args:
        name: Experiment.
        folder: Folder of all runs.
        seeds: Seeds of the claims. With ``quick`` only the first one counts.
        overrides: Settings of all runs.
        console: Console of messages.
        gate: True to stop after the spare seed.
        quick: True for the methods and settings of ``QUICK``.
        processes: Number of processes that share the seeds.
        source: Result file whose tables are printed instead.
    """
    module = load(name)
    if source is not None:
        protocol, measurements = read(source)
        if protocol["experiment"] != name:
            problem = f"{source} has results of {protocol['experiment']}"
            raise UserError(problem, f"use `coterie reproduce {protocol['experiment']}`")
        show(protocol, measurements, module.claims(measurements))
        return
    if any(pair.startswith("seed=") for pair in overrides):
        problem = "claims are tested on several seeds, so seed= can't be set"
        raise UserError(problem, "use --seeds N, or --seed N for one seed")
    short = module.QUICK if quick else None
    title = name.replace("/", "-")
    folder = folder or Path("runs") / f"reproduce-{title}{'-quick' * quick}"
    # Later settings win, so the user's come last.
    defaults = [*getattr(module, "DEFAULTS", ()), *(short.overrides if short else ())]
    x = Experiment(
        folder,
        [*defaults, *overrides],
        seeds[:1] if quick else seeds,
        ConsoleProgress(console),
        short,
    )
    measured: Gate = module.gate(x.spare())
    print_gate(measured, x, alone=gate)
    if not measured.passed:
        sys.exit(1)
    if gate:
        return
    started = time.monotonic()
    protocol = begin(x, name, module)
    try:
        if processes > 1:
            run_beside(name, x, processes)
        module.run(x)
    finally:
        # A resumed experiment adds its seconds to those before.
        protocol["seconds"] = round(protocol["seconds"] + time.monotonic() - started, 1)
        save_protocol(x, protocol)
    protocol |= {
        "command": command_line(sys.argv),
        "seeds": [*x.seeds],
        "spare_seed": SPARE_SEED,
        **machine(),
        "gate": asdict(measured),
        "decodes": {world: asdict(decode) for world, decode in x.decodes.items()},
        "tuning": getattr(module, "TUNING", {}),
        "settings": differing(x.settings),
    }
    claims = module.claims(x.measurements)
    file = x.folder / f"{title}-tiny.json"
    write(file, protocol, x.measurements, claims)
    console.print(f"results: {file}")
    show(protocol, x.measurements, claims)


GRACE = 30
"""Seconds in which processes may end after Ctrl-C."""


class Titles(Silent):
    """Progress of a process beside others: titles of its runs."""

    def say(self, text: str) -> None:
        if text.startswith("seed "):
            notes().print(f"{time.strftime('%H:%M:%S')} {text}")


def run_beside(name: str, x: Experiment, processes: int) -> None:
    """Run the seeds in several processes. Afterwards the folder has their runs, which are only read."""
    import torch  # takes seconds

    threads = max(1, (os.cpu_count() or 1) // processes)
    torch.set_num_threads(threads)
    context = multiprocessing.get_context("spawn")
    shared = (x.folder, x.overrides, x.decodes, x.quick, threads)
    workers = [
        context.Process(target=run_seeds, args=(name, x.seeds[n::processes], *shared))
        for n in range(min(processes, len(x.seeds)))
    ]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        # Ctrl-C reaches them, too, and they save what they have.
        for child in multiprocessing.active_children():
            child.join(GRACE)
            child.terminate()


def run_seeds(
    name: str,
    seeds: Sequence[int],
    folder: Path,
    overrides: Sequence[str],
    decodes: dict[str, Decode],
    quick: Quick | None,
    threads: int,
) -> None:
    """Run some seeds of an experiment, in a process of their own."""
    import torch  # takes seconds

    torch.set_num_threads(threads)
    x = Experiment(folder, overrides, seeds, Titles(), quick)
    x.decodes = decodes
    # The process that started this one meets the same error, and shows it.
    with suppress(UserError, KeyboardInterrupt):
        load(name).run(x)


PROTOCOL = "protocol.json"


def begin(x: Experiment, name: str, module: Any) -> dict[str, Any]:
    """Return the commit and date at which the runs in the folder began.

    Raises ``UserError`` if the module of the claims has changed since.
    """
    file, source = x.folder / PROTOCOL, digest(Path(module.__file__).read_text())
    if file.is_file():
        protocol: dict[str, Any] = json.loads(file.read_text())
        # Claims and margins that change after a training could follow its results.
        if protocol["source"] != source:
            problem = f"the claims of {name} have changed since the runs in {x.folder} began"
            raise UserError(problem, "use another --folder")
        return protocol
    # A resumed experiment keeps the commit of its first run.
    make_folder(x.folder)
    began = {"date": date.today().isoformat(), "seconds": 0.0, "source": source}
    protocol = {"experiment": name, **protocol_commit(), **began}
    save_protocol(x, protocol)
    return protocol


def save_protocol(x: Experiment, protocol: Mapping[str, Any]) -> None:
    (x.folder / PROTOCOL).write_text(json.dumps(protocol))


def differing(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the settings that all methods share as ``common``, and the other ones of each method."""
    reference, *rest = settings.values()
    common = {
        key: value for key, value in reference.items() if all(s.get(key) == value for s in rest)
    }
    differences = {
        method: {key: value for key, value in values.items() if key not in common}
        for method, values in settings.items()
    }
    return {"common": common, **differences}


def print_gate(gate: Gate, x: Experiment, *, alone: bool) -> None:
    """Print the measurements on the spare seed, and one JSON object if it is the last line."""
    decodes = {world: asdict(decode) for world, decode in x.decodes.items()}
    values = ", ".join(f"{name} {value:.3f}" for name, value in gate.values.items())
    if values:
        results().print(f"seed {SPARE_SEED}, before training: {values}")
    if not gate.passed:
        results().print(f"that is not enough to test the claims: {gate.conditions}")
    for claim, condition in gate.failed.items():
        results().print(f"the gate of the claim {claim} failed: {condition}")
    if alone or not gate.passed:
        show_decodes(decodes)
        rounded = {name: round(value, 4) for name, value in gate.values.items()}
        verdict = {"passed": gate.passed, "failed": [*gate.failed]}
        print(json.dumps({**rounded, **verdict, "decodes": decodes}))
