"""Tasks with their secrets, trees of turns, and the items, credit and selections that refer to them.

``str``, ``repr`` and formatting redact a :class:`Secret`. Its value is accessible only by :meth:`Secret.reveal`, which
checks the role, and :meth:`Secret.part`, whose audience are the secret's readers.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from coterie.record.turn import Message, Part, PrivilegeError, Request, Turn, digest


class Secret:
    """A privileged text (gold answer, reference solution) that only ``readers`` may open."""

    __slots__ = ("_text", "name", "readers")

    def __init__(self, text: str, *, name: str, readers: frozenset[str]) -> None:
        # Without readers, a secret could never be opened again.
        if not readers:
            raise ValueError(f"secret {name!r} has no readers")
        self._text = text
        self.name = name
        self.readers = readers

    def reveal(self, role: str) -> str:
        """Return the text for one of its readers; raise :class:`PrivilegeError` for other roles."""
        if role not in self.readers:
            readers = ", ".join(sorted(self.readers))
            raise PrivilegeError(
                f"role {role!r} may not read secret {self.name!r} (readers: {readers})"
            )
        return self._text

    def part(self, role: str) -> Part:
        """Return the secret as a prompt part that only its readers may see."""
        return Part(self.reveal(role), audience=self.readers, source=f"secret:{self.name}")

    def __str__(self) -> str:
        # Logs, errors and prompts format values by accident; the text must not get into them.
        return f"<secret {self.name}>"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[str, str, frozenset[str]]:
        return self._text, self.name, self.readers


@dataclass(frozen=True, slots=True)
class Task:
    """A task of an environment, with an id that is unique there."""

    id: str
    public: Mapping[str, object]
    """Plain data (JSON) to build prompts from; the environment decides who sees which field."""
    secrets: Mapping[str, Secret] = field(default_factory=dict)


FINAL_REWARD = "final_reward"
"""Credit name (``final_reward:ACTOR``) of a reward of the final grade, on the leaf."""
Metrics = Mapping[str, float | int | str]
"""Numbers and short texts by name, which reports show."""


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
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Credit:
    """One number on a node. A new settings hash adds a number and never overwrites one."""

    node: str
    """Id of a turn, or of a tree's root."""
    name: str
    """Name of the measure: ``task``, ``tokens``, ``loss``, ``advantage``, ``value``, ``visits``."""
    value: float
    settings: str
    """Fingerprint of the settings of the stage that computed it."""

    def __post_init__(self) -> None:
        # NaN compares false with everything, so it would be sorted anywhere in a selection.
        if math.isnan(self.value):
            raise ValueError(f"credit {self.name!r} of node {self.node} is not a number")


@dataclass(frozen=True, slots=True)
class Selection:
    """One agent's view of a path to train on, or a preferred turn and a rejected one."""

    leaf: str
    agent: str
    context: str | None = None
    weight: float = 1.0
    rejected: str | None = None
    """Id of the turn that ``leaf`` is preferred to; ``None`` without a pair."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something sampled that is not trained on."""

    task: str
    node: str
    """Turn, leaf, or root of a tree (for a group or a failed rollout), or the origin of a file's row."""
    reason: str
    """Reason; if a metric of the item counts these, its name."""
    agent: str = ""
    """Agent that it concerns; "" for all."""
    number: float | None = None
    """Number that decided, such as the reward under a threshold."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Reason of a path's end."""

    reason: str
    """Reason from the environment (``agreed``, ``answered``), or a limit: ``turns``, ``length``, ``context``."""
    truncated: bool = False
    """True if a limit cut the path off, False if the environment ended it."""


ANSWERED = Ending("answered")
TURNS = Ending("turns", truncated=True)
LENGTH = Ending("length", truncated=True)
"""A turn was cut off at its token limit."""
CONTEXT = Ending("context", truncated=True)
"""The next prompt did not fit the model's context."""
STOPPED = Ending("stopped")
"""An alternative in a tree was not continued, since only the reward of its turn was needed. It has no score."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one path."""

    leaf: str
    sample: int
    ending: Ending
    answer: str | None
    score: float | None
    """Metric of the benchmark, any finite number; ``None`` if the path could not be graded, which differs from 0."""

    def __post_init__(self) -> None:
        # An infinite score would make every mean and interval infinite.
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"the score of leaf {self.leaf} is {self.score}; it must be finite")


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
    """Image bytes by SHA-256, written with the tree. Trees from a store have none (see ``Store.image``)."""
    root: str = field(init=False, repr=False)
    """Id of the root: the parent of the first turns."""
    _children: dict[str, list[str]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.root = root_id(self.iteration, self.stage, self.task)

    def add(self, turn: Turn, request: Request | None = None) -> None:
        """Add a turn and its request, unless the tree has an equal turn."""
        # Parents come first: paths and the order of the store rely on it.
        if turn.parent != self.root and turn.parent not in self.turns:
            raise KeyError(f"parent {turn.parent} of turn {turn.id} is not in tree {self.task}")
        if request is not None:
            self.requests[request.id] = request
        # Samples of one task share their first turns (such as an observation), which each of them adds.
        if turn.id not in self.turns:
            self.turns[turn.id] = turn
            self._children.setdefault(turn.parent, []).append(turn.id)

    def add_image(self, data: bytes) -> str:
        """Add an image and return its SHA-256, which parts refer to it by."""
        self.images[hash_of(data)] = data
        return hash_of(data)

    def end(self, outcome: Outcome) -> None:
        """Add the outcome of a path; a leaf belongs to one sample."""
        # Two samples with equal tokens would be one path with one reward. Separate draws (`Turn.draw`) keep them apart.
        old = self.outcomes.get(outcome.leaf)
        if old is not None and old.sample != outcome.sample:
            raise ValueError(
                f"samples {old.sample} and {outcome.sample} of task {self.task} end in the same "
                f"turn {outcome.leaf}; use separate draws for separate samples"
            )
        self.outcomes[outcome.leaf] = outcome

    def graded(self) -> Iterator[tuple[Outcome, list[Turn]]]:
        """Yield the trajectories that have a score, in order of sample."""
        return ((o, path) for o, path in self.trajectories() if o.score is not None)

    def children(self, node: str) -> list[Turn]:
        """Return the turns right after ``node`` (a turn's id, or ``root``), in order of addition."""
        return [self.turns[child] for child in self._children.get(node, ())]

    def leaves(self) -> list[Turn]:
        """Return the turns that no turn follows."""
        return [turn for turn in self.turns.values() if not self._children.get(turn.id)]

    def path(self, node: str) -> list[Turn]:
        """Return the turns from the root to ``node``, which is the last one; none for the root."""
        turns = []
        # Collected from the leaf upwards; reversed at the end.
        while node != self.root:
            turns.append(self.turns[node])
            node = self.turns[node].parent
        return turns[::-1]

    def trajectories(self) -> Iterator[tuple[Outcome, list[Turn]]]:
        """Yield each finished path with its outcome, in order of sample."""
        for outcome in sorted(self.outcomes.values(), key=lambda o: o.sample):
            yield outcome, self.path(outcome.leaf)

    def messages(self, request: Request) -> tuple[Message, ...]:
        """Return all messages of the prompt of a request, oldest first."""
        # Each request is a delta on the agent's previous one. Go back to the first, then apply them.
        deltas = [request]
        while (previous := deltas[-1].previous) is not None:
            previous_prompt = self.turns[previous].prompt
            assert previous_prompt is not None, "the previous turn has a request"
            deltas.append(self.requests[previous_prompt])
        messages = deltas.pop().messages
        for delta in reversed(deltas):
            # Running messages: the previous prompt and the turn that answered it. The next prompt
            # keeps the first of them, and adds its own.
            messages = (*messages, Message("assistant", turn=delta.previous))
            messages = messages[: delta.keep_messages] + delta.messages
        return messages


def root_id(iteration: int, stage: str, task: str) -> str:
    return digest("root", iteration, stage, task)


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def shown_images(tree: Tree) -> set[str]:
    """Return the SHA-256 of all images in turns and prompts of a tree."""
    turns = (part for turn in tree.turns.values() for part in turn.parts)
    prompts = (p for r in tree.requests.values() for m in r.messages for p in m.parts)
    return {part.image for part in (*turns, *prompts) if part.image is not None}


def redact(tree: Tree) -> Tree:
    """Return a copy of a tree without parts and prompts from secrets.

    A prompt with a secret is removed, since its ids contain the secret, and so are the agent's later prompts, which are
    deltas on it. The turns for such prompts stay as text of their writer (``POLICY@VERSION`` of a sampled turn), even
    if their own text repeats the secret.
    """
    # Ids of tokens reveal a secret as well as its text, so removing parts is not enough.
    hidden = {r.id for r in tree.requests.values() if _shows_secret(tree, r)}
    result = Tree(tree.task, tree.stage, tree.iteration)
    result.requests = {id_: r for id_, r in tree.requests.items() if id_ not in hidden}
    for turn in tree.turns.values():
        result.add(_redacted(turn, hidden))
    for outcome in tree.outcomes.values():
        result.end(outcome)
    return result


def _shows_secret(tree: Tree, request: Request) -> bool:
    # A later prompt contains all earlier ones, since it is a delta on them.
    link: Request | None = request
    while link is not None:
        for message in link.messages:
            of_turn = tree.turns[message.turn].parts if message.turn in tree.turns else ()
            if any(map(is_secret, (*message.parts, *of_turn))):
                return True
        previous_prompt = tree.turns[link.previous].prompt if link.previous else None
        link = tree.requests[previous_prompt] if previous_prompt else None
    return False


def _redacted(turn: Turn, hidden: set[str]) -> Turn:
    if turn.prompt in hidden:
        # The sample refers to the hidden prompt. Its writer stays as the author of the text.
        turn = replace(turn, sample=None, author=turn.writer, request=None)
    if any(map(is_secret, turn.parts)):
        # Unsampled ids are the tokens of the text, with the secret in it.
        marked = ((part, Part(f"<{part.source}>", part.audience)) for part in turn.parts)
        parts = tuple(mark if is_secret(part) else part for part, mark in marked)
        turn = replace(turn, parts=parts, ids=turn.ids if turn.sample else ())
    return turn


def is_secret(part: Part) -> bool:
    return part.source.startswith("secret:")
