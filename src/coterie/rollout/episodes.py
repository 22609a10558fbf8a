"""What is played, and what came of it: one sample of one task."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from coterie.trajectories.credit import Credit
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn

MESSAGES = "messages"
"""The metric of an episode that counts its agents' messages."""
CUT_OFF = "cut_off"
"""The one that counts those that ran to the limit of tokens; of many episodes, the share of all messages."""
THOUGHT_TOKENS = "thought_tokens"
"""The one that counts the tokens of their thoughts, which ``tokens`` counts too; absent where there are none."""

REWARD = "reward"
"""The name of credit (``reward:ACTOR``) that an environment gave for an act, at the last turn of those taken then."""
FINAL_REWARD = "final_reward"
"""Of credit (``final_reward:ACTOR``) that it gave in grading, at the leaf."""
ENVIRONMENT = "environment"
"""What such credit is keyed by: no settings of a later stage change it."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One sample of one task."""

    task: Task
    sample: int
    iteration: int
    stage: str
    variant: str | None = None
    """What its prompts ask for besides, such as a format."""

    @property
    def key(self) -> ItemKey:
        return ItemKey(self.iteration, self.stage, self.task.id, f"{self.sample:04d}")


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished episode: its tree of one path, or why it failed."""

    episode: Episode
    tree: Tree | None
    failure: str | None = None
    tokens: int = 0
    """Of all its agents' turns, as their maker counts."""
    metrics: Metrics = field(default_factory=dict)
    """What the environment found in grading it, and how many messages there are and were cut off."""
    credit: tuple[Credit, ...] = ()
    """What the environment gave: :data:`REWARD`, :data:`FINAL_REWARD`."""


def dialogue_tokens(path: Sequence[Turn]) -> int:
    """Tokens of a dialogue: those of its turns, end-of-turn tokens included.

    Turns that came as text have none; what their endpoint counted is among the item's metrics.
    """
    return sum(len(turn.ids) for turn in path)
