"""Names of agents."""

from collections.abc import Sequence

NAMES = ("Alice", "Bob", "Carol")
"""In speaking order: Optima's two agents, and one for its experiments with three agents."""


def named(names: Sequence[str]) -> str:
    """Join names in a sentence: ``Bob``, or ``Bob and Carol``."""
    return " and ".join(names)


def others(agent: str, agents: Sequence[str]) -> list[str]:
    return [name for name in agents if name != agent]
