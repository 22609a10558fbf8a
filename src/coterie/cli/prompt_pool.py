"""``coterie data prompt-pool``: a chat model writes formats into a file, with progress and costs."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console

from coterie.config.resolve import resolve
from coterie.config.settings import Settings, key
from coterie.engines.endpoint import Endpoint, EndpointSettings
from coterie.engines.protocol import EngineError
from coterie.environments.format_writer import write_pool
from coterie.errors import UserError

KEYS = "`coterie data prompt-pool --help` has examples"


class FormatPoolSettings(Settings):
    """Who writes the formats."""

    endpoint: EndpointSettings
    temperature: float = key(1.0, "Sampling temperature.", ge=0, le=2)


def write(
    out: Path,
    words: Sequence[str],
    count: int,
    setting: Literal["exchange", "debate"],
    console: Console,
) -> Path:
    """Bring the file up to ``count`` formats; raises ``UserError`` if that can't be done."""
    settings = resolve(FormatPoolSettings, [], words, where=KEYS)

    async def ask() -> str:
        async with Endpoint(settings.endpoint) as endpoint:
            await write_pool(endpoint, out, count, setting, settings.temperature, tell)
            return str(endpoint.usage)

    def tell(text: str) -> None:
        console.print(text)

    try:
        tell(asyncio.run(ask()))
    except EngineError as error:
        raise UserError(
            f"no more formats: {error}", f"what came is in {out}; the same command goes on"
        ) from error
    return out
