"""``moat/complex_qa`` and ``moat/web``: their values, and whole runs on a few rows with a tiny model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coterie.environments.plan_domains import Web
from coterie.environments.plan_ground import known_results
from coterie.progress import Silent
from coterie.recipes.moat import recipe as moat_recipe
from coterie.recipes.moat.recipe import Moat
from coterie.recipes.registry import names, played_by, preset, settings
from coterie.recipes.registry import recipe as recipe_of
from coterie.record.tree import Task
from coterie.rewards.critics import Correction
from coterie.runs.folder import Step, open_run
from coterie.runs.loop import run_steps
from coterie.tools.retrieval import build_index
from tests.test_moat import SMALL
from tests.web_tasks import write

METHODS = ("moat/maths", "moat/complex_qa", "moat/web")
SIZES = tuple(word for word in SMALL if not word.startswith("dataset="))
TRAINED = {
    "align": {"learning_rate": 4e-7, "batch_rows": 96, "max_length": 4096},
    "improve": {"learning_rate": 2e-5, "batch_rows": 128, "max_length": 1024},
    "start": {"learning_rate": 2e-5, "batch_rows": 128, "max_length": 1024},
}
"""Sections A4 and B5 of what the released scripts do, typed in by hand."""


def test_methods_have_the_released_values() -> None:
    assert [name for name in names() if name.startswith("moat/")] == list(METHODS)
    assert played_by("moat/complex_qa") == ["lumos_complex_qa", "strategyqa_plans"]
    assert played_by("moat/web") == ["lumos_web", "shop"]
    for method in METHODS:
        for played in set(played_by(method)) - {"problems"}:
            found = preset(method, played)
            assert (found["iterations"], found["rollout"]["samples"]) == (2, 15)
            assert (found["pairs"]["margin"], found["align"]["objective"]["beta"]) == (0.1, 0.2)
            for stage, expected in TRAINED.items():
                own = found[stage]["train"]
                common = {
                    "schedule": "cosine",
                    "warmup_ratio": 0.05,
                    "weight_decay": 1e-4,
                    "epochs": 1,
                }
                assert {name: own[name] for name in (*expected, *common)} == {**expected, **common}


def test_web_pages_are_gone_through_step_by_step_and_the_form_can_be_chosen(tmp_path: Path) -> None:
    def form(*words: str) -> str:
        return str(settings("moat/web", words).environment.model_dump()["form"])

    assert form() == form("environment=shop") == "iterative"
    assert form("dataset=mind2web", f"dataset.source={tmp_path}") == "iterative"
    assert form("environment.form=onetime") == "onetime"


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


@pytest.mark.slow
def test_a_run_in_the_shop(tmp_path: Path) -> None:
    words = ("environment=shop", "parts=grounder", "start.train.max_length=1024")
    recipe = run(tmp_path / "run", "moat/web", words)
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as opened:
        last = opened.metrics(Step(2, "evaluate"))
        assert (last["n"], last["failed"], last["bought"]) == (2, 0, 0.0)


@pytest.mark.parametrize("method", METHODS[1:])
def test_every_preset_resolves(method: str) -> None:
    for played in played_by(method):
        word = "environment" if played == "shop" else "dataset"
        assert settings(method, [f"{word}={played}"]).recipe == method
