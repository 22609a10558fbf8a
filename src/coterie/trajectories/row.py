"""A training row: tokens, exactly which of them are targets, and who wrote each target."""

from collections.abc import Iterator
from dataclasses import dataclass

from coterie.trajectories.view import View


@dataclass(frozen=True, slots=True)
class Target:
    """A half-open range of a row's tokens that is trained."""

    start: int
    stop: int
    writer: str
    """``POLICY@VERSION`` of the model that sampled it, or the author of unsampled text."""
    turn: str = ""
    """Id of the turn it is, where it is one."""


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
    """What a value head said at the targets when the row was made, in order."""

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
        """For each token, whether it is a target."""
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
    def target_count(self) -> int:
        """Number of trained tokens."""
        return sum(target.stop - target.start for target in self.targets)


def rows(view: View, weight: float = 1.0) -> Iterator[Row]:
    """The rows of a view: one per segment, the agent's own turns as targets."""
    for index, segment in enumerate(view.segments):
        targets: list[Target] = []
        logprobs: list[float] = []
        sampled = view.context is None
        position = 0
        for piece in segment.pieces:
            stop = position + len(piece.ids)
            if piece.turn is not None and piece.ids:
                targets.append(Target(position, stop, piece.turn.writer, piece.turn.id))
                logprobs.extend(piece.turn.sample.logprobs if piece.turn.sample else ())
                sampled = sampled and piece.turn.sample is not None
            position = stop
        yield Row(
            segment.ids,
            tuple(targets),
            tuple(logprobs) if sampled else None,
            weight,
            view.context,
            f"{view.leaf}/{view.agent}/{index}",
        )
