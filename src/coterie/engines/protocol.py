"""What every engine does: sample completions, score given tokens, load weights.

All three are asynchronous and take tokens, never text, so that what is recorded is what ran.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coterie.trajectories.turn import Finish

POLICY = "policy"
"""The role of a run that has one, in its record and in its folder."""


class EngineError(Exception):
    """A call that failed for good (after bounded retries); recorded on the item by the driver."""


class EngineGone(EngineError):
    """No fault of the item that met it: the engine will answer nobody until a person fixes it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample: temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    """Strings that end a completion; their ids stay in it, their text is cut."""
    timeout: float = 600.0
    """Seconds, from when it leaves the queue, after which it fails with :class:`EngineError`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of a prompt."""

    ids: tuple[int, ...]
    """All ids returned, stop string or end-of-turn token included."""
    logprobs: tuple[float, ...]
    """Per id, in nats, of the behaviour distribution (temperature and top-p applied)."""
    text: str
    """Decoded text, cut before the end-of-turn token or stop string."""
    finish: Finish
    seed: int
    cached: int = field(default=0, compare=False)
    """Prompt tokens that did not have to be read again; it changes speed and nothing else."""
    stop: str = ""
    """The stop string that ended it, which its text has no more."""


@dataclass(slots=True)
class Stats:
    """What an engine has done so far."""

    requests: int = 0
    failures: int = 0
    """Requests that raised, timeouts and cancellations included."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were kept from earlier requests."""
    sampled_tokens: int = 0
    scored_tokens: int = 0


class Engine(Protocol):
    """A model that can be sampled and scored."""

    policy: str
    version: str
    """Version of its weights; changes with every :meth:`load`."""

    @property
    def stats(self) -> Stats: ...

    async def sample(
        self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per seed, in order. Raises :class:`EngineError`."""
        ...

    async def logprobs(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Log-probability (nats, temperature 1) of each id of continuations of one prefix.

        What they share is computed once. Raises ``EngineError``.
        """
        ...

    async def load(self, path: Path, version: str) -> None:
        """Load weights; every cached prefix of the old version is dropped."""
        ...
