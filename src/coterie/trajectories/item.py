"""Items of work: each is finished, committed and resumed as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Metrics = Mapping[str, float | int | str]
"""Named measurements of one item."""


@dataclass(frozen=True, slots=True, order=True)
class ItemKey:
    """Unique key of an item; results are merged in the sort order of keys."""

    iteration: int
    stage: str
    """``rollout``, ``evaluate``, ..."""
    task: str
    sample: str = ""
    """Sample number of the task, or ``SEARCH/ROLLOUT``; empty if the task is one item."""


@dataclass(frozen=True, slots=True)
class Item:
    """A finished item: it failed, or its result is in the store."""

    key: ItemKey
    failure: str | None = None
    """Readable reason of the failure; ``None`` for success."""
    metrics: Metrics = field(default_factory=dict)
