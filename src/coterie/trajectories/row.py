"""A training row: tokens, exactly which of them are targets, and who wrote each target."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from coterie.trajectories.turn import Turn
from coterie.trajectories.view import View

UNPREDICTED = 0.0
"""What stands for a target that nothing predicts (a row's first token) among numbers of targets. It is not trained."""


@dataclass(frozen=True, slots=True)
class Target:
    """A half-open range of a row's tokens that is trained."""

    start: int
    stop: int
    writer: str
    """``POLICY@VERSION`` of the model that sampled it, or the author of unsampled text."""
    turn: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    """Share of the probability that it was sampled from."""


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence of tokens with its targets. Its text is never stored: rows are made on demand."""

    ids: tuple[int, ...]
    targets: tuple[Target, ...]
    logprobs: tuple[float, ...] | None = None
    """Behaviour log-probs at the targets, in order; ``None`` where the context was changed, or where
    not all targets were sampled."""
    weight: float = 1.0
    context: str | None = None
    """Name of the recontext rule, ``None`` for the context as recorded."""
    origin: str = ""
    """``LEAF/AGENT/SEGMENT`` of the record, or the file of an import."""
    advantages: tuple[float, ...] | None = None
    """How much better each target was than expected, in order."""
    reference: tuple[float, ...] | None = None
    """Log-probs of the targets under a reference model, in order."""
    values: tuple[float, ...] | None = None
    """What a value head said of the state before each target when the row was made, in order."""
    returns: tuple[float, ...] | None = None
    """What a value head should say of the state before each target, in order."""
    old: tuple[float, ...] | None = None
    """Log-probs of the targets as the trainer computed them under the weights that sampled, in order."""
    path_tokens: int | None = None
    """How many predicted targets all rows of its agent's path have; ``None`` where it is of no path."""

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
        """Places of each target that have something before them, so that they have log-probs.

        A target that is the row's first token alone has none, and is left out.
        """
        places = [range(max(target.start, 1), target.stop) for target in self.targets]
        return [turn for turn in places if turn]

    @property
    def unpredicted(self) -> int:
        """How many targets have nothing before them: 1 where the row's first token is one."""
        return int(bool(self.targets) and self.targets[0].start == 0)

    @property
    def target_count(self) -> int:
        """Number of trained tokens."""
        return sum(target.stop - target.start for target in self.targets)


def rows(view: View, weight: float = 1.0) -> Iterator[Row]:
    """The rows of a view: one per segment, the agent's own turns as targets."""
    made = [_row(view, index, weight) for index in range(len(view.segments))]
    total = sum(len(turn) for row in made for turn in row.predicted)
    for row in made:
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
