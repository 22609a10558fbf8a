"""Runs whose dialogues are known, and what their steps hand to training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from coterie.environments.coding import CRITIC
from coterie.models.adapters import HEAD_FILE
from coterie.progress import Silent
from coterie.recipes import trainings as trainings_of_recipes
from coterie.recipes.sweet_rl import SweetRL
from coterie.runs.folder import Run, open_run
from coterie.runs.loop import run_steps
from coterie.training.losses import SFT
from tests.sweet.known import (
    BRANCH,
    REWARD,
    SELECT,
    SELECT_TURNS,
    WORDS,
    Enough,
    Training,
    imported,
)
from tests.test_step_critic import moved
from tests.test_sweet_offline import made


@pytest.fixture
def own() -> Iterator[SweetRL]:
    recipe = made(*WORDS)
    yield recipe
    recipe.close()


@pytest.fixture
def played_only(tmp_path: Path) -> Iterator[Run]:
    recipe = imported(tmp_path)
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        yield run


@pytest.fixture(scope="package")
def selected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Played and selected; nothing is written into it."""
    folder = tmp_path_factory.mktemp("selected")
    recipe = imported(folder)
    with open_run(folder / "run", recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent(), [SELECT])
        yield run
    recipe.close()


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Played and selected, with a critic that has a value head, and every turn's candidates ranked by it."""
    folder = tmp_path_factory.mktemp("steps")
    recipe = imported(folder)
    with open_run(folder / "run", recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent(), [SELECT])
        critic, final = moved(0), run.training_folder(0, CRITIC) / "final"
        critic.model.save_pretrained(final)
        critic.tokenizer.save_pretrained(final)
        width = torch.randn(
            1, critic.model.config.hidden_size, generator=torch.Generator().manual_seed(0)
        )
        save_file(
            {"value_head.weight": width, "value_head.bias": torch.zeros(1)}, final / HEAD_FILE
        )
        for step in (BRANCH, REWARD, SELECT_TURNS):
            recipe.at(step).do(run, step.iteration, Silent())
        yield run
    recipe.close()


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Training]:
    seen: list[Training] = []

    def train(
        model: Any, items: Any, settings: Any, folder: Path, *, objective: Any = None, **_: Any
    ) -> None:
        seen.append(Training(model, list(items), settings, objective or SFT()))
        raise Enough

    monkeypatch.setattr(trainings_of_recipes, "train", train)
    return seen
