"""One completion on its way: what it has sampled so far, and when it is over."""

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
    """A prompt and seed with what was sampled so far."""

    prompt: tuple[int, ...]
    seed: int
    sampling: Sampling
    future: asyncio.Future[Completion]
    on_token: Callable[[int], None] | None = None
    """Called with each id as it is sampled."""
    cached: int = 0
    """Tokens of the prompt that were kept from earlier requests."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    """The uniform number of each step."""
    began: float = 0.0
    """When it left the queue (``time.monotonic``): the time limit counts from there."""

    def __post_init__(self) -> None:
        self.noise = uniforms(self.seed, self.sampling.max_tokens)

    @property
    def place(self) -> int:
        """Index of the last sampled token in its sequence."""
        return len(self.prompt) + len(self.ids) - 1

    @property
    def held(self) -> tuple[int, ...]:
        """The tokens whose keys and values were computed: all but the last."""
        return (*self.prompt, *self.ids[:-1])

    def accept(self, token: int, logprob: float, ends: frozenset[int], decode: Decode) -> bool:
        """Add a sampled token; whether that ended the completion (its future then has it)."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if self.on_token is not None:
            self.on_token(token)
        if (ended := ending(self.ids, self.sampling, ends, decode)) is None:
            return False
        self._end(*ended)
        return True

    @property
    def late(self) -> bool:
        """Whether it has run for longer than its time limit."""
        return time.monotonic() - self.began > self.sampling.timeout

    def _end(self, finish: Finish, text: str, stop: str) -> None:
        ids, logprobs = tuple(self.ids), tuple(self.logprobs)
        completion = Completion(ids, logprobs, text, finish, self.seed, self.cached, stop)
        if not self.future.done():
            self.future.set_result(completion)


def ending(
    ids: Sequence[int], sampling: Sampling, ends: frozenset[int], decode: Decode
) -> tuple[Finish, str, str] | None:
    """How a completion ends with its last id, its text, and the stop string; ``None`` if it goes on."""
    if ids[-1] in ends:
        return "end", decode(ids[:-1]), ""
    if sampling.stop and (stopped := _stopped(ids, sampling.stop, decode)) is not None:
        return "stop_string", *stopped
    if len(ids) == sampling.max_tokens:
        return "length", decode(ids), ""
    return None


def _stopped(ids: Sequence[int], stops: Sequence[str], decode: Decode) -> tuple[str, str] | None:
    """The text before the first stop string, and that one, if there is one.

    The last tokens are looked at first: a token that is text at all has at least one byte.
    """
    window = max(len(stop.encode()) for stop in stops) + 4
    tail = decode(ids[-window:])
    if not any(stop in tail for stop in stops):
        return None
    text = decode(ids)
    found = [(index, stop) for stop in stops if (index := text.find(stop)) >= 0]
    if not found:
        return None
    index, stop = min(found)
    return text[:index], stop


@dataclass(eq=False, slots=True)
class Scoring:
    """Tokens whose log-probs are wanted."""

    sequences: list[tuple[int, ...]]
    start: int
    future: asyncio.Future[list[list[float]]]
