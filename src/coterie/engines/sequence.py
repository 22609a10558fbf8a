"""Running completions and scoring requests of an engine."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coterie.engines.drawing import uniforms
from coterie.engines.protocol import Completion, Sampling
from coterie.trajectories.turn import Finish

Decode = Callable[[Sequence[int]], str]


@dataclass(eq=False, slots=True)
class Running:
    """Completion of a prompt while it is sampled."""

    prompt: tuple[int, ...]
    seed: int
    sampling: Sampling
    future: asyncio.Future[Completion]
    on_token: Callable[[int], None] | None = None
    """Called with each id as it is sampled."""
    cached: int = 0
    """Cached tokens of the prompt."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    """Uniform random number of each step."""
    start: float = 0.0
    """Time of leaving the queue (``time.monotonic``), from which the timeout counts."""

    def __post_init__(self) -> None:
        self.noise = uniforms(self.seed, self.sampling.max_tokens)

    @property
    def place(self) -> int:
        """Position of the last sampled token in the sequence."""
        return len(self.prompt) + len(self.ids) - 1

    @property
    def computed_ids(self) -> tuple[int, ...]:
        """Tokens with computed keys and values: all but the last."""
        return (*self.prompt, *self.ids[:-1])

    def accept(self, token: int, logprob: float, ends: frozenset[int], decode: Decode) -> bool:
        """Append a sampled token. Return True if it ends the completion, which is then in the future."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if self.on_token is not None:
            self.on_token(token)
        if (end := ending(self.ids, self.sampling, ends, decode)) is None:
            return False
        self._end(*end)
        return True

    @property
    def is_late(self) -> bool:
        """True if it runs longer than its timeout."""
        return time.monotonic() - self.start > self.sampling.timeout

    def _end(self, finish: Finish, text: str, stop: str) -> None:
        ids, logprobs = tuple(self.ids), tuple(self.logprobs)
        completion = Completion(ids, logprobs, text, finish, self.seed, self.cached, stop)
        if not self.future.done():
            self.future.set_result(completion)


def ending(
    ids: Sequence[int], sampling: Sampling, ends: frozenset[int], decode: Decode
) -> tuple[Finish, str, str] | None:
    """Return the finish reason, text and stop string if the completion ends with its last id, else ``None``."""
    if ids[-1] in ends:
        return "end", decode(ids[:-1]), ""
    if sampling.stop and (stopped := _stopped(ids, sampling.stop, decode)) is not None:
        return "stop_string", *stopped
    if len(ids) == sampling.max_tokens:
        return "length", decode(ids), ""
    return None


def _stopped(ids: Sequence[int], stops: Sequence[str], decode: Decode) -> tuple[str, str] | None:
    """Return the text before the first stop string, and the stop string, if there is one.

    The last tokens are checked first, for speed: a token with text has at least one byte.
    """
    window = max(len(stop.encode()) for stop in stops) + 4
    tail = decode(ids[-window:])
    if not any(stop in tail for stop in stops):
        return None
    text = decode(ids)
    matches = [(index, stop) for stop in stops if (index := text.find(stop)) >= 0]
    if not matches:
        return None
    index, stop = min(matches)
    return text[:index], stop


@dataclass(eq=False, slots=True)
class Scoring:
    """Request for log-probs of tokens."""

    sequences: list[tuple[int, ...]]
    start: int
    future: asyncio.Future[list[list[float]]]
