"""Execution of ``coterie run``, ``quickstart``, the stage commands, and ``--dry-run``."""

import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from coterie.cli.arguments import stored_settings
from coterie.cli.report import write_report
from coterie.config.plugins import absolute_name, label
from coterie.config.resolve import flatten, nested
from coterie.datasets.catalogue import Split
from coterie.environments.protocol import agents_of, draw_tasks
from coterie.environments.qa_metrics import known_answers
from coterie.environments.registry import is_task_pair, task_pair
from coterie.errors import UserError, did_you_mean
from coterie.models.loading import load_renderer
from coterie.progress import Silent, duration
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan, cluster_needs, is_elsewhere
from coterie.recipes.registry import QUICKSTART, played_by, preset, quickstart_sizes, settings
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.settings import RecipeSettings
from coterie.rollout.episodes import first_prompts
from coterie.runs.evaluation import Evaluation, evaluation
from coterie.runs.loop import EVALUATION, check_finished, fork, run_stages
from coterie.runs.run import Run, StageKey, open_run, read_config
from coterie.terminal import ConsoleProgress

MOST_METRICS = 6
"""Maximum number of metrics in columns next to the score."""


def run_recipe(
    settings: RecipeSettings,
    folder: Path,
    console: Console,
    *,
    fork_to: Path | None = None,
    from_step: int | None = None,
) -> None:
    """Print the plan, then run or resume all steps and write the report."""
    recipe = recipe_of(settings)
    # The plan checks the settings, so that errors show before a folder is made.
    console.print(plan_table(recipe))
    if settings.cluster == "none" and is_elsewhere(settings):
        problem = f"gpu={settings.gpu}, but this machine has no GPU"
        raise UserError(problem, "add --dry-run to see the plan only, or use gpu=none")
    if fork_to is not None:
        keys = fork(recipe, folder, fork_to, recipe.settings, from_step)
        kept_stages = [*map(str, keys), *([f"{from_step} steps"] if from_step else [])]
        console.print(f"kept from {folder}: {', '.join(kept_stages) or 'nothing'}")
        folder = fork_to
    with open_run(folder, settings.recipe, settings) as run:
        run_all(recipe, run, console)
        print(run.report)


def run_all(recipe: Recipe, run: Run, console: Console) -> None:
    """Run the remaining stages, and print the results. Writes the report after each evaluation and at the end."""
    began = time.monotonic()

    def report_scores(key: StageKey) -> None:
        if key.stage == EVALUATION:
            write_report(run.folder)

    with _report_at_end(recipe, run):
        run_stages(recipe, run, ConsoleProgress(console), on_stage_end=report_scores)
    console.print(f"finished in {time.monotonic() - began:.0f} s; report: {run.report}")
    console.print(*summary(recipe, run), sep="\n")


def quickstart(folder: Path, overrides: Sequence[str], dataset: str, console: Console) -> None:
    """Run the small preset of a data set in ``folder``. Replaces a finished quickstart.

    Uses vLLM if it is installed, except for the micro-world. The last line is one JSON object: {"task", "model",
    "before", "after", "seconds", "report"}; before and after are {"score" (in [0, 1]), "tokens", "n", "score_ci"}.
    """
    began = time.monotonic()
    # Raises an error for an unknown data set.
    preset(QUICKSTART, dataset)
    if any(map(is_task_pair, overrides)):
        problem = "quickstart does not accept dataset=NAME or environment=NAME"
        raise UserError(problem, f"use --task with one of: {', '.join(played_by(QUICKSTART))}")
    # The tiny model of the micro-world is finished before a server has started.
    use_vllm = dataset != played_by(QUICKSTART)[0] and importlib.util.find_spec("vllm") is not None
    overrides = [task_pair(dataset), *["engine.kind=vllm"] * use_vllm, *overrides]
    recipe = recipe_of(settings(QUICKSTART, overrides, over=quickstart_sizes(dataset)))
    recipe.plan()
    recipe_settings = recipe.settings
    # A run with other settings stays: opening it reports the differences.
    if (folder / "config.yaml").is_file() and read_config(folder) == (
        recipe.name,
        recipe_settings.model_dump(mode="json"),
    ):
        with open_run(folder, recipe.name, recipe_settings) as run:
            finished = recipe.finished(run) == recipe.stage_keys()
        if finished:
            shutil.rmtree(folder)
    with open_run(folder, recipe.name, recipe_settings) as run:
        run_all(recipe, run, console)
        result: dict[str, object] = {
            "task": recipe_settings.benchmark,
            "model": recipe_settings.model,
        }
        for name, version in (("before", 0), ("after", recipe_settings.iteration_count)):
            means = evaluation(run.store, version)
            ends = [round(end, 4) for end in means.interval]
            figures = {"score": round(means.score, 4), "tokens": round(means.tokens, 2)}
            result[name] = {**figures, "n": means.n, "score_ci": ends}
        seconds = round(time.monotonic() - began, 1)
    print(json.dumps({**result, "seconds": seconds, "report": str(run.report)}))


def run_stage(
    stage: str,
    folder: Path,
    overrides: Sequence[str],
    name: str,
    iteration: int | None,
    console: Console,
) -> None:
    name = absolute_name(name)
    if (folder / "config.yaml").is_file():
        name = read_config(folder)[0]
    recipe = recipe_of(settings(name, overrides, stored_settings(name, folder)))
    recipe.plan()
    keys = _keys_of(recipe, stage, iteration)
    # Only a stage without inputs can begin a new run.
    if not folder.exists() and recipe.find_stage(keys[0]).after:
        runs = (str(config.parent) for config in folder.parent.glob("*/config.yaml"))
        fix = (
            f"{did_you_mean(str(folder), runs)}make one with: coterie run {name} --folder {folder}"
        )
        raise UserError(f"there is no run folder {folder}, and {stage} needs one", fix)
    if not (folder / "config.yaml").is_file():
        console.print(f"{folder} does not exist: starting a new run of {name}")
    with open_run(folder, name, recipe.settings) as run:
        # The first iteration in which the stage is not finished, else the last one.
        key = next((key for key in keys if not run.is_finished(key)), keys[-1])
        with _report_at_end(recipe, run):
            run_stages(recipe, run, ConsoleProgress(console), [key])
        metrics = {k: v for k, v in run.metrics(key).items() if k != "settings"}
        print(f"{key}: " + ", ".join(f"{name}={value}" for name, value in metrics.items()))


@contextmanager
def _report_at_end(recipe: Recipe, run: Run) -> Iterator[None]:
    """Write the report at the end of the block, even after an error.

    Leaves the report unchanged if the run does not accept the settings.
    """
    check_finished(recipe, run)
    try:
        yield
    except BaseException:
        # The original error matters, such as a full disk, which also prevents the page.
        with suppress(Exception):
            write_report(run.folder)
        raise
    write_report(run.folder)


def summary(recipe: Recipe, run: Run) -> list[Table]:
    """Return tables of the score, tokens and other metrics of each policy."""
    versions = [key.iteration for key in recipe.finished(run, EVALUATION)]
    results = [evaluation(run.store, version, label=f"{version or 'base'}") for version in versions]
    title = f"{recipe.title} on {recipe.settings.benchmark}, {recipe.environment.metric}"
    tables = [score_table(title, results)] if results else []
    if measured := recipe.finished(run, "measure"):
        policies = (f"policy {key.iteration}" if key.iteration else "base" for key in measured)
        table, metrics = Table("held-out rows", *policies, box=None), [*map(run.metrics, measured)]
        for name in metrics[0]:
            if name not in ("settings", "seconds"):
                table.add_row(name, *(f"{float(values[name]):.4g}" for values in metrics))
        tables.append(table)
    return tables


def score_table(title: str, results: Sequence[Evaluation], *, failed: bool = False) -> Table:
    """Return a table with a row for each policy, or with a column for each policy if there are many metrics."""
    names = list(dict.fromkeys(name for result in results for name in result.means))
    words = [name.replace("_", " ") for name in names]
    heads = ["policy", "score", "95% interval", "tokens", *words, "n", "failed"]
    lines = []
    for result in results:
        means = (f"{result.means[name]:.2f}" if name in result.means else "" for name in names)
        interval, tokens = "{:.3f} to {:.3f}".format(*result.interval), f"{result.tokens:.1f}"
        counts = (f"{result.n}", f"{result.failed}")
        lines.append([result.label, f"{result.score:.3f}", interval, tokens, *means, *counts])
    # A row for each metric, with a column for each policy; transposed if that fits the width.
    table = list(zip(heads, *lines, strict=True))
    if not failed:
        del table[-1]
    if len(names) <= MOST_METRICS:
        table = list(zip(*table, strict=True))
    return result_table(title, table)


def result_table(title: str, lines: Sequence[Sequence[str]]) -> Table:
    """Return a table of a line of heads and lines of cells."""
    table = Table(title=title, box=None)
    for number, head in enumerate(lines[0]):
        # The first column may wrap, but numbers stay in one line.
        fold: Literal["fold", "ellipsis"] = "fold" if number == 0 else "ellipsis"
        table.add_column(head, justify="right", overflow=fold, no_wrap=number > 0)
    for line in lines[1:]:
        table.add_row(*line)
    return table


def _keys_of(recipe: Recipe, stage: str, iteration: int | None) -> list[StageKey]:
    """Return the keys of a stage, in all iterations or in one. Raises ``UserError`` if the run has no such stage."""
    names = dict.fromkeys(key.stage for key in recipe.stage_keys())
    if stage not in names:
        raise UserError(f"{recipe.name} has no stage {stage!r}", f"use one of: {', '.join(names)}")
    keys = [key for key in recipe.stage_keys() if key.stage == stage]
    if chosen := [key for key in keys if iteration in (None, key.iteration)]:
        return chosen
    iterations = ", ".join(f"{key.iteration}" for key in keys)
    problem = f"--iteration {iteration} is out of range"
    raise UserError(problem, f"use an iteration of {stage}: {iterations}")


def plan_table(recipe: Recipe) -> Table:
    table = Table(title=f"plan of {recipe.title}", box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for line in (*recipe.plan().lines(), *_tool_lines(recipe)):
        table.add_row(*line)
    return table


def _tool_lines(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the tools of a run, and the call syntax of each role's model."""
    tools = recipe.settings.tools
    if tools.use:
        yield "tools", ", ".join(map(label, tools.use))
        for role in recipe.roles():
            syntax = load_renderer(role.model, recipe.settings.engine.template)[0].tools.syntax
            native = tools.calls == "native" and syntax is not None
            yield f"calls of {role.name}", syntax.name if native and syntax else "tags"


TIMEOUT = 60.0
"""Time limit of a trial in seconds."""
TASKS = (8, 1)
"""Training tasks of a trial: cheap tasks, expensive tasks."""
WORK = 1e12
"""Sampled tokens times weights of a cheap trial: at most half a minute on two cores."""
SHOWN, LONGEST = 3, 1200
"""Number of printed prompts, and maximum characters of each."""
LEAST_WEIGHTS = 2_000_000
"""Smaller models take as long as a model of this size."""


Measured = Mapping[StageKey, tuple[float, float]]
"""Seconds of each tried stage, and the seconds that scale with the number of dialogues."""


def submit_run(s: RecipeSettings, folder: Path, out: Console, *, dry_run: bool) -> None:
    """Submit this command as a Slurm job, or print the file that would be submitted."""
    from coterie.clusters.slurm import batch_file, submit

    recipe = recipe_of(s)
    recipe.plan()
    policies = sum(not role.head for role in recipe.roles())
    needs = cluster_needs(s, [*recipe.trainings().values()], policies)
    # The job runs the same command on its nodes.
    words = [word for word in sys.argv[1:] if word != "--dry-run"]
    command = [sys.executable, "-m", "coterie", *words]
    text = batch_file(needs, command, folder, gpus=s.engine.device != "cpu")
    if dry_run:
        out.file.write(text)
        # Only plans need this module.
        from coterie.recipes.processes import process_table

        # The table goes to stderr, so that stdout is a valid file for sbatch.
        Console(stderr=True).print(process_table(recipe, recipe.plan()))
    else:
        out.print(submit(text, folder))


def dry_run(settings: RecipeSettings, out: Console, notes: Console) -> None:
    """Print the plan of a run with an estimate of its time. Leaves no files."""
    recipe = recipe_of(settings)
    # The plan of a cluster needs no access to it.
    recipe.reach_cluster = False
    table = plan_table(recipe)
    for number, pieces in enumerate(recipe.examples(), 1):
        out.print(Text(f"training row {number} (trained tokens in brackets)", "bold"))
        text = Text()
        for piece, trained in pieces:
            text.append(f"[{piece}]" if trained else piece, "green" if trained else "")
        out.print(Padding(text, (0, 0, 1, 2)))
    # Recipes on files show training rows, all others the first prompts.
    for prompt in [] if recipe.examples() else _prompts(recipe):
        out.print(Padding(Text(prompt), (0, 0, 1, 1)))
    notes.print("running a small trial to estimate the time ...")
    try:
        small = _small(recipe)
        measured, reason = _trial(small)
    except UserError as error:
        note = f"The time is not estimated: {error.what}."
    else:
        seconds, missing = estimate(recipe, small, measured)
        tasks = small.plan().tasks
        note = f"The time is estimated from a {f'trial on {tasks} training tasks' if tasks else 'small trial'}."
        if measured:
            about = "at least" if missing else "about"
            table.add_row("time of all stages", f"{about} {duration(seconds)}")
        if missing:
            note += f" It excludes {', '.join(missing)}, which could not be tried: {reason}."
    out.print(table)
    out.print(Padding(Text(note), (1, 0, 0, 1)))
    # Only plans need this module.
    from coterie.recipes.processes import process_table

    out.print(Padding(process_table(recipe, recipe.plan()), (1, 0, 0, 0)))


def _prompts(recipe: Recipe) -> Iterator[str]:
    """Yield the rendered first prompts of a few tasks, with the right answers."""
    split: Split = "train" if recipe.training_tasks() else "heldout"
    environment = recipe.environment
    agent = agents_of(environment)[0]
    model = next(role.model for role in recipe.roles() if role.name == recipe.players()[agent])
    renderer, _ = load_renderer(model, recipe.settings.engine.template)
    for task in draw_tasks(environment, split, SHOWN, recipe.settings.seed)[:SHOWN]:
        prompt = first_prompts(environment, task)[agent]
        ids = renderer.render(prompt.messages, prompt.tree, agent, tools=prompt.tools)
        text = str(renderer.tokenizer.decode(list(ids)))
        if len(text) > LONGEST:
            omitted = len(text) - LONGEST
            text = f"{text[: LONGEST // 2]}\n[{omitted:,} characters]\n{text[-LONGEST // 2 :]}"
        answers = " or ".join(filter(None, known_answers(task)))
        right = f"\nright answer: {answers}" if answers else ""
        yield f"prompt of {agent} for {task.id}, {len(ids)} tokens:\n{text}{right}"


def estimate(recipe: Recipe, small: Recipe, measured: Measured) -> tuple[float, list[str]]:
    """Estimate the seconds of the stages whose kind was measured. Return them and the names of the other stages."""
    kinds = {stage.key: stage.kind for stage in small.stages()}
    # The number of dialogues decides how long the stages of an iteration take.
    plan, small_plan = recipe.plan(), small.plan()
    ratio = _amount(recipe, plan) / _amount(small, small_plan)
    seconds, missing = 0.0, list[str]()
    for stage in recipe.stages():
        # Of the tried stages of the same kind, the nearest in iteration counts, because the first also loads models.
        similar = [
            time
            for key, time in measured.items()
            if kinds[key] == stage.kind and key.iteration <= stage.key.iteration
        ]
        if similar:
            growth = plan.heldout / small_plan.heldout if stage.key.stage == EVALUATION else ratio
            total, working = similar[-1]
            # Only the time of the work grows with the number of dialogues, unlike the time to load.
            seconds += total + working * (growth - 1)
        elif stage.key.stage not in missing:
            missing.append(stage.key.stage)
    return seconds, missing


def _amount(recipe: Recipe, plan: Plan) -> float:
    """Return the training dialogues of an iteration, or else the tasks or rows of a file."""
    iterations = {key.iteration for key in recipe.stage_keys() if key.stage != EVALUATION}
    return plan.dialogues / len(iterations) or plan.tasks or plan.rows or 1


def _small(recipe: Recipe) -> Recipe:
    """Return the recipe on few tasks. Raises ``UserError`` if a trial would need a server."""
    values = flatten(recipe.settings.model_dump(mode="json"))
    if is_elsewhere(recipe.settings):
        raise UserError("a trial would not run on the machines of the plan")
    if recipe.settings.engine.kind != "inprocess":
        raise UserError("a trial would have to start servers")
    urls = [key for key, value in values.items() if key.endswith("url") and value]
    if urls:
        raise UserError(f"a trial would ask the server of {urls[0]}, which may cost money")
    # Several tasks if they are cheap, else a single one.
    for tasks in TASKS:
        small = _smaller(recipe, tasks)
        plan = small.plan()
        weights = max(LEAST_WEIGHTS, *plan.weights.values())
        if plan.dialogues and plan.generations * plan.max_tokens * weights <= WORK:
            break
    return small


def _smaller(recipe: Recipe, tasks: int) -> Recipe:
    limits = {
        "tasks": tasks,
        "evaluate.tasks": 4 * tasks,
        "iterations": 2,
        "steps.count": 1,
        "steps.minibatches_per_step": tasks,
        "rollout.rounds": 1,
        "rows": tasks,
        "dpo.probe_dialogues": 4 * tasks,
    }
    values = flatten(recipe.settings.model_dump(mode="json"))
    # A trial is not reported to a tracker.
    values["tracker"] = "none"
    for key, value in values.items():
        # Longer names follow in the table, so the last limit that fits is the most specific one.
        bounds = [limit for name, limit in limits.items() if f".{key}".endswith(f".{name}")]
        if bounds and isinstance(value, int):
            values[key] = min(value, bounds[-1])
    return recipe_of(type(recipe.settings).model_validate(nested(values)))


def _trial(small: Recipe) -> tuple[Measured, str]:
    """Return the time of each stage, and the error that ended the trial early or an empty text."""
    measured: dict[StageKey, tuple[float, float]] = {}
    with (
        TemporaryDirectory(prefix="coterie-trial-") as folder,
        open_run(Path(folder), small.name, small.settings) as run,
    ):
        deadline = time.monotonic() + TIMEOUT
        try:
            # Evaluations come last, so that a trial that runs out of time has tried the training.
            for key in sorted(small.stage_keys(), key=lambda key: key.stage == EVALUATION):
                watch = _Watch(deadline)
                run_stages(small, run, watch, [key])
                seconds = float(run.metrics(key)["seconds"])
                measured[key] = seconds, min(watch.working, seconds)
        except UserError as error:
            return measured, error.what
    return measured, ""


class _Watch(Silent):
    """Timer of the work within a stage."""

    def __init__(self, deadline: float) -> None:
        self.deadline, self.working = deadline, 0.0
        self._began: float | None = None

    def start(self, total: int, description: str) -> None:
        self.close()
        self._began = time.monotonic()

    def advance(self, n: int, **fields: float) -> None:
        """Stop the trial after the deadline."""
        # Time is checked after each item, the only place where a stage can be stopped.
        if time.monotonic() > self.deadline:
            raise UserError(f"it did not end within {TIMEOUT:.0f} s")

    def close(self) -> None:
        if self._began is not None:
            self.working += time.monotonic() - self._began
            self._began = None
