"""Which answer most of several agree on.

The majority of Optima's self-consistency (arXiv 2410.08115, section 3.3): answers are grouped
greedily, and the largest group wins. Exact equality would split what F1 calls nearly the same.
"""

from collections.abc import Callable

ALIKE = 0.9
"""Least similarity at which two answers count as one."""

Similarity = Callable[[str, str], float]
"""How much two answers are the same, in [0, 1] (:class:`~coterie.environments.traits.Votes`)."""


class Vote:
    """A count of answers as they come in.

    An answer joins the first group of which it is like any member, else it opens one. The largest
    group leads; of equally large ones the one that was opened first.
    """

    def __init__(self, similarity: Similarity) -> None:
        self._similarity = similarity
        self._groups: list[list[int]] = []
        self._answers: dict[int, str] = {}

    def add(self, voter: int, answer: str | None) -> None:
        """Count the answer of ``voter``, a number of its own; ``None``, no answer, is not a vote."""
        if answer is None:
            return
        self._answers[voter] = answer
        for group in self._groups:
            if any(self._alike(answer, self._answers[member]) for member in group):
                group.append(voter)
                return
        self._groups.append([voter])

    @property
    def winners(self) -> tuple[int, ...]:
        """The voters of the group that leads; empty if nobody gave an answer."""
        largest = max(map(len, self._groups), default=0)
        return next((tuple(group) for group in self._groups if len(group) == largest), ())

    def _alike(self, answer: str, other: str) -> bool:
        return answer == other or self._similarity(answer, other) >= ALIKE
