"""Training rows: tokens, their targets, and the writer of each target."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from coterie.trajectories.turn import Turn
from coterie.trajectories.view import View

UNPREDICTED = 0.0
"""Placeholder value for an untrained target without a token before it (a row's first token)."""


@dataclass(frozen=True, slots=True)
class Target:
    """A half-open range of trained tokens of a row."""

    start: int
    stop: int
    writer: str
    """``POLICY@VERSION`` of the model that sampled it, or the author of an unsampled turn."""
    turn: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    """Top-p of its sampling."""


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
    """Advantages of the targets, in order."""
    reference: tuple[float, ...] | None = None
    """Log-probs of the targets under a reference model, in order."""
    values: tuple[float, ...] | None = None
    """Value estimates of the states before the targets, from when the row was made, in order."""
    returns: tuple[float, ...] | None = None
    """Training targets of the value head for the states before the targets, in order."""
    old: tuple[float, ...] | None = None
    """Log-probs of the targets that the trainer computed under the sampling weights, in order."""
    path_tokens: int | None = None
    """Number of predicted targets in all rows of its path; ``None`` for a row without a path."""

    def __post_init__(self) -> None:
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
        mask = [False] * len(self.ids)
        for target in self.targets:
            mask[target.start : target.stop] = [True] * (target.stop - target.start)
        return mask

    @property
    def predicted(self) -> list[range]:
        """Positions of each target with a token before them, which have log-probs; without empty ranges."""
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


def rows(view: View, weight: float = 1.0) -> Iterator[Row]:
    """Yield a row for each segment of a view, with the agent's own turns as targets."""
    segments = [_row(view, index, weight) for index in range(len(view.segments))]
    total = sum(len(positions) for row in segments for positions in row.predicted)
    for row in segments:
        yield replace(row, path_tokens=total)


def _row(view: View, index: int, weight: float) -> Row:
    segment = view.segments[index]
    targets: list[Target] = []
    logprobs: list[float] = []
    sampled = view.context is None
    position = 0
    for piece in segment.pieces:
        stop = position + len(piece.ids)
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
    return Target(start, stop, turn.writer, turn.id, turn.sample.temperature, turn.sample.top_p)
