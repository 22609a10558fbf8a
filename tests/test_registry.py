"""The registry of recipes: entries, presets and sizes of a quickstart."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from coterie.config.settings import key
from coterie.errors import UserError
from coterie.recipes import registry
from coterie.recipes.registry import (
    RecipeDescription,
    names,
    played_by,
    quickstart_sizes,
    settings,
)
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

    def refuse(*_: object) -> None:
        raise NotImplementedError

    entry = RecipeDescription("toy", "toys", lambda: (ToySettings,), refuse)  # type: ignore[arg-type]
    monkeypatch.setattr(registry, "BUILT_IN", (*registry.BUILT_IN, entry))
    yield
    sys.modules.pop("toys", None)


def test_a_method_is_found_by_its_entry(toy: None, cli: Cli) -> None:
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
