"""Next reply of held-out conversations, to read what a fine-tuned model writes beside the reference."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from coterie.datasets.catalogue import Split
from coterie.datasets.conversations import ChatMessage, Conversation
from coterie.datasets.load import Rows
from coterie.datasets.problems import ChoiceRow, MathRow, SvampRow
from coterie.datasets.rows import Gsm8kRow, QuestionRow
from coterie.environments.answers import f1, gold_answers, secret_answers
from coterie.environments.debate import asked
from coterie.environments.protocol import ActorKind, Grade, Pure, State, Transition
from coterie.environments.settings import draw
from coterie.environments.talk import ANSWERED
from coterie.record.tree import Task
from coterie.record.turn import Message, Part, Tool, Turn
from coterie.tools.calls import NativeCalls

ASSISTANT: Literal["assistant"] = "assistant"
PROBLEMS = (Gsm8kRow, SvampRow, MathRow, ChoiceRow)
"""Rows of the catalogue that hold all that a reply needs."""


class ConversationReply(Pure):
    """One turn: the assistant replies to what comes before the last reply of a row.

    A row whose assistant calls tools before that is continued from its first reply. The score is the F1 of the words
    of reply and reference: an indication of likeness, no measure of quality.
    """

    name = "conversation"
    actors: Mapping[str, ActorKind] = MappingProxyType({ASSISTANT: "agent"})
    limits: Mapping[str, int] = MappingProxyType({"turns": 1})
    row_types = (Conversation, *PROBLEMS)
    syntax = NativeCalls()
    metric = "word F1 with the reference reply"

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._known: dict[str, Conversation] = {}

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        return [
            self._task(as_conversation(row)) for row in draw(self._rows, split, count, seed, drawn)
        ]

    @property
    def dataset(self) -> Rows:
        """The data set, with what it leaves out."""
        return self._rows

    def rows(self, split: Split) -> list[Conversation]:
        """Return all rows of a split."""
        return [as_conversation(row) for row in self._rows.split(split)]

    def acting(self, state: State) -> tuple[str, ...]:
        return (ASSISTANT,)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        row = self._row(state.task)
        return tuple(
            Message(one.role, (Part(one.content, source="task"),))
            for one in row.messages[: _reply_at(row)]
        )

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return self._row(state.task).tools

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        (turn,) = taken
        calls = [f"{call.name}({call.arguments})" for call in turn.calls]
        return Transition(answer="\n".join((turn.text.strip(), *calls)), end=ANSWERED)

    async def grade(self, state: State, live: Any) -> Grade:
        return Grade(f1(state.answer, gold_answers(state.task)))

    def _task(self, row: Conversation) -> Task:
        self._known[row.id] = row
        at = _reply_at(row)
        public = {"question": "\n\n".join(one.text for one in row.messages[:at])}
        return Task(
            row.id, public, secret_answers(row.model_copy(update={"answer": row.messages[at].text}))
        )

    def _row(self, task: Task) -> Conversation:
        if task.id not in self._known:
            for split in ("train", "heldout"):
                self._known |= {row.id: row for row in self.rows(split)}
        return self._known[task.id]


def as_conversation(row: QuestionRow) -> Conversation:
    """Return a row of the catalogue as a question and its solution; a conversation is returned as it is."""
    if isinstance(row, Conversation):
        return row
    solution = getattr(row, "solution", "")
    reply = (
        f"{solution}\n#### {row.answer}" if isinstance(row, Gsm8kRow) else solution or row.answer
    )
    messages = (
        ChatMessage(role="user", content=asked(row)),
        ChatMessage(role=ASSISTANT, content=reply),
    )
    return Conversation(
        id=row.id,
        question=row.question,
        answer=row.answer,
        messages=messages,
        start=1,
        place=f"row {row.id}",
    )


def _reply_at(row: Conversation) -> int:
    """Return the place of the message that is to be replied."""
    roles = [one.role for one in row.messages]
    if row.start or not any(one.calls for one in row.messages[:-1]):
        return row.start or len(roles) - 1
    return roles.index(ASSISTANT)
