"""References to the paths and turns of a tree to train on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """One agent's view of a path to train on, or a preferred turn and a rejected one."""

    leaf: str
    """Id of the last turn of the path."""
    agent: str
    context: str | None = None
    """Name of the recontext rule to apply; ``None`` for the context as recorded."""
    weight: float = 1.0
    rejected: str | None = None
    """Id of the turn that ``leaf`` is preferred to; ``None`` without a pair."""
