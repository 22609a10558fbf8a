"""``coterie quickstart``: a small run on two CPU cores, with results before and after training.

The last line is one JSON object: {"task", "model", "before", "after", "seconds", "report"}, where before and after are
{"score" (in [0, 1]), "tokens", "n", "score_ci"}.
"""

import importlib.util
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from coterie.cli.execution import run_all, summary
from coterie.environments.registry import is_name_word, task_word
from coterie.errors import UserError
from coterie.recipes.base import Recipe
from coterie.recipes.registry import (
    QUICKSTART,
    played_by,
    preset,
    quickstart_sizes,
    settings,
)
from coterie.recipes.registry import recipe as recipe_of
from coterie.runs.folder import open_run, read_config
from coterie.runs.items import evaluation


def quickstart(folder: Path, words: Sequence[str], dataset: str, console: Console) -> None:
    """Run the small preset of a data set in ``folder``. Replaces a finished quickstart."""
    began = time.monotonic()
    name = QUICKSTART
    preset(name, dataset)
    if any(map(is_name_word, words)):
        raise UserError(
            "quickstart does not accept dataset=NAME or environment=NAME",
            f"use --task with one of: {', '.join(played_by(name))}",
        )
    words = [task_word(dataset), *_engine(name, dataset), *words]
    recipe = recipe_of(settings(name, words, over=quickstart_sizes(dataset)))
    recipe.check()
    _clear_if_finished(folder, recipe)
    with open_run(folder, recipe.name, recipe.settings) as run:
        run_all(recipe, run, console)
        console.print(*summary(recipe, run), sep="\n")
        policies = {"before": 0, "after": recipe.settings.rounds}
        points = {when: evaluation(run.store, version) for when, version in policies.items()}
        result = {
            "task": recipe.settings.played,
            "model": recipe.settings.model,
            **{
                when: {
                    "score": round(point.score, 4),
                    "tokens": round(point.tokens, 2),
                    "n": point.n,
                    "score_ci": [round(point.low, 4), round(point.high, 4)],
                }
                for when, point in points.items()
            },
            "seconds": round(time.monotonic() - began, 1),
            "report": str(run.report),
        }
    print(json.dumps(result))


def _engine(method: str, dataset: str) -> list[str]:
    """Select vLLM if it is installed, except for the micro-world of the tiny model."""
    use_vllm = dataset != played_by(method)[0] and importlib.util.find_spec("vllm") is not None
    return ["engine.kind=vllm"] if use_vllm else []


def _clear_if_finished(folder: Path, recipe: Recipe) -> None:
    if not (folder / "config.yaml").is_file() or read_config(folder)[0] != recipe.name:
        return
    if read_config(folder)[1] != recipe.settings.model_dump(mode="json"):
        return  # another run: opening it reports the differences
    with open_run(folder, recipe.name, recipe.settings) as run:
        finished = all(run.is_finished(step) for step in recipe.steps())
    if finished:
        shutil.rmtree(folder)
