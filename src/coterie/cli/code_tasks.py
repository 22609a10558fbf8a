"""``coterie data generate|draw colbench-code``: a chat model writes tasks into a file, or a seed draws them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from coterie.config.folders import make_folder
from coterie.config.resolve import resolve
from coterie.config.settings import MOST_SEED, Settings, key
from coterie.datasets.catalogue import SPLITS, Split
from coterie.datasets.code_rows import CodeRow
from coterie.engines.endpoint import Endpoint, EndpointSettings
from coterie.engines.protocol import EngineError
from coterie.errors import UserError
from coterie.generators.colbench.drawn import draw_rows
from coterie.generators.colbench.generator import Asking, TaskWriter
from coterie.generators.colbench.kinds import Level
from coterie.generators.colbench.prompts import read_excerpts
from coterie.terminal.progress import ConsoleProgress
from coterie.tools.sandbox.pool import Sandbox

KEYS = "`coterie data generate --help` has examples"


class GenerateSettings(Settings):
    """Who writes the tasks, and how."""

    endpoint: EndpointSettings
    temperature: float = key(1.0, "Sampling temperature.", ge=0, le=2)
    max_tokens: int = key(2048, "Most tokens of a reply.", ge=1)
    seed: int = key(
        0, "Of the draws of subjects, and of the model where it takes seeds.", ge=0, le=MOST_SEED
    )


def generate(
    out: Path, words: Sequence[str], count: int, excerpts: Path | None, console: Console
) -> Path:
    """Bring the file up to ``count`` tasks; raises ``UserError`` if that can't be done."""
    settings = resolve(GenerateSettings, [], words, where=KEYS)
    texts = read_excerpts(excerpts) if excerpts is not None else ()
    asking = Asking(settings.temperature, settings.max_tokens, settings.seed, texts)

    async def ask() -> str:
        async with Endpoint(settings.endpoint) as endpoint, Sandbox() as sandbox:
            await TaskWriter(endpoint, sandbox, out, asking, tell).write(count)
            return str(endpoint.usage)

    def tell(text: str) -> None:
        console.print(text)

    try:
        tell(asyncio.run(ask()))
    except EngineError as error:
        raise UserError(
            f"no more tasks: {error}", f"what came is in {out}; the same command goes on"
        ) from error
    return out


def draw(folder: Path, train: int, heldout: int, level: Level, seed: int, console: Console) -> Path:
    """Write both splits into a new folder; raises ``UserError`` if it has them, or can't get that many."""
    files = {split: folder / f"{split}.jsonl" for split in SPLITS}
    if there := [file for file in files.values() if file.exists()]:
        raise UserError(f"{there[0]} exists already", "give another folder, or remove it")
    make_folder(folder)
    counts = {"train": train, "heldout": heldout}
    progress = ConsoleProgress(console)

    async def drawn() -> dict[Split, list[CodeRow]]:
        async with Sandbox() as sandbox:
            return {
                split: await draw_rows(split, level, counts[split], seed, sandbox, progress)
                for split in SPLITS
            }

    try:
        rows = asyncio.run(drawn())
    finally:
        progress.close()
    for split, file in files.items():
        text = "".join(row.model_dump_json() + "\n" for row in rows[split])
        file.write_text(text, encoding="utf-8", newline="\n")
        console.print(f"{split}: {len(rows[split]):,} rows")
    return folder
