"""Metrics of an objective, averaged over all trained tokens of a step.

Each micro-batch and each rank measures its own tokens. The result is the mean over the whole step, with minimum and
maximum where requested. The split into micro-batches and ranks changes only rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from accelerate.utils import gather_object


@dataclass(frozen=True, slots=True)
class Measure:
    """Values of one metric, one per token."""

    values: torch.Tensor
    extremes: bool = False
    """True to report the minimum and maximum as well."""


@dataclass(slots=True)
class Tally:
    """Measures of a step so far."""

    parts: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    """``[sum, count]`` or ``[sum, count, minimum, maximum]`` of each micro-batch, by name."""

    def add(self, measures: Mapping[str, Measure]) -> None:
        """Add the measures of a micro-batch."""
        for name, measure in measures.items():
            values = measure.values.float()
            if not values.numel():
                continue
            statistics = [values.sum(), values.new_tensor(values.numel())]
            statistics += [values.min(), values.max()] if measure.extremes else []
            self.parts.setdefault(name, []).append(torch.stack(statistics))

    def result(self) -> dict[str, float]:
        """Return the means by name, with ``NAME_min`` and ``NAME_max`` for extremes, and clear the tally.

        Every rank calls this and gets the same result.
        """
        own = [{name: torch.stack(parts).tolist() for name, parts in self.parts.items()}]
        self.parts.clear()
        everywhere: dict[str, list[list[float]]] = {}
        for one in gather_object(own):
            for name, parts in one.items():
                everywhere.setdefault(name, []).extend(parts)
        result: dict[str, float] = {}
        for name, parts in sorted(everywhere.items()):
            total, count, *extremes = zip(*parts, strict=True)
            result[name] = sum(total) / sum(count)
            if extremes:
                result[f"{name}_min"], result[f"{name}_max"] = min(extremes[0]), max(extremes[1])
        return result
