"""Holds one vLLM server as `vllm serve` is by default: log-probs before temperature. Run as a script."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from coterie.engines.pool import vllm_pool
from coterie.engines.vllm import VLLMBackend
from coterie.models.loading import load
from tests.vllm.conftest import MODEL, SETTINGS


class RawBackend(VLLMBackend):
    """Without the option that coterie asks for."""

    def command(self, model: str, name: str, port: int) -> Sequence[str]:
        words = list(super().command(model, name, port))
        place = words.index("--logprobs-mode")
        return words[:place] + words[place + 2 :]


async def hold(logs: Path) -> None:
    """Start the server, print its URL, wait to be killed."""
    backend, renderer = RawBackend(SETTINGS, []), load(MODEL).renderer
    async with vllm_pool(
        MODEL, renderer, SETTINGS, logs, policy="talker", version="0", backend=backend
    ) as pool:
        print(pool.members[0].client.url, flush=True)
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(hold(Path(sys.argv[1])))
