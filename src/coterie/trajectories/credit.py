"""Credit: named numbers on nodes, keyed by the settings they were computed with."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Credit:
    """One number on a node. A new settings hash adds a number and never overwrites one."""

    node: str
    """Id of a turn, or of a tree's root."""
    name: str
    """Name of the measure: ``task``, ``tokens``, ``loss``, ``advantage``, ``value``, ``visits``."""
    value: float
    settings: str
    """Fingerprint of the settings of the stage that computed it."""

    def __post_init__(self) -> None:
        if math.isnan(self.value):
            raise ValueError(f"credit {self.name!r} of node {self.node} is not a number")
