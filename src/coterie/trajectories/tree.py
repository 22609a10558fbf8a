"""A tree of turns: all that was done on one task in one stage of one iteration.

Branches share their beginnings. A leaf has an :class:`Outcome`; the way to it is a path.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from coterie.trajectories.turn import Message, Request, Turn, digest

End = Literal["agreed", "answered", "turn_limit", "runaway", "failed"]
"""How a dialogue ended: agreement, one answer where one is enough, no turns left, a turn without end,
a recorded failure."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one path ended."""

    leaf: str
    """Id of the last turn of the path."""
    sample: int
    """Which of the task's samples this path is."""
    end: End
    answer: str | None
    """The final answer, as extracted; ``None`` if there is none."""
    score: float
    """The benchmark's metric for this path, in [0, 1]."""


@dataclass(slots=True)
class Tree:
    """Turns, requests and outcomes of one task. ``root`` is an id that no turn has."""

    task: str
    stage: str
    iteration: int
    turns: dict[str, Turn] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    _children: dict[str, list[str]] = field(default_factory=dict, repr=False)

    @property
    def root(self) -> str:
        """Id of the root: the parent of the first turns."""
        return root_id(self.iteration, self.stage, self.task)

    def add(self, turn: Turn, request: Request | None = None) -> None:
        """Add a turn (and the request it answers); adding an equal turn again changes nothing."""
        if turn.parent != self.root and turn.parent not in self.turns:
            raise KeyError(f"parent {turn.parent} of turn {turn.id} is not in tree {self.task}")
        if request is not None:
            self.requests[request.id] = request
        if turn.id not in self.turns:
            self.turns[turn.id] = turn
            self._children.setdefault(turn.parent, []).append(turn.id)

    def end(self, outcome: Outcome) -> None:
        """Record how the path to a leaf ended; a leaf is the end of one sample only."""
        old = self.outcomes.get(outcome.leaf)
        if old is not None and old.sample != outcome.sample:
            raise ValueError(
                f"samples {old.sample} and {outcome.sample} of task {self.task} end in the same "
                f"turn {outcome.leaf}; give turns of separate samples separate draws"
            )
        self.outcomes[outcome.leaf] = outcome

    def children(self, node: str) -> list[Turn]:
        """Turns right after ``node`` (a turn's id, or ``root``), in the order they were added."""
        return [self.turns[child] for child in self._children.get(node, ())]

    def leaves(self) -> list[Turn]:
        """Turns that nothing follows."""
        return [turn for turn in self.turns.values() if not self._children.get(turn.id)]

    def path(self, node: str) -> list[Turn]:
        """Turns from the beginning to ``node``, both included."""
        turns = []
        while node != self.root:
            turns.append(self.turns[node])
            node = self.turns[node].parent
        return turns[::-1]

    def trajectories(self) -> Iterator[tuple[Outcome, list[Turn]]]:
        """Each finished path with its outcome, in order of sample."""
        for outcome in sorted(self.outcomes.values(), key=lambda o: o.sample):
            yield outcome, self.path(outcome.leaf)

    def messages(self, request: Request) -> tuple[Message, ...]:
        """All messages of a request, its deltas undone."""
        if request.previous is None:
            return request.messages
        before = self.turns[request.previous].prompt
        assert before is not None, "a request follows a turn that has one"
        kept = self.messages(self.requests[before])
        kept += (Message("assistant", turn=request.previous),)
        return kept[: request.keep_messages] + request.messages


def root_id(iteration: int, stage: str, task: str) -> str:
    """Id of the root of a tree."""
    return digest("root", iteration, stage, task)
