"""Recipes by name: their settings, presets, and the recipe itself."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

import yaml

from coterie.config.folders import expanded
from coterie.config.resolve import resolve
from coterie.errors import UserError, did_you_mean, nearest
from coterie.recipes.optima.settings import (
    IDPOSettings,
    ISFTDPOSettings,
    OptimaDPOSettings,
    OptimaSettings,
)
from coterie.recipes.settings import RecipeSettings
from coterie.recipes.sweet_rl.settings import SweetSettings

if TYPE_CHECKING:
    from coterie.recipes.base import PolicyRecipe
    from coterie.recipes.optima.recipe import Optima

_SETTINGS: dict[str, type[RecipeSettings]] = {
    settings.recipe: settings
    for settings in (OptimaSettings, IDPOSettings, ISFTDPOSettings, SweetSettings)
}
NAMES = tuple(_SETTINGS)
FIRST = "exchange"
"""The micro-world of Optima."""


def settings_type(name: str) -> type[RecipeSettings]:
    """The settings of a recipe; raises :class:`UserError` if there is no such recipe."""
    if name not in NAMES:
        near = nearest(name, NAMES, cutoff=0.3)
        hint = f"did you mean {near!r}? " if near else ""
        raise UserError(f"no recipe is called {name!r}", f"{hint}there is: {', '.join(NAMES)}")
    return _SETTINGS[name]


def recipe(settings: RecipeSettings) -> "PolicyRecipe":
    """The recipe under its settings, whose type says which it is."""
    from coterie.recipes.optima.dpo import OptimaDPO
    from coterie.recipes.optima.recipe import Optima  # not above: torch takes seconds to import
    from coterie.recipes.sweet_rl.recipe import SweetRL

    if isinstance(settings, SweetSettings):
        return SweetRL(settings)
    if isinstance(settings, OptimaDPOSettings):
        return OptimaDPO(settings)
    assert isinstance(settings, OptimaSettings), "a recipe has its place above"
    return Optima(settings)


def optima(settings: RecipeSettings) -> "Optima":
    """As :func:`recipe`, for what only methods of Optima have. Raises ``UserError`` for another recipe."""
    from coterie.recipes.optima.recipe import Optima

    found = recipe(settings)
    if not isinstance(found, Optima):
        names = ", ".join(name for name in NAMES if issubclass(_SETTINGS[name], OptimaSettings))
        raise UserError(f"{found.name} is not a method of Optima", f"use one of: {names}")
    return found


def micro_world(name: str) -> str:
    """The data set of a recipe for which none is given: its micro-world."""
    return str(settings_type(name).model_fields["dataset"].default)


def datasets(name: str) -> list[str]:
    """The data sets for which a recipe has a preset; the micro-world first."""
    first = micro_world(name)
    names = (entry.name.removesuffix(".yaml") for entry in _presets(name).iterdir())
    return sorted(names, key=lambda one: (one != first, one))


def preset(name: str, dataset: str) -> dict[str, Any]:
    """The packaged values of a recipe for a data set."""
    known = datasets(name)
    if dataset not in known:
        raise UserError(
            f"dataset={dataset!r} is not known to {name}",
            f"{did_you_mean(dataset, known)}use one of: {', '.join(known)}",
        )
    return _packaged(name, dataset)


def small(dataset: str) -> dict[str, Any]:
    """The sizes of a quickstart on a data set, to be laid over its preset; empty for `exchange`."""
    return {} if dataset == FIRST else _packaged("optima/quickstart", dataset)


def settings(
    name: str,
    words: Sequence[str] = (),
    stored: Mapping[str, Any] | None = None,
    *,
    over: Mapping[str, Any] | None = None,
) -> RecipeSettings:
    """A recipe's preset for the data set that is asked for, overlaid by ``over``, by a run folder's
    stored values and by ``key=value`` words. A run folder as the model is the last policy of the run.
    """
    stored = stored or {}
    words = list(map(_of_run, words))
    dataset = _asked(words) or str(stored.get("dataset") or micro_world(name))
    if stored.get("dataset", dataset) != dataset:
        stored = {}  # values for another data set: not to be laid over this one's preset
    return resolve(settings_type(name), [preset(name, dataset), over or {}, stored], words)


def _of_run(word: str) -> str:
    """``model=RUN`` with the policy that is meant."""
    key, _, text = word.partition("=")
    if key != "model" or not (expanded(text) / "config.yaml").is_file():
        return word
    from coterie.recipes.last_policy import last_policy  # not above: torch takes seconds to import

    return f"model={last_policy(expanded(text))}"


def _asked(words: Iterable[str]) -> str | None:
    found = [word.partition("=")[2] for word in words if word.startswith("dataset=")]
    return found[-1] if found else None


def _presets(name: str) -> Traversable:
    """The folder of a method's presets."""
    recipe, _, method = name.partition("/")
    return resources.files("coterie.recipes") / recipe / "presets" / method


def _packaged(name: str, dataset: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((_presets(name) / f"{dataset}.yaml").read_text())
    return values
