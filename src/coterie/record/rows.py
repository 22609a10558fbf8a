"""Views of one agent, training rows and preference pairs: exact tokens, targets and their authors.

A :class:`View` has all segments of one agent's part of a rollout (usually one). A prompt that starts with all previous
tokens extends the last segment; another prompt (a template that rewrites history, a truncated context) starts a new
one. Each sampled token is in exactly one segment. Only the agent's own turns are targets; turns without a prompt are
context. :func:`recontext` is the only way to put sampled tokens under another context.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np

from coterie.record.tree import Tree
from coterie.record.turn import Message, Tool, Turn

UNPREDICTED = 0.0
"""Placeholder value for an untrained target without a token before it (a row's first token)."""


@dataclass(frozen=True, slots=True)
class Target:
    """A half-open range of trained tokens of a row."""

    start: int
    stop: int
    writer: str
    """``POLICY@VERSION`` of the model that sampled its last token, or the author of an unsampled turn."""
    turn: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    spans: tuple[tuple[str, int], ...] | None = field(default=None, repr=False)  # repr is hashed
    """Writer and number of tokens of each span, in order, if several versions sampled it; else ``None``."""

    @property
    def writers(self) -> tuple[tuple[str, int], ...]:
        """Writer and number of tokens of each span, in order."""
        return self.spans or ((self.writer, self.stop - self.start),)


@dataclass(frozen=True, slots=True)
class Row:
    """A token sequence with targets. Rows are made on demand and never stored."""

    ids: tuple[int, ...]
    targets: tuple[Target, ...]
    logprobs: tuple[float, ...] | None = None
    """Behavior log-probs of the targets, in order; ``None`` if the context was edited or a target was not sampled."""
    weight: float = 1.0
    context: str | None = None
    """Name of the recontext rule, ``None`` for the context as recorded."""
    origin: str = ""
    """``LEAF/AGENT/SEGMENT`` of the record, or the file of an import."""
    advantages: tuple[float, ...] | None = None
    reference: tuple[float, ...] | None = None
    values: tuple[float, ...] | None = None
    """Value estimates of the states before the targets, from when the row was made, in order."""
    returns: tuple[float, ...] | None = None
    """Training targets of the value head for the states before the targets, in order."""
    old: tuple[float, ...] | None = None
    """Log-probs of the targets that the trainer computed under the sampling weights, in order."""
    path_tokens: int | None = None
    """Number of predicted targets in all rows of its path; ``None`` for a row without a path."""
    teacher: tuple[float, ...] | None = None
    """Log-probs of the targets under the teacher of a distillation, in order."""

    def __post_init__(self) -> None:
        # Losses and masks align values with targets by order alone.
        position = 0
        for target in self.targets:
            if not position <= target.start < target.stop <= len(self.ids):
                raise ValueError(
                    f"row {self.origin or '?'}: targets must be ordered, non-empty ranges within "
                    f"{len(self.ids)} tokens; got {[(t.start, t.stop) for t in self.targets]}"
                )
            position = target.stop

    @property
    def mask(self) -> list[bool]:
        """Mask over ``ids``, true at targets."""
        mask = [False] * len(self.ids)
        for target in self.targets:
            mask[target.start : target.stop] = [True] * (target.stop - target.start)
        return mask

    @property
    def predicted(self) -> list[range]:
        """Positions of each target with a token before them, which have log-probs; without empty ranges."""
        # A model predicts each token from those before it, so it can't predict the first.
        ranges = [range(max(target.start, 1), target.stop) for target in self.targets]
        return [positions for positions in ranges if positions]

    @property
    def unpredicted(self) -> int:
        """Number of targets without a token before them: 1 if the row's first token is a target, else 0."""
        return int(bool(self.targets) and self.targets[0].start == 0)

    @property
    def target_count(self) -> int:
        """Number of target tokens."""
        return sum(target.stop - target.start for target in self.targets)


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of a segment: a prompt (``turn`` is ``None``) or an own turn of the agent."""

    ids: tuple[int, ...]
    turn: Turn | None = None


@dataclass(slots=True)
class Segment:
    """Tokens of consecutive model calls that extend each other, oldest first."""

    pieces: list[Piece]

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens, exactly as the engine received and returned them."""
        return tuple(token for piece in self.pieces for token in piece.ids)


@dataclass(frozen=True, slots=True)
class View:
    """One agent's segments of a path; ``context`` names the recontext rule, if any."""

    agent: str
    leaf: str
    segments: tuple[Segment, ...]
    context: str | None = None


def rows(view: View, weight: float = 1.0) -> Iterator[Row]:
    """Yield a row for each segment of a view, with the agent's own turns as targets."""
    segments = [_row(view, index, weight) for index in range(len(view.segments))]
    # A path's mean needs its tokens of all rows, which may be in other micro-batches.
    total = sum(len(positions) for row in segments for positions in row.predicted)
    for row in segments:
        yield replace(row, path_tokens=total)


def _row(view: View, index: int, weight: float) -> Row:
    segment = view.segments[index]
    targets: list[Target] = []
    logprobs: list[float] = []
    # Log-probs are of the recorded context. They are dropped as a whole if the context was edited
    # or a target was not sampled, since they are aligned with the targets by order.
    sampled = view.context is None
    position = 0
    for piece in segment.pieces:
        stop = position + len(piece.ids)
        # A turn without ids was never tokenized, so there is nothing to train.
        if piece.turn is not None and piece.ids:
            targets.append(_target(position, stop, piece.turn))
            logprobs.extend(piece.turn.sample.logprobs if piece.turn.sample else ())
            sampled = sampled and piece.turn.sample is not None
        position = stop
    return Row(
        segment.ids,
        tuple(targets),
        tuple(logprobs) if sampled else None,
        weight,
        view.context,
        f"{view.leaf}/{view.agent}/{index}",
    )


def _target(start: int, stop: int, turn: Turn) -> Target:
    if turn.sample is None:
        return Target(start, stop, turn.writer, turn.id)
    sample = turn.sample
    spans = tuple((f"{sample.policy}@{version}", count) for version, count in sample.versions)
    return Target(
        start, stop, turn.writer, turn.id, sample.temperature, sample.top_p, spans or None
    )


def turn_row(rows: Iterable[Row], turn: str) -> Row | None:
    """Return the row of one sampled turn: its prompt as sampled, and the turn as the only target.

    ``None`` if the rows of its path don't train the turn.
    """
    for row in rows:
        start = 0
        for target in row.targets:
            stop = start + target.stop - target.start
            if target.turn == turn:
                logprobs = None if row.logprobs is None else row.logprobs[start:stop]
                tokens = target.stop - max(target.start, 1)
                ids = row.ids[: target.stop]
                return replace(
                    row, ids=ids, targets=(target,), logprobs=logprobs, path_tokens=tokens
                )
            start = stop
    return None


@dataclass(frozen=True, slots=True)
class Pair:
    """Rows of the chosen and the rejected side."""

    chosen: tuple[Row, ...]
    rejected: tuple[Row, ...]
    reference: tuple[float, float] | None = None
    """Log-prob (nats) of each side's targets under the reference model, reduced like the policy's (a sum, for DPO)."""
    weight: float = 1.0
    group: str = ""
    """Pairs of one group (a tree's) are trained in one step, so that shared prefixes are computed once."""

    @property
    def name(self) -> str:
        """Origins of the chosen and the rejected side, for reports and errors."""
        return " over ".join(
            side[0].origin or "?" if side else "nothing" for side in (self.chosen, self.rejected)
        )

    @property
    def equal_sides(self) -> bool:
        """True if both sides have equal tokens and targets, so the gradient is zero."""
        return _trained(self.chosen) == _trained(self.rejected)


def trajectory_pair(chosen: View, rejected: View, *, weight: float = 1.0, group: str = "") -> Pair:
    """Pair two trajectories of one agent; the targets are its tokens of all turns."""
    _check_agents(chosen, rejected)
    return Pair(_side(chosen), _side(rejected), None, weight, group)


def turn_pair(chosen: View, rejected: View, *, weight: float = 1.0, group: str = "") -> Pair:
    """Pair two alternatives of one turn; the targets are the last turn of each view."""
    _check_agents(chosen, rejected)
    # The last row has the last turn. Log-probs of the other targets would not align any more.
    sides = [(replace(_side(v)[-1], targets=_side(v)[-1].targets[-1:], logprobs=None),)
             for v in (chosen, rejected)]  # fmt: skip
    return Pair(sides[0], sides[1], None, weight, group)


def _side(view: View) -> tuple[Row, ...]:
    # A segment may consist of turns without ids, which are no targets.
    side = tuple(row for row in rows(view) if row.targets)
    if not side:
        raise ValueError(
            f"{view.agent} has no turn on the path to {view.leaf}, so it can't be a side of a pair"
        )
    return side


def _check_agents(chosen: View, rejected: View) -> None:
    if chosen.agent != rejected.agent:
        raise ValueError(f"a pair needs one agent, got {chosen.agent} and {rejected.agent}")


def _trained(side: Sequence[Row]) -> list[tuple[object, ...]]:
    # Metadata (weights, writers) does not change the log-probs of a side.
    return [(row.ids, [(t.start, t.stop) for t in row.targets]) for row in side]


@dataclass(frozen=True, slots=True)
class LabeledTrajectory:
    """One agent's rows of a trajectory, with its success."""

    rows: tuple[Row, ...]
    success: bool
    weight: float = 1.0
    group: str = ""
    """Trajectories of one group (a tree's) are trained in one step, so that shared prefixes are computed once."""
    mismatched: tuple[Row, ...] = ()
    """Row of the same prompt with the completion of another prompt, if there is one (KTO)."""
    reference: tuple[float, float] | None = None
    """Log-probs (nats) of the rows' targets, and of the mismatched ones, under the reference model (KTO)."""

    @property
    def name(self) -> str:
        return (self.rows[0].origin if self.rows else "") or "?"


def labeled_trajectory(
    view: View, success: bool, *, weight: float = 1.0, group: str = ""
) -> LabeledTrajectory:
    """Label the rows of a view that have targets."""
    return LabeledTrajectory(
        tuple(row for row in rows(view) if row.targets), success, weight, group
    )


MISMATCHES = 100
"""Maximum number of earlier pairs in which a mismatched completion is looked for."""


def unpair(pairs: Sequence[Pair], longest: int) -> list[LabeledTrajectory]:
    """Return the chosen (success) and the rejected side of each pair, each with a mismatched completion.

    That is the completion of the same side of the nearest earlier pair (the last pair precedes the first) with another
    prompt, if the row has at most ``longest`` tokens. A pair without a group is a group. Pairs of equal sides are left
    out.
    """
    pairs = [pair for pair in pairs if not pair.equal_sides]
    items = []
    for number, pair in enumerate(pairs):
        # A negative index counts from the end.
        earlier = [pairs[number - n] for n in range(1, min(len(pairs), MISMATCHES + 1))]
        for side, is_chosen in ((pair.chosen, True), (pair.rejected, False)):
            others = (other.chosen if is_chosen else other.rejected for other in earlier)
            mismatched = (mismatched_row(side, other) for other in others)
            fitting = islice((row for row in mismatched if row and len(row.ids) <= longest), 1)
            group = pair.group or f"pair {number}"
            items.append(LabeledTrajectory(side, is_chosen, pair.weight, group, tuple(fitting)))
    return items


def mismatched_row(side: Sequence[Row], other: Sequence[Row]) -> Row | None:
    """Return the prompt of a side with the completion of another one.

    ``None`` if their prompts are equal or empty, or if a side has several rows, each with a prompt of its own.
    """
    if len(side) != 1 or len(other) != 1:
        return None
    (row,), (source,) = side, other
    start, source_start = row.targets[0].start, source.targets[0].start
    if not start or row.ids[:start] == source.ids[:source_start]:
        return None
    shift = start - source_start
    targets = (replace(t, start=t.start + shift, stop=t.stop + shift) for t in source.targets)
    return Row(row.ids[:start] + source.ids[source_start:], tuple(targets), origin=row.origin)


class Render(Protocol):
    """Renders messages to prompt ids, with the agent's sampled turns as their exact ids."""

    def __call__(
        self, messages: Sequence[Message], tree: Tree, reader: str, *, tools: Sequence[Tool] = ()
    ) -> tuple[int, ...]: ...


Edit = Callable[[tuple[Message, ...]], tuple[Message, ...]]


def view(tree: Tree, leaf: str, agent: str) -> View:
    return View(agent, leaf, assemble(prompts(tree, leaf, agent), _previous(tree, leaf, agent)))


def prompts(tree: Tree, leaf: str, agent: str) -> list[tuple[tuple[int, ...], Turn]]:
    """Return (prompt ids, turn) of the agent's turns with a prompt on the path to ``leaf``, oldest first."""
    running: dict[str | None, tuple[int, ...]] = {None: ()}
    pairs = []
    for turn in _own(tree, leaf, agent):
        request = tree.requests[turn.prompt]  # type: ignore[index]
        # Requests are deltas on the running tokens: the prompt and the turn of a previous request,
        # which is the last one in the same conversation.
        prompt = running[request.previous][: request.keep] + request.ids
        pairs.append((prompt, turn))
        running[turn.id] = prompt + turn.ids
    return pairs


def recontext(tree: Tree, leaf: str, agent: str, *, name: str, edit: Edit, render: Render) -> View:
    """Return the view under edited prompts (without a format prompt, or with a privileged field).

    Sampled tokens stay; their behavior log-probs no longer apply. ``name`` marks every row of the view.
    """
    edited = []
    for turn in _own(tree, leaf, agent):
        request = tree.requests[turn.prompt]  # type: ignore[index]
        # Rendered again, with the agent's own turns as their sampled tokens (`Render`).
        messages = edit(tree.messages(request))
        edited.append((render(messages, tree, agent, tools=request.tools), turn))
    return View(agent, leaf, assemble(edited, _previous(tree, leaf, agent)), context=name)


def assemble(
    prompts: Sequence[tuple[tuple[int, ...], Turn]], previous: Mapping[str, str] | None = None
) -> tuple[Segment, ...]:
    """Join prompts and turns to segments.

    Args:
        prompts: Prompt and turn of each model call, oldest first.
        previous: Id of the turn before a turn in its conversation; by default the turn of the call before.
    """
    segments: list[Segment] = []
    # By last turn: a segment that a turn may still extend, and its ids.
    open_segments: dict[str, tuple[Segment, tuple[int, ...]]] = {}
    last = ""
    for prompt, turn in prompts:
        before = (previous or {}).get(turn.id, last)
        segment, running = open_segments.get(before, (None, ()))
        # As tokens, not as text: only then the model had exactly these tokens as its context. A
        # prompt that rewrites history begins a new row, so that no target has a wrong context.
        if segment is not None and prompt[: len(running)] == running:
            # A second reply to the same history begins another segment.
            del open_segments[before]
            segment.pieces.append(Piece(prompt[len(running) :]))
        else:
            segment = Segment([Piece(prompt)])
            segments.append(segment)
        segment.pieces.append(Piece(turn.ids, turn))
        last, open_segments[turn.id] = turn.id, (segment, prompt + turn.ids)
    return tuple(segments)


def _previous(tree: Tree, leaf: str, agent: str) -> dict[str, str]:
    requests = {turn.id: tree.requests[turn.prompt or ""] for turn in _own(tree, leaf, agent)}
    return {id_: request.previous for id_, request in requests.items() if request.previous}


def _own(tree: Tree, leaf: str, agent: str) -> list[Turn]:
    return [
        turn
        # A turn without a prompt was written for the agent (a demonstration), and is only context.
        for turn in tree.path(leaf)
        if turn.speaker.kind == "agent" and turn.speaker.name == agent and turn.prompt
    ]


# -- rows of optimizer steps, as the store keeps them ---------------------------------------------

Facts = Mapping[str, Any]
"""Numbers of one item of an optimizer step by name: floats, or arrays with a value for each trained token."""
DTYPES = {
    "advantage": "<f4", "logprob": "<f2", "reference": "<f2", "teacher": "<f2", "entropy": "<f2", "clipped": "?"
}  # fmt: skip
"""Types of the arrays of a row, in the order of the table's columns. ``clipped`` is stored as bits."""
ROW_ARRAYS = {"advantage": "advantages", "reference": "reference", "teacher": "teacher"}
"""Arrays that a row brings with it, by the names of its fields."""


@dataclass(frozen=True, slots=True)
class TrainedRow:
    """Row that an optimizer step trained on."""

    origin: str
    """``LEAF/AGENT/SEGMENT`` of the record, or the file of an import."""
    turn: str | None
    """Id of the only trained turn; ``None`` if the row trains several."""
    context: str | None
    weight: float
    tokens: int
    """Number of trained tokens that have a token before them."""
    metrics: Mapping[str, Any]
    side: str = ""
    pair: int | None = None
    """Index of the pair in the step; ``None`` for a row without a pair."""
    arrays: Mapping[str, Any] = field(default_factory=dict)
    """Arrays of :data:`DTYPES` with a value for each trained token, in order."""


@dataclass(frozen=True, slots=True)
class Update:
    """Optimizer step of a role, with the rows that it trained on."""

    iteration: int
    stage: str
    role: str
    number: int
    """Number of optimizer steps of the training so far, with this one."""
    rows: Sequence[TrainedRow]
    step: int | None = None
    """Step of reinforcement learning, from 0."""


def trained_rows(
    items: Sequence[Any], facts: Sequence[tuple[int, Facts]], *, arrays: bool
) -> list[TrainedRow]:
    """Return the rows of the trained items of an optimizer step, with the values of their tokens if ``arrays``.

    ``facts`` has the index and the numbers of each trained item (``Trainer.facts``).
    """
    trained = list[TrainedRow]()
    for index, values in facts:
        item = items[index]
        numbers = {name: float(value) for name, value in values.items() if np.ndim(value) == 0}
        of_tokens = {name: np.asarray(value) for name, value in values.items() if np.ndim(value)}
        sides = {"": (item,) if isinstance(item, Row) else getattr(item, "rows", ())}
        if isinstance(item, LabeledTrajectory):
            numbers["success"] = float(item.success)
        references: Mapping[str, float] = {}
        if isinstance(item, Pair):
            sides = {"chosen": item.chosen, "rejected": item.rejected}
            references = dict(zip(sides, item.reference or (0.0, 0.0), strict=True))
        pair = index if references else None
        for side, row in [(name, row) for name, rows in sides.items() for row in rows]:
            # Log-probs belong to whole sides, like the loss; both sides have the numbers of the pair.
            metrics = {name: value for name, value in numbers.items() if name not in sides}
            if side in numbers:
                metrics |= {"logprob": numbers[side], "reference": references[side]}
            of_row = dict(of_tokens) if arrays else {}
            for name in ROW_ARRAYS if of_row else ():
                if (targets := getattr(row, ROW_ARRAYS[name])) is not None:
                    # A first token has only a placeholder.
                    of_row[name] = np.asarray(targets[row.unpredicted :])
            turn = row.targets[0].turn or None if len(row.targets) == 1 else None
            tokens, weight = sum(map(len, row.predicted)), float(item.weight)
            of_side = (metrics, side, pair, of_row)
            trained.append(TrainedRow(row.origin, turn, row.context, weight, tokens, *of_side))
    return trained


def packed(row: TrainedRow) -> list[bytes | None]:
    """Return the arrays of a row as bytes, in the order of :data:`DTYPES`."""
    blobs = list[bytes | None]()
    for name, dtype in DTYPES.items():
        array = row.arrays.get(name)
        if array is not None and dtype == "?":
            array = np.packbits(array) if array.any() else None
        elif array is not None:
            # Most methods give all tokens of a row the same advantage, which then takes four bytes.
            is_constant = name == "advantage" and (array == array[:1]).all()
            array = array[: 1 if is_constant else None].astype(dtype)
        blobs.append(None if array is None else array.tobytes())
    return blobs


def unpacked(blobs: Sequence[bytes | None], tokens: int) -> dict[str, Any]:
    """Return the arrays of :func:`packed` for a row with this number of trained tokens."""
    arrays = dict[str, Any]()
    for (name, dtype), blob in zip(DTYPES.items(), blobs, strict=True):
        if blob is not None and dtype == "?":
            bits = np.frombuffer(blob, np.uint8)
            arrays[name] = np.unpackbits(bits, count=tokens).astype(bool)
        elif blob is not None:
            arrays[name] = np.broadcast_to(np.frombuffer(blob, dtype), tokens)
    return arrays
