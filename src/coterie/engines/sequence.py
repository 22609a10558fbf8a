"""Sequences of the embedded engine: running completions, uniform numbers, and shared prefixes by blocks of tokens."""

import asyncio
import hashlib
import time
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, TypeVar

import numpy as np

from coterie.engines.protocol import WORK_NUMBER, Completion, Sampling
from coterie.record.turn import Finish

Block = TypeVar("Block")
BLOCK = 32
"""Tokens of a block."""


class PrefixCache(Generic[Block]):
    """Cache of at most ``max_blocks`` blocks by their :func:`block_keys`, least recently used first out.

    ``dropped`` is called with each block that is removed.
    """

    def __init__(self, max_blocks: int, dropped: Callable[[Block], None] = lambda _: None) -> None:
        self._max_blocks = max_blocks
        self._dropped = dropped
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()

    def known(self, keys: Sequence[bytes]) -> list[Block]:
        """Return the cached blocks of a prompt's keys, up to the first that is missing."""
        blocks = []
        for key in keys:
            if (block := self._blocks.get(key)) is None:
                break
            self._blocks.move_to_end(key)
            blocks.append(block)
        return blocks

    def put(self, key: bytes, block: Block) -> bool:
        """Store a block. Return False if its key is already stored or the capacity is 0."""
        if key in self._blocks or self._max_blocks < 1:
            return False
        self._blocks[key] = block
        if len(self._blocks) > self._max_blocks:
            self._drop()
        return True

    def clear(self) -> None:
        while self._blocks:
            self._drop()

    def _drop(self) -> None:
        _, block = self._blocks.popitem(last=False)
        self._dropped(block)


class BlockIndex:
    """Index of cached pages by their tokens, to find the longest match for the last, partial block of a prompt."""

    def __init__(self) -> None:
        # Pages after the same whole blocks (the key of the last one), sorted by their tokens: the longest match is next
        # to the insertion point.
        self._after: dict[bytes, list[tuple[tuple[int, ...], int]]] = {}
        self._place: dict[int, tuple[bytes, tuple[int, ...]]] = {}

    def add(self, page: int, previous_key: bytes, ids: tuple[int, ...]) -> None:
        """Add a page with the keys and values of ``ids``, which follow the block with the key ``previous_key``."""
        if page not in self._place:
            self._place[page] = previous_key, ids
            insort(self._after.setdefault(previous_key, []), (ids, page))

    def drop(self, page: int) -> None:
        if page in self._place:
            previous_key, ids = self._place.pop(page)
            pages = self._after[previous_key]
            del pages[bisect_left(pages, (ids, page))]
            if not pages:
                del self._after[previous_key]

    def closest(self, previous_key: bytes, ids: tuple[int, ...]) -> tuple[int, int]:
        """Return the page with the longest common prefix with ``ids``, and its length (0 if there is no match)."""
        pages = self._after.get(previous_key, [])
        index = bisect_left(pages, (ids, -1))
        candidates = [
            (same(ids, page_ids), page) for page_ids, page in pages[max(index - 1, 0) : index + 1]
        ]
        count, page = max(candidates, default=(0, 0))
        return page, count


def same(first_ids: Sequence[int], second_ids: Sequence[int]) -> int:
    return sum(
        1
        for _ in takewhile(
            lambda pair: pair[0] == pair[1], zip(first_ids, second_ids, strict=False)
        )
    )


def block_keys(ids: Sequence[int], part: bool = False) -> list[bytes]:
    """Return the key of each whole block of ``ids``: a hash of all ids up to its end.

    Equal keys mean equal prefixes. With ``part`` there is another key for the rest.
    """
    tokens = array("q", ids)
    keys: list[bytes] = []
    previous_key = b""
    for start in range(0, len(tokens) - (0 if part else BLOCK - 1), BLOCK):
        piece = tokens[start : start + BLOCK].tobytes()
        previous_key = hashlib.blake2b(previous_key + piece, digest_size=16).digest()
        keys.append(previous_key)
    return keys


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def uniforms(seed: int, count: int) -> list[float]:
    """Return ``count`` numbers in [0, 1) for the steps of a seed (splitmix64 of a mixed seed)."""
    start = int(_mix(np.array([seed & _MASK], np.uint64))[0])
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN + np.uint64(start)
    result: list[float] = ((_mix(steps) >> np.uint64(16)).astype(np.float64) / 2.0**48).tolist()
    return result


def _mix(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


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
    versions: list[tuple[str, int]] = field(default_factory=list)
    """Weight version and number of sampled tokens of each span."""
    start: float = 0.0
    """Time of leaving the queue (``time.monotonic``), from which the timeout counts."""
    loads: int = 0
    """Number of the engine's loads of weights when its prompt was read."""
    work_number: int = field(default_factory=WORK_NUMBER.get)

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

    def accept(
        self, token: int, logprob: float, version: str, ends: frozenset[int], decode: Decode
    ) -> None:
        """Append a sampled token. If it ends the completion, set the future's result."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        same = self.versions and self.versions[-1][0] == version
        count = self.versions.pop()[1] if same else 0
        self.versions.append((version, count + 1))
        if self.on_token is not None:
            self.on_token(token)
        end = ending(self.ids, self.sampling, ends, decode)
        if end is not None and not self.future.done():
            finish, text, stop = end
            ids, logprobs, versions = tuple(self.ids), tuple(self.logprobs), tuple(self.versions)
            self.future.set_result(
                Completion(ids, logprobs, text, finish, self.seed, self.cached, stop, versions)
            )

    @property
    def is_late(self) -> bool:
        """True if it runs longer than its timeout."""
        return time.monotonic() - self.start > self.sampling.timeout


def ending(
    ids: Sequence[int], sampling: Sampling, ends: frozenset[int], decode: Decode
) -> tuple[Finish, str, str] | None:
    """Return the finish reason, text and stop string if the completion ends with its last id, else ``None``."""
    if ids[-1] in ends:
        return "end", decode(ids[:-1]), ""
    if stops := sampling.stop:
        # The last tokens are checked first, for speed: a token with text has at least one byte.
        tail = decode(ids[-max(len(stop.encode()) for stop in stops) - 4 :])
        text = decode(ids) if any(stop in tail for stop in stops) else ""
        if matches := [(start, stop) for stop in stops if (start := text.find(stop)) >= 0]:
            start, stop = min(matches)
            return "stop_string", text[:start], stop
    if len(ids) == sampling.max_tokens:
        return "length", decode(ids), ""
    return None


@dataclass(eq=False, slots=True)
class Scoring:
    """Request for log-probs of tokens."""

    sequences: list[tuple[int, ...]]
    start: int
    future: asyncio.Future[list[list[float]]]
