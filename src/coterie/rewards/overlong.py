"""DAPO's soft punishment of answers that are too long, by what was sampled and how it is recorded to have ended."""

from coterie.trajectories.tree import CONTEXT, LENGTH, Ending
from coterie.trajectories.turn import Finish


def overlong_penalty(
    sampled: int,
    finish: Finish,
    ending: Ending,
    *,
    limit: int,
    buffer: int,
    weight: float = 1.0,
) -> float:
    """From 0 down to ``-weight`` (DAPO, arXiv 2503.14476, equation 13).

    ``sampled`` is the number of tokens that the agent sampled on the path; what it was shown does not count. 0 up to
    ``limit - buffer`` of them, then falling in a straight line to ``-weight`` at ``limit``, and so beyond it. A path
    that was cut off for its length or its context, or whose last turn was (``finish``), costs the whole ``weight``,
    however short: which token it ended with says nothing about that. Raises ``ValueError`` unless 0 < buffer <= limit.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"the buffer has to be within 1 and the limit of {limit}, got {buffer}")
    if finish == "length" or ending in (LENGTH, CONTEXT):
        return -weight
    return -weight * min(max(sampled - (limit - buffer), 0) / buffer, 1.0)
