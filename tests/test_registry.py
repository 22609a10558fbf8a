"""The registry of recipes: entries, presets and sizes of a quickstart."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from coterie.config.settings import key
from coterie.recipes import registry
from coterie.recipes.registry import RecipeDescription, played_by, quickstart_sizes, settings
from coterie.recipes.settings import RecipeSettings
from tests.conftest import Cli, refused

PRESETS = """
common: {rate: 0.25, evaluate: {tasks: 7, temperature: 0.5}}
datasets:
  gsm8k: {evaluate: {tasks: 9}}
micro_world: {environment: {name: exchange}, seed: 4}
"""


class ToySettings(RecipeSettings):
    """Settings of a recipe that is only here."""

    recipe: ClassVar[str] = "toy/one"
    model: str = key("tiny-exchange", "The model that learns.")
    rate: float = key(0.5, "How fast the toy learns.")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An entry with presets in a package of its own."""
    (tmp_path / "toys/presets/toy").mkdir(parents=True)
    (tmp_path / "toys/__init__.py").touch()
    (tmp_path / "toys/presets/toy/one.yaml").write_text(PRESETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = RecipeDescription("toy", "toys", lambda: (ToySettings,), lambda _: pytest.fail("made"))
    monkeypatch.setattr(registry, "BUILT_IN", (*registry.BUILT_IN, entry))
    yield
    sys.modules.pop("toys", None)


def test_a_method_is_found_by_its_entry_with_its_presets(toy: None, cli: Cli) -> None:
    listed = cli("config", "toy/one", "rate=0.75")
    assert listed.code == 0 and "0.75" in listed.out and "toy learns" in listed.out
    assert "did you mean 'toy/one'" in refused(cli, "config", "toy/two")
    assert played_by("toy/one") == ["exchange", "gsm8k"]
    own = settings("toy/one", ["dataset=gsm8k"]).model_dump()
    assert (own["rate"], own["evaluate"]) == (0.25, {"tasks": 9, "temperature": 0.5})
    whole = settings("toy/one").model_dump()
    assert (whole["rate"], whole["seed"], whole["evaluate"]["tasks"]) == (0.5, 4, 500)


def test_a_quickstart_has_sizes_for_its_tasks_only(cli: Cli) -> None:
    assert quickstart_sizes("exchange") == {"environment": {"name": "exchange"}}
    problem = refused(cli, "quickstart", "--task", "mmlu")
    assert "a quickstart has no preset for mmlu" in problem and "hotpot_qa" in problem
