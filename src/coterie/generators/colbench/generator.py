"""New tasks for ColBench, written by a chat model, each checked in the sandbox before it is kept.

The authors of ColBench had Llama-3.1-70B-Instruct make theirs of excerpts of web pages, and kept those whose
function runs on its tests (SWEET-RL, arXiv 2503.15478). Here a task is kept if nothing at
all is wrong with it (``checks``) and it is not nearly another one of the file.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coterie.datasets.code_rows import CodeRow
from coterie.datasets.growing import append_line, resume_lines
from coterie.datasets.reading import read_rows
from coterie.engines.endpoint import Endpoint
from coterie.errors import UserError
from coterie.generators.colbench.checks import check_row
from coterie.generators.colbench.drafts import RefusedDraft, near, read_reply
from coterie.generators.colbench.prompts import request
from coterie.progress import Silent
from coterie.tools.sandbox.pool import Sandbox

TRIES = 5
"""Replies for each task that is wanted, before it is given up."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How the model is asked."""

    temperature: float = 1.0
    max_tokens: int = 2048
    seed: int = 0
    """Of the draws of subjects, and of the model where it takes seeds."""
    excerpts: tuple[str, ...] = ()
    """Texts to be inspired by; without any, a person and a kind of data are drawn."""


@dataclass(slots=True)
class TaskWriter:
    """Brings a file up to a number of tasks, as rows in upstream's form."""

    endpoint: Endpoint
    sandbox: Sandbox
    file: Path
    asking: Asking
    tell: Callable[[str], None]
    rows: list[CodeRow] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """How many replies were left out, by reason."""

    async def write(self, count: int) -> None:
        """Ask until the file has ``count`` rows, each written as it comes; what is there is kept.

        Raises ``UserError`` for a broken file and if the model gives too few that can be used, ``EngineError``
        if it fails.
        """
        self.rows = list(read_rows(self.file, CodeRow, Silent())) if resume_lines(self.file) else []
        number = TRIES * len(self.rows)
        last = number + TRIES * (count - len(self.rows))
        running: set[asyncio.Task[None]] = set()
        try:
            while (wanted := count - len(self.rows)) > 0:
                while number < last and len(running) < min(
                    wanted, self.endpoint.settings.concurrency
                ):
                    running.add(asyncio.create_task(self._one(number, count)))
                    number += 1
                if not running:
                    raise self._too_few(count)
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    running.remove(task)
                    task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            if self.refused:
                self.tell(f"left out: {self.reasons()}")

    def reasons(self) -> str:
        """Why replies were left out, the most frequent reason first."""
        return ", ".join(f"{count} {kind}" for kind, count in self.refused.most_common())

    async def _one(self, number: int, count: int) -> None:
        """Ask once; write the row, or count why not."""
        found = await self._draft(number)
        if isinstance(found, CodeRow):
            found = near(found, self.rows) or found
        if isinstance(found, RefusedDraft):
            self.refused[found.kind] += 1
            self.tell(f"left out: {found.kind} ({found.why})")
            return
        append_line(self.file, found.upstream())
        self.rows.append(found)
        self.tell(f"{len(self.rows)} of {count}: {found.question}")

    async def _draft(self, number: int) -> CodeRow | RefusedDraft:
        of = self.asking
        reply = await self.endpoint.chat(
            request(of.seed, number, of.excerpts),
            max_tokens=of.max_tokens,
            temperature=of.temperature,
            seed=of.seed * 1_000_003 + number,
        )
        if reply.finish == "length":
            return RefusedDraft("cut", f"it is longer than {of.max_tokens} tokens")
        row = read_reply(reply.text)
        if isinstance(row, RefusedDraft):
            return row
        findings = await check_row(row, self.sandbox)
        return RefusedDraft(findings[0].kind, findings[0].why) if findings else row

    def _too_few(self, count: int) -> UserError:
        return UserError(
            f"{self.endpoint.settings.model} gave {len(self.rows)} of {count} tasks that can be used "
            f"(left out: {self.reasons()})",
            f"they are in {self.file}; give the command again for more, with another model or seed=1",
        )
