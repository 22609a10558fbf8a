"""Engine apart from the trainer's weights, in the place of vLLM servers, that writes its version into its text."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from coterie.engines import pool, vllm
from coterie.engines.protocol import Completion, Sampling, Stats
from coterie.record.turn import Sample

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class SpellingEngine:
    """Each token is the letter of the number of loads so far. Lengths, and with them latencies, depend on the seed."""

    latency = 0.0
    """Seconds of a token."""
    slow: tuple[float, float] = (0.0, 0.0)
    """Share of completions that take these more seconds."""
    loaded: list[str]
    probe = (1, 2)
    width = 128

    def __init__(self, renderer: Any, policy: str, version: str) -> None:
        self.policy, self.version, self.stats = policy, version, Stats()
        self.loaded = [version]
        self.go = asyncio.Event()
        """Unset to pause between two tokens."""
        self.go.set()
        self._renderer = renderer
        encode = renderer.tokenizer
        self.ids = [encode(letter, add_special_tokens=False)["input_ids"][-1] for letter in LETTERS]
        assert len(set(self.ids)) == len(LETTERS)

    async def sample(
        self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        return list(await asyncio.gather(*(self._one(seed, sampling) for seed in seeds)))

    async def _one(self, seed: int, sampling: Sampling) -> Completion:
        ids: list[int] = []
        spans: list[tuple[str, int]] = []
        if seed % 100 < 100 * self.slow[0]:
            await asyncio.sleep(self.slow[1])
        for _ in range(min(4 + seed % 9, sampling.max_tokens)):
            await asyncio.sleep(self.latency)
            await self.go.wait()
            ids.append(self.ids[len(self.loaded) - 1])
            count = spans.pop()[1] if spans and spans[-1][0] == self.version else 0
            spans.append((self.version, count + 1))
        self.stats.sampled_tokens += len(ids)
        text = self._renderer.decode(ids)
        logprobs = (-3.0,) * len(ids)
        return Completion(tuple(ids), logprobs, text, "length", seed, 0, "", tuple(spans))

    async def load(
        self, path: Path, version: str, send: object = None, expected: object = None
    ) -> None:
        assert (path / "model.safetensors").is_file()
        await asyncio.sleep(0)
        self.loaded.append(version)
        self.version = version

    def versions(self, ids: Sequence[int]) -> list[str]:
        """Return the version that each token spells."""
        return [self.loaded[self.ids.index(token)] for token in ids]


def versions_of(sample: Sample) -> list[str]:
    """Return the recorded version of each token."""
    spans = sample.versions or ((sample.version, len(sample.ids)),)
    return [version for version, count in spans for _ in range(count)]


def use_separate_engines(opened: list[SpellingEngine], patch: Any = setattr) -> None:
    """Sample with spelling engines wherever a run starts servers; each is added to ``opened``."""

    @asynccontextmanager
    async def engines(
        model: str, renderer: Any, own: Any, logs: Path, *, policy: str, version: str
    ) -> AsyncIterator[SpellingEngine]:
        opened.append(SpellingEngine(renderer, policy, version))
        yield opened[-1]

    patch(pool, "vllm_pool", engines)
    patch(vllm, "check_vllm", lambda settings: None)
