"""Reader of GAP's SFT files.

A row has LLaMA-Factory's fields ``{"instruction", "input", "output"}``: the prompt, the question (often empty; then the
prompt has it after ``Question:``), and the whole trace as one text, including observations. Rows with ``{"messages"}``
or ``{"conversations"}`` of one user and one assistant message are also read. :func:`observations` finds the text that
training masks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import model_validator

from coterie.datasets.files import read_rows
from coterie.datasets.rows import SetRow, Text
from coterie.errors import UserError
from coterie.progress import Progress, Silent

QUESTION = "Question:"
"""Marker before the question in a prompt."""
OBSERVATION, ANSWER = "observation", "answer"
_ROLES = {"human": "user", "gpt": "assistant"}
_OBSERVATION_TAGS = re.compile(rf"<(/?){OBSERVATION}>")
_ANSWERED = re.compile(rf"<{ANSWER}>.*\S.*</{ANSWER}>", re.DOTALL)


class TraceRow(SetRow):
    """A prompt and a whole trace."""

    instruction: Text
    input: str = ""
    output: Text

    @property
    def prompt(self) -> str:
        return "\n".join(part for part in (self.instruction, self.input) if part.strip())

    @property
    def question(self) -> str:
        """The question: ``input``, else the text after the last ``Question:``, else an empty string."""
        if self.input.strip():
            return self.input.strip()
        return self.instruction.rpartition(QUESTION)[2].strip() * (QUESTION in self.instruction)

    @model_validator(mode="before")
    @classmethod
    def _from_messages(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        for name, role, content in (
            ("messages", "role", "content"),
            ("conversations", "from", "value"),
        ):
            if name in value:
                return _alpaca(value[name], (name, role, content))
        return {name: field for name, field in value.items() if field is not None}


def _alpaca(messages: Any, names: tuple[str, str, str]) -> dict[str, Any]:
    """Return the fields of a row with messages; a system message is left out. Raises ``ValueError``."""
    name, role, content = names
    if not isinstance(messages, list) or not all(
        isinstance(message, Mapping) for message in messages
    ):
        raise ValueError(f"{name} is not a list of messages")
    roles = [_ROLES.get(str(message.get(role)), str(message.get(role))) for message in messages]
    if roles[roles[:1] == ["system"] :] != ["user", "assistant"]:
        raise ValueError(
            f"its roles are {', '.join(roles) or 'none'}: a trace is one message of the user and one of the assistant"
        )
    return {"instruction": messages[-2].get(content), "output": messages[-1].get(content)}


@dataclass(frozen=True, slots=True)
class BrokenTrace:
    """A row that cannot be trained on."""

    row: int
    """Number of the row, counted from 1."""
    reason: str


@dataclass(frozen=True, slots=True)
class Traces:
    """Content of a file of traces."""

    rows: tuple[TraceRow, ...]
    """Valid rows in the order of the file."""
    numbers: tuple[int, ...]
    broken: tuple[BrokenTrace, ...]


def read_traces(path: Path, progress: Progress | None = None) -> Traces:
    """Read an SFT file (``.json``, ``.jsonl``, ``.parquet``).

    Raises ``UserError`` for a row with wrong fields, and if no trace can be trained on.
    """
    rows: list[TraceRow] = []
    numbers: list[int] = []
    broken: list[BrokenTrace] = []
    for number, row in enumerate(read_rows(path, TraceRow, progress or Silent()), 1):
        if reason := flaw(row.output):
            broken.append(BrokenTrace(number, reason))
        else:
            rows.append(row)
            numbers.append(number)
    if not rows:
        raise UserError(
            f"no trace of {path} can be trained on; row {broken[0].row} {broken[0].reason}",
            "give a file of traces: prompts, and outputs that end with <answer>...</answer>",
        )
    return Traces(tuple(rows), tuple(numbers), tuple(broken))


def flaw(trace: str) -> str:
    """Return why a trace cannot be trained on, or an empty string."""
    try:
        observations(trace)
    except ValueError as error:
        return str(error)
    return "" if _ANSWERED.search(trace) else "has no answer"


def observations(trace: str) -> tuple[tuple[int, int], ...]:
    """Return the character spans (start, end) of a trace's observations, including their tags.

    Raises ``ValueError`` for nested, unclosed or unopened observations.
    """
    spans: list[tuple[int, int]] = []
    start: int | None = None
    for tag in _OBSERVATION_TAGS.finditer(trace):
        if tag[1] and start is None:
            raise ValueError(
                f"closes an observation that is not open (character {tag.start() + 1})"
            )
        if tag[1]:
            assert start is not None
            spans.append((start, tag.end()))
            start = None
        elif start is not None:
            raise ValueError(f"has a nested observation (character {tag.start() + 1})")
        else:
            start = tag.start()
    if start is not None:
        raise ValueError(f"has an observation that is never closed (character {start + 1})")
    return tuple(spans)
