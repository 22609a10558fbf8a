"""``coterie run --dry-run``: the plan of a run, and its time on this machine, estimated from a small trial run; and its
first prompts."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from coterie.cli.running import plan_table
from coterie.config.resolve import flatten, nested
from coterie.datasets.catalogue import Split
from coterie.environments.answers import known_answers
from coterie.environments.checks import draw_tasks
from coterie.environments.protocol import agents_of
from coterie.errors import UserError
from coterie.models.loading import load_renderer
from coterie.progress import Silent, duration
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan
from coterie.recipes.registry import recipe as recipe_of
from coterie.rollout.episodes import first_prompts
from coterie.runs.folder import Step, open_run
from coterie.runs.loop import EVALUATION, run_steps

TIMEOUT = 180.0
"""Seconds that a trial may take."""
TASKS = (8, 1)
"""Training tasks of a trial: where they are cheap, and where they are not."""
WORK = 1e12
"""Sampled tokens times weights of a cheap trial: half a minute or less on two cores."""
SHOWN, LONGEST = 3, 1200
"""Prompts that are printed, and characters of each."""
LEAST_WEIGHTS = 2_000_000
"""Smaller models take as long as one of this size."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The time of a stage of a trial."""

    seconds: float
    working: float
    """The seconds that grow with the number of dialogues."""


def dry_run(recipe: Recipe, out: Console, notes: Console) -> None:
    """Print what a run of the recipe would do and take; leave nothing behind."""
    table = plan_table(recipe)
    for number, pieces in enumerate(recipe.examples(), 1):
        out.print(Text(f"training row {number} (trained tokens in brackets)", "bold"))
        text = Text()
        for piece, trained in pieces:
            text.append(f"[{piece}]" if trained else piece, "green" if trained else "")
        out.print(Padding(text, (0, 0, 1, 2)))
    for prompt in [] if recipe.examples() else _prompts(recipe):
        out.print(Padding(Text(prompt), (0, 0, 1, 1)))
    notes.print("trying a small piece of the run, which tells its time ...")
    try:
        small = _small(recipe)
        measured, reason = _trial(small)
    except UserError as error:
        said = f"The time is not estimated: {error.what}."
    else:
        seconds, missing = estimate(recipe, small, measured)
        said = f"The time is estimated from a trial on {small.plan().tasks} training tasks."
        if measured:
            about = "at least" if missing else "about"
            table.add_row("time of all stages", f"{about} {duration(seconds)}")
        if missing:
            said += f" It is without {', '.join(missing)}, which could not be tried: {reason}."
    out.print(table)
    out.print(Padding(Text(said), (1, 0, 0, 1)))


def _prompts(recipe: Recipe) -> Iterator[str]:
    """Yield the first prompts of a few tasks as the model reads them, each with its right answers."""
    split: Split = "train" if recipe.training_tasks() else "heldout"
    environment = recipe.environment
    agent = agents_of(environment)[0]
    model = next(role.model for role in recipe.roles() if role.name == recipe.players()[agent])
    renderer, _ = load_renderer(model, recipe.settings.engine.template_args)
    for task in draw_tasks(environment, split, SHOWN, recipe.settings.seed)[:SHOWN]:
        first = first_prompts(environment, task)[agent]
        ids = renderer.render(first.messages, first.tree, agent, tools=first.tools)
        text = str(renderer.tokenizer.decode(list(ids)))
        if len(text) > LONGEST:
            cut = len(text) - LONGEST
            text = f"{text[: LONGEST // 2]}\n[{cut:,} characters]\n{text[-LONGEST // 2 :]}"
        answers = " or ".join(filter(None, known_answers(task)))
        right = f"\nright answer: {answers}" if answers else ""
        yield f"prompt of {agent} for {task.id}, {len(ids)} tokens:\n{text}{right}"


def estimate(
    recipe: Recipe, small: Recipe, measured: Mapping[Step, Measured]
) -> tuple[float, list[str]]:
    """Seconds of all stages of which one of the same kind was measured, and the names of the other stages."""
    kinds = {stage.step: stage.kind for stage in small.stages()}
    plan, tried = recipe.plan(), small.plan()
    ratio = _amount(recipe, plan) / _amount(small, tried)
    seconds, missing = 0.0, list[str]()
    for stage in recipe.stages():
        like = [
            one
            for step, one in measured.items()
            if kinds[step] == stage.kind and step.iteration <= stage.step.iteration
        ]
        if like:
            grown = plan.heldout / tried.heldout if stage.step.stage == EVALUATION else ratio
            seconds += like[-1].seconds + like[-1].working * (grown - 1)
        elif stage.step.stage not in missing:
            missing.append(stage.step.stage)
    return seconds, missing


def _amount(recipe: Recipe, plan: Plan) -> float:
    """Return training dialogues of an iteration; tasks or rows of a file where the recipe does not say."""
    iterations = {step.iteration for step in recipe.steps() if step.stage != EVALUATION}
    return plan.dialogues / len(iterations) or plan.tasks or plan.rows or 1


def _small(recipe: Recipe) -> Recipe:
    """The recipe on as few tasks as a trial can afford; refused where a trial would cost more than time."""
    values = flatten(recipe.settings.model_dump(mode="json"))
    if recipe.settings.engine.kind != "inprocess":
        raise UserError("a trial would have to start servers")
    urls = [key for key, value in values.items() if key.endswith("url") and value]
    if urls:
        raise UserError(f"a trial would ask the server of {urls[0]}, which may cost money")
    for tasks in TASKS:
        small = _smaller(recipe, tasks)
        plan = small.plan()
        weights = max(LEAST_WEIGHTS, *plan.weights.values())
        if plan.dialogues and plan.generations * plan.max_tokens * weights <= WORK:
            break
    return small


def _smaller(recipe: Recipe, tasks: int) -> Recipe:
    most = {
        "tasks": tasks,
        "evaluate.tasks": 4 * tasks,
        "iterations": 2,
        "steps.count": 1,
        "steps.minibatches": tasks,
        "rollout.rounds": 1,
        "rows": tasks,
        "dpo.probe": 4 * tasks,
    }
    values = flatten(recipe.settings.model_dump(mode="json"))
    values["tracker"] = "none"
    for key, value in values.items():
        limits = [limit for name, limit in most.items() if f".{key}".endswith(f".{name}")]
        if limits and isinstance(value, int):
            values[key] = min(value, limits[-1])
    return recipe_of(type(recipe.settings).model_validate(nested(values)))


def _trial(small: Recipe) -> tuple[dict[Step, Measured], str]:
    """The time of each stage of a run, and why it ended early, if it did."""
    measured: dict[Step, Measured] = {}
    with (
        TemporaryDirectory(prefix="coterie-trial-") as folder,
        open_run(Path(folder), small.name, small.settings) as run,
    ):
        until = time.monotonic() + TIMEOUT
        try:
            for step in small.steps():
                watch = _Watch(until)
                run_steps(small, run, watch, [step])
                seconds = float(run.metrics(step)["seconds"])
                measured[step] = Measured(seconds, min(watch.working, seconds))
        except UserError as error:
            return measured, error.what
    return measured, ""


class _Watch(Silent):
    """Adds up the seconds between the beginnings and ends of a stage's work."""

    def __init__(self, until: float) -> None:
        self.until, self.working = until, 0.0
        self._began: float | None = None

    def start(self, total: int, description: str) -> None:
        self.close()
        self._began = time.monotonic()

    def advance(self, n: int, **fields: float) -> None:
        """Stop a trial that takes too long."""
        if time.monotonic() > self.until:
            raise UserError(f"it had not ended after {TIMEOUT:.0f} s")

    def close(self) -> None:
        if self._began is not None:
            self.working += time.monotonic() - self._began
            self._began = None
