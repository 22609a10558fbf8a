"""Episodes and their results: one sample of one task each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from coterie.record.tree import Credit, ItemKey, Metrics, Task, Tree
from coterie.record.turn import Turn

MESSAGES = "messages"
"""Metric: number of messages of the agents."""
CUT_OFF = "cut_off"
"""Metric: number of messages cut off at a token limit; over many episodes, their share of all messages."""
THOUGHT_TOKENS = "thought_tokens"
"""Metric: number of thought tokens, which ``tokens`` includes; absent without thoughts."""

REWARD = "reward"
"""Credit name (``reward:ACTOR``) of a reward for an action, on the last of the simultaneous turns."""
FINAL_REWARD = "final_reward"
"""Credit name (``final_reward:ACTOR``) of a reward of the final grade, on the leaf."""
ENVIRONMENT = "environment"
"""Settings key of rewards from the environment, which do not depend on settings of later stages."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One sample of one task."""

    task: Task
    sample: int
    iteration: int
    stage: str
    variant: str | None = None
    """Extra instruction in its prompts, such as a format."""

    @property
    def key(self) -> ItemKey:
        return ItemKey(self.iteration, self.stage, self.task.id, f"{self.sample:04d}")


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """A finished episode: its tree of one path, or the reason of its failure."""

    episode: Episode
    tree: Tree | None
    failure: str | None = None
    tokens: int = 0
    """Tokens of all turns of its agents, as their sampler counts."""
    metrics: Metrics = field(default_factory=dict)
    """Metrics of the grade, and the counts above."""
    credit: tuple[Credit, ...] = ()
    """Rewards from the environment: :data:`REWARD`, :data:`FINAL_REWARD`."""


def dialogue_tokens(path: Sequence[Turn]) -> int:
    """Return the number of tokens of all turns, including end-of-turn tokens.

    Turns from text endpoints have no tokens; the item's metrics have the endpoint's counts.
    """
    return sum(len(turn.ids) for turn in path)
