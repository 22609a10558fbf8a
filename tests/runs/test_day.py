"""A template with a clock writes the day on which its run was made."""

import shutil
from datetime import date
from pathlib import Path

import pytest

from coterie.cli.conversation import open_engine
from coterie.cli.evaluate import candidates
from coterie.config.folders import pinned, today
from coterie.engines.settings import EngineSettings
from coterie.models.chat import ChatRenderer
from coterie.models.loading import resolve
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.record.tree import Tree
from coterie.record.turn import Message
from coterie.runs.loop import fork
from coterie.runs.run import open_run, read_config, write_config

MADE = date(2025, 1, 2)
CLOCK = "{{ '<|system|>It is ' + strftime_now('%d %b %Y %H:%M') + '.<|end|>' }}"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model whose template has a clock, made on another day."""
    folder = tmp_path_factory.mktemp("clock")
    shutil.copytree(resolve("tiny-exchange"), folder / "model")
    template = folder / "model" / "chat_template.jinja"
    template.write_text(CLOCK + template.read_text())
    own = settings("optima/isft", [f"model={folder / 'model'}"])
    with pinned(MADE), open_run(folder / "run", own.recipe, own) as run:
        write_config(run)
    return folder / "run"


def shown(renderer: ChatRenderer) -> str:
    ids = renderer.render([Message.of("user", "Hello")], Tree("t", "r", 0), "A")
    return renderer.decode(ids)


def test_a_run_that_is_resumed_forked_or_read_keeps_its_day(run_folder: Path) -> None:
    name, stored = read_config(run_folder)
    recipe = recipe_of(settings(name, (), stored))
    for write in (True, False):
        with open_run(run_folder, name, recipe.settings, write=write) as run:
            assert run.created == MADE
            assert "It is 02 Jan 2025 00:00." in shown(
                recipe.models(run).load("policy", 0).renderer
            )
    fork(recipe, run_folder, run_folder.parent / "fork", recipe.settings)
    with open_run(run_folder.parent / "fork", name, recipe.settings) as forked:
        assert forked.created == MADE
    assert today() == date.today()


def test_chat_and_evaluation_of_a_run_use_its_day_and_of_a_model_the_clock(
    run_folder: Path,
) -> None:
    served = open_engine(str(run_folder), None, ["engine.device=cpu"])
    assert "02 Jan 2025" in shown(served.loaded.renderer)
    named = dict.fromkeys(("Alice", "Bob"), str(run_folder))
    for (player,) in candidates(named, EngineSettings(), "last"):
        assert player.agents == ("Alice", "Bob") and "02 Jan 2025" in shown(player.load().renderer)
    with pinned(date(2026, 3, 4)):
        served = open_engine(str(run_folder.parent / "model"), None, ["engine.device=cpu"])
    assert "04 Mar 2026" in shown(served.loaded.renderer)
    assert served.loaded.renderer.template.has_clock
