"""Timing of alternating sides within a time limit, for benchmarks that print a ratio."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Times:
    """Seconds of each side's counted runs, in order; the sides took turns."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: str, seconds: float) -> None:
        """Count one run."""
        self.seconds.setdefault(side, []).append(seconds)

    def medians(self) -> dict[str, float]:
        """Of each side."""
        return {side: statistics.median(found) for side, found in self.seconds.items()}

    def ratio(self, side: str, to: str) -> float:
        """Median seconds of one side over those of another."""
        return statistics.median(self.seconds[side]) / statistics.median(self.seconds[to])

    def spread(self, side: str, to: str) -> list[float]:
        """The smallest and the largest ratio of two runs of the same round."""
        pairs = zip(self.seconds[side], self.seconds[to], strict=False)
        ratios = [one / other for one, other in pairs]
        return [min(ratios), max(ratios)]

    def rounds(self) -> int:
        """How many runs of each side were counted, at least."""
        return min(map(len, self.seconds.values()))


def rounds(maximum: int, seconds: float) -> Iterator[int]:
    """The numbers of the rounds that fit into ``seconds``: at least one, at most ``maximum``.

    Another round begins only if one as long as the longest so far would still end in time.
    """
    began, longest = time.monotonic(), 0.0
    for number in range(maximum):
        start = time.monotonic()
        if number and start - began + longest > seconds:
            return
        yield number
        longest = max(longest, time.monotonic() - start)


def alternate(
    sides: Mapping[str, Callable[[], object]], repeats: int, seconds: float, *, warm: bool = True
) -> Times:
    """Run the sides in turn, ``repeats`` times or as often as fits into ``seconds``.

    With ``warm``, a first round is not counted, unless it is the only one that fits.
    """
    times = Times()
    for number in rounds(repeats + warm, seconds):
        for side, run in sides.items():
            began = time.perf_counter()
            run()
            times.add(side, time.perf_counter() - began)
        if number == 1 and warm:
            for found in times.seconds.values():
                del found[0]
    return times
