"""Reader of GAP's SFT files.

A row has LLaMA-Factory's fields ``{"instruction", "input", "output"}``: the prompt, the question (often empty; then the
prompt has it after ``Question:``), and the whole trace as one text, including observations. Rows with ``{"messages"}``
or ``{"conversations"}`` of one user and one assistant message are also read.

Messages and observations are copied verbatim from the file. The prompts come from the environment of the evaluation.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import model_validator

from coterie.datasets.catalogue import Split
from coterie.datasets.files import read_rows
from coterie.datasets.messages import parse_messages
from coterie.datasets.rows import SetRow, Text, question_key
from coterie.environments.protocol import (
    ActorKind,
    Environment,
    Grade,
    Observation,
    Pure,
    State,
    Transition,
    agents_of,
)
from coterie.environments.workflow.plan_graph import final_answer, tagged
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.record.tree import ANSWERED, Task
from coterie.record.turn import Message, Part, Role, Speaker, Tool, Turn
from coterie.rollout.script_player import stopped_at
from coterie.tools.calls import Tags

QUESTION = "Question:"
"""Marker before the question in a prompt."""
OBSERVATION, ANSWER = "observation", "answer"
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
        # Without the marker, `rpartition` would return the whole prompt as the question.
        return self.instruction.rpartition(QUESTION)[2].strip() * (QUESTION in self.instruction)

    @property
    def flaw(self) -> str:
        """Reason why the trace cannot be trained on, or an empty string."""
        try:
            observations(self.output)
        except ValueError as error:
            return str(error)
        return "" if _ANSWERED.search(self.output) else "has no answer"

    @model_validator(mode="before")
    @classmethod
    def _from_messages(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if isinstance(value.get("completion"), list):  # a row of `coterie export data --to jsonl`
            value = {"messages": [*value["prompt"], *value["completion"]]}
        for name in ("messages", "conversations"):
            if name in value:
                # The prompt of the run's environment replaces the system message of the file.
                turns = [
                    message for message in parse_messages(value[name]) if message.role != "system"
                ]
                if [turn.role for turn in turns] != ["user", "assistant"]:
                    raise ValueError("a trace is one message of the user and one of the assistant")
                return {"instruction": turns[0].content, "output": turns[1].content}
        # Null means a missing field, so that its default applies.
        return {name: field for name, field in value.items() if field is not None}


def read_traces(
    path: Path, progress: Progress | None = None
) -> tuple[dict[int, TraceRow], dict[int, str]]:
    """Read an SFT file (``.json``, ``.jsonl``, ``.parquet``).

    Returns the valid rows, and why other rows cannot be trained on, both by number counted from 1. Raises ``UserError``
    for a row with wrong fields, and if no trace can be trained on.
    """
    rows, broken = dict[int, TraceRow](), dict[int, str]()
    for number, row in enumerate(read_rows(path, TraceRow, progress), 1):
        if row.flaw:
            broken[number] = row.flaw
        else:
            rows[number] = row
    if not rows:
        number, reason = next(iter(broken.items()))
        problem = f"no trace of {path} can be trained on; row {number} {reason}"
        fix = "give a file of traces: prompts, and outputs that end with <answer>...</answer>"
        raise UserError(problem, fix)
    return rows, broken


def observations(trace: str) -> tuple[tuple[int, int], ...]:
    """Return the character spans (start, end) of a trace's observations, including their tags.

    Raises ``ValueError`` for nested, unclosed or unopened observations.
    """
    tags = list(_OBSERVATION_TAGS.finditer(trace))
    # Opening and closing tags must alternate.
    for number, tag in enumerate(tags):
        if bool(tag[1]) != bool(number % 2):
            raise ValueError(f"has a nested or unopened observation (character {tag.start() + 1})")
    if len(tags) % 2:
        raise ValueError(
            f"has an observation that is never closed (character {tags[-1].start() + 1})"
        )
    return tuple(
        (start.start(), end.end()) for start, end in zip(tags[::2], tags[1::2], strict=True)
    )


FILE = Speaker("tool", "file")


@dataclass(frozen=True, slots=True)
class TracePieces:
    """Messages and observations of a trace."""

    messages: tuple[str, ...]
    """The agent's messages, one more than observations."""
    observations: tuple[str, ...]
    """Text after each message but the last, including the spaces in between."""


def split_trace(trace: str) -> TracePieces:
    """Split a trace into messages and observations. Raises ``ValueError`` like :func:`observations`."""
    messages, texts, position = list[str](), list[str](), 0
    for start, end in observations(trace):
        # Spaces after an observation belong to it, so that messages begin with their first word.
        next_position = end + len(trace[end:]) - len(trace[end:].lstrip())
        segment = trace[position:start]
        message = segment.rstrip()
        # Observations without a message in between are joined into one.
        if message or not messages:
            messages.append(message)
            texts.append(segment[len(message) :] + trace[start:next_position])
        else:
            texts[-1] += trace[position:next_position]
        position = next_position
    return TracePieces((*messages, trace[position:].rstrip()), tuple(texts))


def format_error(trace: str, calls: Tags) -> str:
    """Return why an agent with this call format cannot have written a trace, or an empty string."""
    # Every message before an observation must end with a call of a tool of this run.
    *earlier, last_message = split_trace(trace).messages
    for text in earlier:
        if not text:
            return "has an observation before the first message"
        if (stop := stopped_at(text, calls.stop)) is None or f"</{ANSWER}>" in text:
            tools = ", ".join(calls.calls)
            return f"has an observation without a call of a tool of this run ({tools}) before it"
        # Sampling would have stopped at the call, so an agent cannot have written the rest.
        if stop < len(text):
            return f"continues after {text[:stop][-40:]!r}, where a message ends"
    end = stopped_at(last_message, calls.stop)
    return (
        ""
        if last_message.endswith(f"</{ANSWER}>") and end == len(last_message)
        else "does not end with its answer"
    )


def answer_only(trace: str) -> TracePieces:
    answer = final_answer(trace)
    assert answer is not None, "traces without an answer are not read"
    return TracePieces((tagged("answer", answer),), ())


class TraceEnvironment(Pure):
    """Replays traces under the prompts of another environment, without opening its tools."""

    metric = "none"

    def __init__(
        self, environment: Environment, traces: Sequence[TraceRow], *, closed: bool = False
    ) -> None:
        self.environment = environment
        self.name, self.version = environment.name, environment.version
        self.syntax = syntax = environment.syntax
        self.role: Role = syntax.role if isinstance(syntax, Tags) else "tool"
        # The file alone determines the number of turns.
        self.actors: Mapping[str, ActorKind] = environment.actors
        self.limits: Mapping[str, int] = {}
        (self.agent,) = agents_of(environment)
        parse = answer_only if closed else split_trace
        self.by_task = {task_of(row).id: parse(row.output) for row in traces}
        self.own_tasks = [task_of(row) for row in traces]

    def script(self, task: Task) -> Sequence[str]:
        return self.by_task[task.id].messages

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        return self.own_tasks[:count] if split == "train" else []

    def next_actors(self, state: State) -> tuple[str, ...]:
        return (self.agent,)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        # Only the first prompt comes from the wrapped environment, so it gets a state without turns.
        task_messages = self.environment.observe(replace(state, turns=(), data=None), actor)
        rest = (
            Message(self.role if turn.speaker == FILE else "assistant", turn=turn.id)
            for turn in state.turns
        )
        return (*task_messages, *rest)

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        """Return the tools of the wrapped environment, whose calls end a message."""
        return self.environment.tools(replace(state, turns=(), data=None), actor)

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        """Return the next observation of the file, or end after the last message."""
        texts = self.by_task[state.task.id].observations
        # After the n-th message of the agent follows the n-th observation of the file.
        index = sum(t.speaker != FILE for t in state.turns)
        if index <= len(texts):
            part = Part(texts[index - 1], source="file")
            return Transition(seen=(Observation(FILE, (part,)),))
        return Transition(answer=final_answer(turns[-1].text), end=ANSWERED)

    async def grade(self, state: State, session: Any) -> Grade:
        # A file has no right answers, so its traces are not graded.
        return Grade(None)


def task_of(row: TraceRow) -> Task:
    return Task(
        f"trace-{question_key(row.question or row.prompt)}",
        {"question": row.question or row.prompt},
    )
