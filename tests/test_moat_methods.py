"""``moat/complex_qa`` and ``moat/web``: their values, and whole runs on a few rows with a tiny model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.environments.plan_domains import Web
from coterie.environments.plan_ground import known_results
from coterie.progress import Silent
from coterie.recipes import moat as moat_recipe
from coterie.recipes.moat import Moat
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.record.tree import Task
from coterie.rewards.critics import Correction
from coterie.runs.folder import Step, open_run
from coterie.runs.loop import run_steps
from coterie.tools.retrieval import build_index
from tests.test_moat import SMALL
from tests.web_tasks import write

SIZES = tuple(word for word in SMALL if not word.startswith("dataset="))


def run(folder: Path, method: str, words: Sequence[str]) -> Moat:
    recipe = recipe_of(settings(method, [*SIZES, *words]))
    assert isinstance(recipe, Moat)
    with open_run(folder, recipe.name, recipe.settings) as opened:
        run_steps(recipe, opened, Silent())
    recipe.close()
    return recipe


def test_a_run_on_web_pages_by_steps(tmp_path: Path) -> None:
    file = write(tmp_path / "tasks.jsonl")
    words = ("dataset=mind2web", f"dataset.source={file}", "rollout.tasks=8")
    recipe = run(tmp_path / "run", "moat/web", words)
    assert isinstance(recipe.environment.domain, Web)
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as opened:
        last = opened.metrics(Step(2, "evaluate"))
        assert (last["n"], last["failed"], last["on_page"]) == (2, 0, 1.0)


def test_corrections_of_a_step_may_use_the_results_of_those_before(tmp_path: Path) -> None:
    file = write(tmp_path / "tasks.jsonl")
    own = settings("moat/web", ["dataset=mind2web", f"dataset.source={file}"])
    recipe = recipe_of(own)
    assert isinstance(recipe, Moat)
    tasks: list[Task] = recipe.environment.tasks("heldout", 3, 0)
    assert [known_results(task) for task in tasks] == [(), ("R1",), ("R1", "R2")]
    candidate: Any = None
    for number, verdict in ((1, "unreadable"), (2, "corrected"), (3, "corrected")):
        said = Correction("corrected", "Subgoal 1: x", f"R{number} = CLICK(R1, QUERY: x)")
        found = moat_recipe._validate(recipe, tasks[number - 1], said, candidate)
        assert found.verdict == verdict


def test_rows_without_elements_are_trained_on_and_not_evaluated() -> None:
    own = settings(
        "moat/web", ["dataset=lumos_web", "dataset.source=sample", "environment.turns=8", *SIZES]
    )
    recipe = recipe_of(own)
    assert isinstance(recipe, Moat)
    stages = {step.stage for step in recipe.steps()}
    assert {"rollout", "reward", "align", "correct", "improve", "measure"} <= stages
    assert "evaluate" not in stages
    assert recipe.plan().evaluations == 0


def test_a_run_on_questions_over_pages(tmp_path: Path) -> None:
    pages = tmp_path / "pages.jsonl"
    rows = [
        {"title": "Peru", "text": "Lima is the capital of Peru."},
        {"title": "Norway", "text": "Oslo is the capital of Norway."},
    ]
    pages.write_text("\n".join(map(json.dumps, rows)))
    build_index(pages, tmp_path / "index")
    words = (
        "dataset=tests/plans.py:Questions",
        f"environment.corpus={tmp_path / 'index'}",
        "parts=grounder",
    )
    recipe = run(tmp_path / "run", "moat/complex_qa", words)
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as opened:
        assert opened.metrics(Step(1, "correct"))["corrected"] == 1
        assert opened.metrics(Step(2, "evaluate"))["n"] == 1
