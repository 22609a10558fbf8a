"""GAP's SFT JSON: a list of prompts with whole traces.

A row is LLaMA-Factory's ``{"instruction", "input", "output"}``: the prompt, the question (often empty, then it stands
in the prompt after ``Question:``), and the whole trace with its observations, as one text. Or it is ``{"messages"}``
(roles and contents) or ``{"conversations"}`` (``from`` and ``value``), with one user's and one assistant's message.
:func:`observations` says what is masked in training, as places in the text and not as tokens.
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
"""Stands before the question in a prompt."""
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
        """What is asked: ``input``, or what follows the last ``Question:``; empty if neither is there."""
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
        return {name: told for name, told in value.items() if told is not None}


def _alpaca(said: Any, names: tuple[str, str, str]) -> dict[str, Any]:
    """Return the fields of a row with messages; a system message is left out. Raises ``ValueError``."""
    name, role, content = names
    if not isinstance(said, list) or not all(isinstance(one, Mapping) for one in said):
        raise ValueError(f"{name} is not a list of messages")
    roles = [_ROLES.get(str(one.get(role)), str(one.get(role))) for one in said]
    if roles[roles[:1] == ["system"] :] != ["user", "assistant"]:
        raise ValueError(
            f"its roles are {', '.join(roles) or 'none'}: a trace is one message of the user and one of the assistant"
        )
    return {"instruction": said[-2].get(content), "output": said[-1].get(content)}


@dataclass(frozen=True, slots=True)
class BrokenTrace:
    """A row whose trace can't be trained on."""

    row: int
    """Its number; the first is 1."""
    reason: str


@dataclass(frozen=True, slots=True)
class Traces:
    """What a file has."""

    rows: tuple[TraceRow, ...]
    """Those that can be trained on, in the order of the file."""
    numbers: tuple[int, ...]
    broken: tuple[BrokenTrace, ...]


def read_traces(path: Path, progress: Progress | None = None) -> Traces:
    """The rows of an SFT file (``.json``, ``.jsonl``, ``.parquet``).

    Traces that can't be trained on are given with their numbers. Raises ``UserError`` with the number of a broken row,
    and if no trace is left.
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
    """Why a trace can't be trained on; empty if it can be."""
    try:
        observations(trace)
    except ValueError as error:
        return str(error)
    return "" if _ANSWERED.search(trace) else "has no answer"


def observations(trace: str) -> tuple[tuple[int, int], ...]:
    """Where a trace's observations begin and end, tags included, as places of characters.

    Raises ``ValueError`` for one that is in another, is never closed, or is closed without having begun.
    """
    spans: list[tuple[int, int]] = []
    begun: int | None = None
    for tag in _OBSERVATION_TAGS.finditer(trace):
        if tag[1] and begun is None:
            raise ValueError(
                f"closes an observation that has not begun (character {tag.start() + 1})"
            )
        if tag[1]:
            assert begun is not None
            spans.append((begun, tag.end()))
            begun = None
        elif begun is not None:
            raise ValueError(f"has an observation in an observation (character {tag.start() + 1})")
        else:
            begun = tag.start()
    if begun is not None:
        raise ValueError(f"has an observation that is never closed (character {begun + 1})")
    return tuple(spans)
