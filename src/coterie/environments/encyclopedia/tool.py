"""Search tool of the invented encyclopedia: the real retriever over its entries."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from coterie.config.home import home
from coterie.config.settings import MOST_SEED, Settings, key
from coterie.environments.encyclopedia.entries import make_encyclopedia
from coterie.tools.calls import Function
from coterie.tools.retrieval.tool import RetrieverSettings, RetrieverTool
from coterie.trajectories.turn import digest


class EncyclopediaSearchSettings(Settings):
    """Settings of the encyclopedia search."""

    seed: int = key(0, "Seed of the encyclopedia.", ge=0, le=MOST_SEED)
    topk: int = key(2, "Number of entries per query; the packaged model was trained with 2.", ge=1)
    delay: float = key(0.0, "Minimum seconds per call, to simulate a remote search.", ge=0)


class EncyclopediaSearch(RetrieverTool):
    """A source of the tool ``wiki_search``."""

    settings_type = EncyclopediaSearchSettings  # type: ignore[assignment]

    def __init__(self, settings: EncyclopediaSearchSettings) -> None:
        corpus = str(_corpus(settings.seed))
        super().__init__(RetrieverSettings(topk=settings.topk, corpus=corpus))
        self.delay = settings.delay

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:

        async with super().open() as functions:
            yield {name: self._delayed(do) for name, do in functions.items()}

    def _delayed(self, do: Function) -> Function:
        async def later(arguments: Mapping[str, Any]) -> str:
            began = time.monotonic()
            result = await do(arguments)
            await asyncio.sleep(max(0.0, self.delay - (time.monotonic() - began)))
            return result

        return later


def _corpus(seed: int) -> Path:
    encyclopedia = make_encyclopedia(seed)
    folder = home() / "encyclopedias"
    file = folder / f"{digest(seed, list(encyclopedia.passages()))[:16]}.jsonl"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        encyclopedia.write(file)
    return file
