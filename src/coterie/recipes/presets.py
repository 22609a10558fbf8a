"""The packaged values of a method: one YAML file, a table of its data sets.

common:                     what all data sets below have, and plug-ins
datasets: {NAME: {...}}     what each has of its own, laid over the common values
open: true                  the common values are for whatever has none of its own, micro-worlds too
micro_world: {...}          the values of the micro-world, if there is one, whole: nothing is laid under them
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from coterie.config.resolve import overlaid


@dataclass(frozen=True, slots=True)
class Presets:
    """Values by what is played."""

    common: Mapping[str, Any]
    values: Mapping[str, Mapping[str, Any]]
    """The micro-world comes first, if there is one, then the data sets by name."""

    open: bool = False
    """Whether the common values are for whatever has none of its own."""

    def of(self, name: str) -> dict[str, Any]:
        """A copy of the values for what is played; ``KeyError`` if there are none."""
        return overlaid(self.values[name])


NONE = Presets({}, {})
"""Of a recipe that has none: its settings' defaults are its values."""


def read_presets(file: Traversable) -> Presets:
    table: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    common, rows = table.pop("common", {}), table.pop("datasets", {})
    micro_world, is_open = table.pop("micro_world", None), table.pop("open", False)
    assert not table, f"{file} has parts that mean nothing: {', '.join(table)}"
    return Presets(
        common,
        {
            **({micro_world["environment"]["name"]: micro_world} if micro_world else {}),
            **{name: overlaid(common, rows[name]) for name in sorted(rows)},
        },
        is_open,
    )
