"""A selection: a reference to what of a tree is trained on, never a copy of its text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """One agent's view of the path to a leaf, chosen for training; or a turn preferred to another."""

    leaf: str
    """Id of the last turn of the path."""
    agent: str
    context: str | None = None
    """Name of the recontext rule to apply; ``None`` for the context as recorded."""
    weight: float = 1.0
    rejected: str | None = None
    """Id of the turn that ``leaf``, then the chosen one, is preferred to; ``None`` for no pair."""
