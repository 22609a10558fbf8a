"""A file of sequential traces, rewritten as parallel plans by a chat model, row by row.

GAP's data was made so, by GPT-4o. What a model writes is checked (``rewriting``); one that is refused is told why and
tries again. A row of which no rewriting is believed keeps its trace. Each row that is done is a line of
``OUT.work.jsonl`` at once, so that a command that was cut goes on.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coterie.config.settings import key
from coterie.datasets.growing import append_line, resume_lines
from coterie.datasets.reading import read_rows
from coterie.datasets.rows import SetRow
from coterie.engines.chat_model import ChatModel, ChatModelSettings
from coterie.engines.messages import Utterance
from coterie.engines.protocol import EngineError
from coterie.errors import UserError
from coterie.progress import Progress, Silent
from coterie.recipes.gap.files.rewriting import (
    NotSequential,
    Refused,
    Sequential,
    read_parallel,
    read_sequential,
)
from coterie.recipes.gap.files.traces import ConversionStatus, TraceRow
from coterie.trajectories.turn import digest

CUT = "the reply is too long"
NO_REPLY = "the model gave no reply"
_RULES = """You rewrite the work of a search agent so that it searches for independent facts at the same time.

The agent writes segments between tags:
- <think>...</think>: a thought, before every other segment.
- <plan>...</plan>: once, before the first search. For each task two lines: its id and what it is to find, then the \
tasks that it waits for:
T1: what the first task is to find
- Dependencies: none
T2: what the second task is to find out about {T1}
- Dependencies: T1
- <wiki_search>...</wiki_search>: one query, or several that run at the same time, with | between them.
- <observation>...</observation>: a result; they follow the search, one for each query, in the order of the queries.
- <answer>...</answer>: the answer, at the end.

Rules:
1. Put queries of tasks that do not wait for each other into one <wiki_search>. A query that needs what another one \
found stays after it.
2. Keep every query to the letter, each exactly once, and add none. Keep the answer to the letter.
3. Never write results. Each result of the work has a number. Where it belongs, write the mark and nothing else: \
<observation>[result 1]</observation>
4. Say nothing before it can be known. In a plan or thought, call what is not found yet {T1}, and not by its name.
5. Plan only what is searched, and at most one last task that compares or combines.
6. Thoughts are short, and fit the new order. A <reflection> of the work is left out, or becomes a thought.

Reply with the rewritten work alone, from <think> to </answer>."""


class RewriterSettings(ChatModelSettings):
    """Who rewrites, and how often a reply is asked for."""

    temperature: float = key(1.0, "Sampling temperature.", source="GAP: 1.0", ge=0, le=2)
    max_tokens: int = key(4096, "Most tokens of a reply.", source="GAP: 8192", ge=1)
    tries: int = key(3, "Replies for one trace, before it stays as it is.", source="GAP: 5", ge=1)


class Done(SetRow):
    """A row that is done, as a line of the working file."""

    row: int
    trace: str
    """A hash of the trace that it was."""
    output: str
    status: ConversionStatus
    reason: str = ""


@dataclass(slots=True)
class Converter:
    """Brings a working file up to all rows."""

    chat: ChatModel
    settings: RewriterSettings
    work: Path
    progress: Progress
    done: dict[int, Done] = field(default_factory=dict)

    async def convert(self, rows: Sequence[TraceRow]) -> list[TraceRow]:
        """All rows, rewritten where a rewriting is believed. Those that were done before are not asked again; those of
        which the model gave no reply are.

        Raises ``UserError`` for a broken working file, and if the model replied to none.
        """
        known = list(read_rows(self.work, Done, Silent())) if resume_lines(self.work) else []
        same = {one.row: one for one in known if one.trace in _hashes(rows, one.row)}
        self.done = same
        left = [place for place in range(len(rows)) if place not in self.done]
        self.progress.start(len(left), "rewriting traces")
        places = asyncio.Semaphore(self.settings.concurrency)
        async with asyncio.TaskGroup() as group:
            for place in left:
                group.create_task(self._one(place, rows[place], places))
        statuses = [self.done[place].status for place in left]
        if left and all(status == "failed" for status in statuses):
            raise UserError(
                f"{self.chat.name}: {self.done[left[0]].reason}",
                f"what was done before is in {self.work}; the same command goes on",
            )
        return [_rewritten(row, self.done[place]) for place, row in enumerate(rows)]

    async def _one(self, place: int, row: TraceRow, places: asyncio.Semaphore) -> None:
        async with places:
            output, status, reason = await self._try(row)
        found = Done(
            row=place, trace=digest(row.output), output=output, status=status, reason=reason
        )
        self.done[place] = found
        if status != "failed":
            append_line(self.work, found.model_dump())
        self.progress.advance(1)

    async def _try(self, row: TraceRow) -> tuple[str, ConversionStatus, str]:
        """The trace, how it went, and why it stayed as it was."""
        try:
            own = read_sequential(row)
        except NotSequential as error:
            return row.output, "exception", str(error)
        chat, reason = _asked(own), ""
        for number in range(self.settings.tries):
            seed = int(digest(row.output, number)[:8], 16) % 2**31
            try:
                reply = await self.chat.ask(chat, seed)
            except EngineError as error:
                return row.output, "failed", f"{NO_REPLY}: {error}"
            try:
                if reply.truncated:
                    raise Refused(CUT, f"it has more than {self.settings.max_tokens} tokens")
                return read_parallel(reply.text, own), "success", ""
            except Refused as error:
                reason = error.reason
                again = f"This can't be used: {error}. Correct it, and reply with the whole rewritten work alone."
                chat = [*_asked(own), Utterance("assistant", reply.text), Utterance("user", again)]
        return row.output, "validation_failed", reason

    def counts(self) -> Mapping[tuple[ConversionStatus, str], int]:
        """How many rows there are by status and reason."""
        return Counter((one.status, one.reason) for one in self.done.values())


def _asked(own: Sequential) -> list[Utterance]:
    shown = f"Question: {own.question}\n\nThe work:\n{own.marked}"
    return [Utterance("system", _RULES), Utterance("user", shown)]


def _hashes(rows: Sequence[TraceRow], place: int) -> tuple[str, ...]:
    return (digest(rows[place].output),) if place < len(rows) else ()


def _rewritten(row: TraceRow, done: Done) -> TraceRow:
    update = {"output": done.output, "conversion_status": done.status}
    return row.model_copy(update=update | {"original_output": row.output})
