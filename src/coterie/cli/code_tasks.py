"""``coterie data generate colbench-code``: a chat model writes tasks into a file."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from coterie.config.resolve import resolve
from coterie.config.settings import Settings, key
from coterie.engines.endpoint import Endpoint, EndpointSettings
from coterie.engines.protocol import EngineError
from coterie.environments.colbench.generator import Asking, TaskWriter
from coterie.environments.colbench.prompts import read_excerpts
from coterie.errors import UserError
from coterie.tools.sandbox.pool import Sandbox

KEYS = "`coterie data generate --help` has examples"


class GenerateSettings(Settings):
    """Who writes the tasks, and how."""

    endpoint: EndpointSettings
    temperature: float = key(1.0, "Sampling temperature.", ge=0, le=2)
    max_tokens: int = key(2048, "Most tokens of a reply.", ge=1)
    seed: int = key(0, "Of the draws of subjects, and of the model where it takes seeds.", ge=0)


def generate(
    out: Path, words: Sequence[str], count: int, excerpts: Path | None, console: Console
) -> Path:
    """Bring the file up to ``count`` tasks; raises ``UserError`` if that can't be done."""
    told = resolve(GenerateSettings, [], words, where=KEYS)
    texts = read_excerpts(excerpts) if excerpts is not None else ()
    asking = Asking(told.temperature, told.max_tokens, told.seed, texts)

    async def ask() -> str:
        async with Endpoint(told.endpoint) as endpoint, Sandbox() as sandbox:
            await TaskWriter(endpoint, sandbox, out, asking, tell).write(count)
            return str(endpoint.usage)

    def tell(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    try:
        tell(asyncio.run(ask()))
    except EngineError as error:
        raise UserError(
            f"no more tasks: {error}", f"what came is in {out}; the same command goes on"
        ) from error
    return out
