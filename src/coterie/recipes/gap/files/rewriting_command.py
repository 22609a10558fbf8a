"""What ``coterie import gap`` does: settings, files, and what is said of them."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console

from coterie.config.folders import check_new_file
from coterie.config.resolve import resolve
from coterie.engines.chat_model import EndpointChat, check_chat, open_chat
from coterie.recipes.gap.files.converting import Converter, RewriterSettings
from coterie.recipes.gap.files.traces import TraceRow, read_traces, write_traces
from coterie.terminal.progress import ConsoleProgress

KEYS = "`coterie import gap --help` has examples"


def rewrite(traces: Path, out: Path, words: Sequence[str], console: Console) -> Path:
    """Rewrite the traces of a file into a new one. Raises ``UserError`` as :meth:`Converter.convert`."""
    settings = resolve(RewriterSettings, [], words, where=KEYS)
    check_chat("model", settings, "")
    check_new_file(out)
    work = out.with_name(f"{out.stem}.work.jsonl")
    with closing(ConsoleProgress(console)) as progress:
        found = read_traces(traces, progress)
        if found.broken:
            first = found.broken[0]
            console.print(
                f"left out: {len(found.broken)} rows that can't be read, such as row {first.row}, "
                f"which {first.reason}"
            )
        rows = asyncio.run(_rewritten(found.rows, settings, work, progress, console))
    write_traces(out, rows)
    return out


async def _rewritten(
    rows: Sequence[TraceRow],
    settings: RewriterSettings,
    work: Path,
    progress: ConsoleProgress,
    console: Console,
) -> list[TraceRow]:
    async with open_chat(settings, work.parent / "rewriter") as chat:
        converter = Converter(chat, settings, work, progress)
        done = await converter.convert(rows)
        for (status, reason), count in sorted(converter.counts().items()):
            console.print(f"{status.replace('_', ' ')}: {count:,}" + f" ({reason})" * bool(reason))
        if isinstance(chat, EndpointChat):
            console.print(str(chat.endpoint.usage))
    return done
