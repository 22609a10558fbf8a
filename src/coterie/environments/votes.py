"""Majority vote over answers, for Optima's self-consistency (arXiv 2410.08115, section 3.3).

Answers are grouped greedily, and the largest group wins. Exact equality would separate answers that F1 rates as nearly
equal.
"""

from collections.abc import Callable

ALIKE = 0.9
"""Minimum similarity at which two answers count as equal."""

Similarity = Callable[[str, str], float]
"""Similarity of two answers, in [0, 1] (:class:`~coterie.environments.traits.Votes`)."""


class Vote:
    """Incremental count of answers.

    An answer joins the first group with a similar member, or else starts a group. In a tie the oldest group wins.
    """

    def __init__(self, similarity: Similarity) -> None:
        self._similarity = similarity
        self._groups: list[list[int]] = []
        self._answers: dict[int, str] = {}

    def add(self, voter: int, answer: str | None) -> None:
        """Count the answer of ``voter``, a unique number. ``None`` (no answer) is not a vote."""
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
        """Voters of the largest group; empty without answers."""
        largest = max(map(len, self._groups), default=0)
        return next((tuple(group) for group in self._groups if len(group) == largest), ())

    def _alike(self, answer: str, other: str) -> bool:
        return answer == other or self._similarity(answer, other) >= ALIKE
