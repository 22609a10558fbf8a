"""An item of work: the unit that is finished, committed and resumed as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Metrics = Mapping[str, float | int | str]
"""Named measurements of one item."""


@dataclass(frozen=True, slots=True, order=True)
class ItemKey:
    """Unique key of one finished item; keys sort in the order in which results are merged."""

    iteration: int
    stage: str
    """``rollout``, ``evaluate``, ..."""
    task: str
    sample: str = ""
    """Which of the task's samples, or ``SEARCH/ROLLOUT``; empty where a task is one item."""


@dataclass(frozen=True, slots=True)
class Item:
    """A finished item: it has a failure, or what it made is in the store."""

    key: ItemKey
    failure: str | None = None
    """Why it failed, for a person to read; ``None`` if it did not."""
    metrics: Metrics = field(default_factory=dict)
