"""Timing of alternating sides, for benchmarks that print a ratio."""

import statistics
import time
from collections.abc import Callable, Mapping


def medians(sides: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each side; they take turns, and a first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, run in sides.items():
            began = time.perf_counter()
            run()
            if repeat:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in times.items()}
