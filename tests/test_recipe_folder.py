"""A recipe is one folder: what stands in it is found, and no other file says so."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie import recipes
from coterie.errors import UserError
from coterie.recipes.registry import descriptions, names, played_by, quickstart_sizes, settings
from tests.conftest import Cli, refused

FILES = {
    "__init__.py": '"""A recipe that is only here."""',
    "settings.py": """
from typing import ClassVar
from coterie.config.settings import key
from coterie.recipes.settings import RecipeSettings

class ToySettings(RecipeSettings):
    recipe: ClassVar[str] = "toy/one"
    model: str = key("tiny-exchange", "The model that learns.")
    rate: float = key(0.5, "How fast the toy learns.")
    rounds: ClassVar[int] = 1
    max_tokens: ClassVar[int] = 8
""",
    "description.py": """
from coterie.recipes.description import RecipeDescription

def _settings():
    from coterie.recipes.toy.settings import ToySettings
    return (ToySettings,)

def _none(*_):
    raise NotImplementedError

DESCRIPTION = RecipeDescription("toy", "coterie.recipes.toy", _settings, _none, _none)
""",
    "presets/one.yaml": """
common: {rate: 0.25, evaluate: {tasks: 7, temperature: 0.5}}
datasets:
  gsm8k: {evaluate: {tasks: 9}}
micro_world: {environment: {name: exchange}, seed: 4}
""",
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A recipe in a folder among those of the others."""
    for name, text in FILES.items():
        file = tmp_path / "more" / "toy" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(recipes, "__path__", [*recipes.__path__, str(tmp_path / "more")])
    descriptions.cache_clear()
    yield
    descriptions.cache_clear()
    for name in [name for name in sys.modules if name.startswith("coterie.recipes.toy")]:
        del sys.modules[name]


def test_a_recipe_is_found_by_its_folder(toy: None, cli: Cli) -> None:
    assert names()[-1] == "toy/one" and len(names()) > 1
    said = cli("config", "toy/one", "rate=0.75")
    assert said.code == 0 and "0.75" in said.out and "toy learns" in said.out
    with pytest.raises(UserError, match="did you mean 'toy/one'"):
        settings("toy/two")


def test_its_presets_are_common_values_with_those_of_a_data_set_over_them(toy: None) -> None:
    assert played_by("toy/one") == ["exchange", "gsm8k"]
    found = settings("toy/one", ["dataset=gsm8k"]).model_dump()
    assert (found["rate"], found["evaluate"]) == (0.25, {"tasks": 9, "temperature": 0.5})
    whole = settings("toy/one").model_dump()
    assert (whole["rate"], whole["seed"], whole["evaluate"]["tasks"]) == (0.5, 4, 500)


def test_a_quickstart_has_sizes_for_its_tasks_only(cli: Cli) -> None:
    assert quickstart_sizes("exchange") == {"environment": {"name": "exchange"}}
    said = refused(cli, "quickstart", "--task", "mmlu")
    assert "a quickstart has no preset for mmlu" in said and "hotpot_qa" in said
