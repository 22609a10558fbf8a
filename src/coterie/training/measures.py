"""What an objective tells of a step besides its loss: numbers of its trained tokens, put together.

Each micro-batch and each rank measures its own tokens. What comes out is the mean over all of the step's, and where it
matters the least and the greatest; how the step was split changes rounding only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from accelerate.utils import gather_object


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of each of some tokens."""

    values: torch.Tensor
    extremes: bool = False
    """Whether the least and the greatest are told, too."""


@dataclass(slots=True)
class Tally:
    """Measures of a step so far."""

    parts: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    """By name, of each micro-batch ``[sum, count, least, greatest]``; what comes without extremes has no last two."""

    def add(self, measures: Mapping[str, Measure]) -> None:
        """Put those of a micro-batch to it."""
        for name, measure in measures.items():
            values = measure.values.float()
            if not values.numel():
                continue
            found = [values.sum(), values.new_tensor(values.numel())]
            found += [values.min(), values.max()] if measure.extremes else []
            self.parts.setdefault(name, []).append(torch.stack(found))

    def result(self) -> dict[str, float]:
        """Means under the measures' names, extremes as ``NAME_min`` and ``NAME_max``; empty again afterwards.

        Every rank calls this, and all get the same.
        """
        own = [{name: torch.stack(parts).tolist() for name, parts in self.parts.items()}]
        self.parts.clear()
        everywhere: dict[str, list[list[float]]] = {}
        for one in gather_object(own):
            for name, parts in one.items():
                everywhere.setdefault(name, []).extend(parts)
        found: dict[str, float] = {}
        for name, parts in sorted(everywhere.items()):
            total, count, *extremes = zip(*parts, strict=True)
            found[name] = sum(total) / sum(count)
            if extremes:
                found[f"{name}_min"], found[f"{name}_max"] = min(extremes[0]), max(extremes[1])
        return found
