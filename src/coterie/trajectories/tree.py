"""A tree of turns: all that was done on one task in one stage of one iteration.

Branches share their beginnings. A leaf has an :class:`Outcome`; the way to it is a path.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from coterie.trajectories.turn import Message, Request, Turn, digest


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a path ended."""

    reason: str
    """In the environment's words (``agreed``, ``answered``), or a limit's: ``turns``, ``length``, ``context``."""
    truncated: bool = False
    """Whether a limit cut the path off; else the environment ended it."""


TURNS = Ending("turns", truncated=True)
LENGTH = Ending("length", truncated=True)
"""A turn ran to its limit of tokens."""
CONTEXT = Ending("context", truncated=True)
"""The dialogue has outgrown the context of who was to speak next."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one path ended."""

    leaf: str
    """Id of the last turn of the path."""
    sample: int
    """Which of the task's samples this path is."""
    ending: Ending
    answer: str | None
    """The final answer, as extracted; ``None`` if there is none."""
    score: float | None
    """The benchmark's metric for this path, any finite number; ``None`` if it could not be graded,
    which is never the same as 0."""

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"the score of leaf {self.leaf} is {self.score}, which is no measure")


@dataclass(slots=True)
class Tree:
    """Turns, requests and outcomes of one task. ``root`` is an id that no turn has."""

    task: str
    stage: str
    iteration: int
    turns: dict[str, Turn] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    images: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """Bytes of images that parts name, by their SHA-256. They are written with the tree; a tree that was
    read has none (``Store.image`` gives them)."""
    root: str = field(init=False, repr=False)
    """Id of the root: the parent of the first turns."""
    _children: dict[str, list[str]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.root = root_id(self.iteration, self.stage, self.task)

    def add(self, turn: Turn, request: Request | None = None) -> None:
        """Add a turn (and the request it answers); adding an equal turn again changes nothing."""
        if turn.parent != self.root and turn.parent not in self.turns:
            raise KeyError(f"parent {turn.parent} of turn {turn.id} is not in tree {self.task}")
        if request is not None:
            self.requests[request.id] = request
        if turn.id not in self.turns:
            self.turns[turn.id] = turn
            self._children.setdefault(turn.parent, []).append(turn.id)

    def add_image(self, data: bytes) -> str:
        """Keep the bytes of an image; their SHA-256, by which a part names it."""
        self.images[hash_of(data)] = data
        return hash_of(data)

    def end(self, outcome: Outcome) -> None:
        """Record how the path to a leaf ended; a leaf is the end of one sample only."""
        old = self.outcomes.get(outcome.leaf)
        if old is not None and old.sample != outcome.sample:
            raise ValueError(
                f"samples {old.sample} and {outcome.sample} of task {self.task} end in the same "
                f"turn {outcome.leaf}; give turns of separate samples separate draws"
            )
        self.outcomes[outcome.leaf] = outcome

    def graded(self) -> Iterator[tuple[Outcome, list[Turn]]]:
        return ((o, path) for o, path in self.trajectories() if o.score is not None)

    def children(self, node: str) -> list[Turn]:
        """Turns right after ``node`` (a turn's id, or ``root``), in the order they were added."""
        return [self.turns[child] for child in self._children.get(node, ())]

    def leaves(self) -> list[Turn]:
        return [turn for turn in self.turns.values() if not self._children.get(turn.id)]

    def path(self, node: str) -> list[Turn]:
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
        deltas = [request]
        while (previous := deltas[-1].previous) is not None:
            before = self.turns[previous].prompt
            assert before is not None, "a request follows a turn that has one"
            deltas.append(self.requests[before])
        found = deltas.pop().messages
        for one in reversed(deltas):
            kept = (*found, Message("assistant", turn=one.previous))
            found = kept[: one.keep_messages] + one.messages
        return found


def root_id(iteration: int, stage: str, task: str) -> str:
    return digest("root", iteration, stage, task)


def hash_of(data: bytes) -> str:
    """The name of bytes: their SHA-256, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def shown_images(tree: Tree) -> set[str]:
    """Names of all images that turns and prompts of a tree show."""
    turns = (part for turn in tree.turns.values() for part in turn.parts)
    prompts = (p for r in tree.requests.values() for m in r.messages for p in m.parts)
    return {part.image for part in (*turns, *prompts) if part.image is not None}
