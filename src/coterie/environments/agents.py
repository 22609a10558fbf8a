"""Who talks: names of two or three agents, and how one of them is told of the others."""

from collections.abc import Sequence

NAMES = ("Alice", "Bob", "Carol")
"""In the order in which they speak; Optima's two, and one more for its section on three agents."""


def named(names: Sequence[str]) -> str:
    """Names in a sentence: ``Bob``, or ``Bob and Carol``."""
    return " and ".join(names)


def others(agent: str, agents: Sequence[str]) -> list[str]:
    return [name for name in agents if name != agent]
