"""Preset values of a method, from one YAML file:

common:                     values for all data sets below and for plug-ins
datasets: {NAME: {...}}     values of single data sets, which override the common values
open: true                  also use the common values for data sets and micro-worlds without values
micro_world: {...}          values of the micro-world, without the common values
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from coterie.config.resolve import overlaid


@dataclass(frozen=True, slots=True)
class Presets:
    """Preset values of a method by data set or environment."""

    common: Mapping[str, Any]
    values: Mapping[str, Mapping[str, Any]]
    """Micro-world first, if there is one, then data sets by name."""

    open: bool = False
    """True if data sets and environments without values use the common values."""

    def of(self, name: str) -> dict[str, Any]:
        """Return a copy of the values for a data set or environment. Raises ``KeyError`` without values."""
        return overlaid(self.values[name])


NONE = Presets({}, {})
"""Presets of a recipe without a file; the defaults of its settings apply."""


def read_presets(file: Traversable) -> Presets:
    table: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    common, rows = table.pop("common", {}), table.pop("datasets", {})
    micro_world, is_open = table.pop("micro_world", None), table.pop("open", False)
    assert not table, f"{file} has unknown parts: {', '.join(table)}"
    return Presets(
        common,
        {
            **({micro_world["environment"]["name"]: micro_world} if micro_world else {}),
            **{name: overlaid(common, rows[name]) for name in sorted(rows)},
        },
        is_open,
    )
