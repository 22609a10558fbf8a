"""Optima's reward of a trajectory: task score, minus tokens, plus likelihood.

R = R_task - lambda_token * tokens / max tokens + lambda_loss * 1 / R_loss
(arXiv 2410.08115, equation 1); the maximum is over the samples of the same task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.config.settings import Settings, key
from coterie.trajectories.tree import Outcome

SMALLEST_LOSS = 1e-6
"""Loss below which 1/loss is cut off, so that a turn of certain tokens has a finite reward."""


class RewardSettings(Settings):
    """Weights of the parts of the reward."""

    lambda_token: float = key(
        0.6,
        "Weight of the token term: tokens of the dialogue over the most of its task's samples.",
        source="Optima table 8 (information exchange: 0.6)",
        ge=0,
    )
    lambda_loss: float = key(
        1.0,
        "Weight of 1/loss, the loss being the largest over turns under the frozen base.",
        source="Optima table 8 (information exchange: 1.0)",
        ge=0,
    )


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of one trajectory and its parts, each as it is added."""

    leaf: str
    sample: int
    task: float
    tokens: float
    """-lambda_token * tokens / max tokens, at most 0."""
    loss: float
    """lambda_loss / loss, at least 0."""

    @property
    def total(self) -> float:
        """R."""
        return self.task + self.tokens + self.loss


def rewards(
    samples: Sequence[tuple[Outcome, int, float]], settings: RewardSettings
) -> list[Reward]:
    """Rewards of all samples of one task, each given as (outcome, tokens, largest loss)."""
    most = max((tokens for _, tokens, _ in samples), default=1)
    return [
        Reward(
            outcome.leaf,
            outcome.sample,
            outcome.score,
            -settings.lambda_token * tokens / max(most, 1),
            settings.lambda_loss / max(loss, SMALLEST_LOSS) if settings.lambda_loss else 0.0,
        )
        for outcome, tokens, loss in samples
    ]


def largest_loss(losses: Mapping[str, float], path: Sequence[str]) -> float:
    """R_loss: the largest loss of the turns of a path."""
    return max(losses[turn] for turn in path)
