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
from coterie.environments.debate import problem_text
from coterie.environments.protocol import ActorKind, Grade, Pure, State, Transition
from coterie.environments.settings import draw
from coterie.environments.talk import ANSWERED
from coterie.record.tree import Task
from coterie.record.turn import Message, Part, Tool, Turn
from coterie.tools.calls import NativeCalls

ASSISTANT: Literal["assistant"] = "assistant"
PROBLEMS = (Gsm8kRow, SvampRow, MathRow, ChoiceRow)


class ConversationReply(Pure):
    """One turn, in which the assistant writes the last reply of a row.

    If the assistant calls tools before the last reply, it writes the first reply instead. The score is the word F1 of
    reply and reference. It measures similarity, not quality.
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

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        return [
            self._task(as_conversation(row)) for row in draw(self._rows, split, count, seed, after)
        ]

    @property
    def dataset(self) -> Rows:
        """Rows of the data set, with counts of rows that were left out."""
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
        self, state: State, turns: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        (turn,) = turns
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
    """Convert a row of the catalogue to a question and its solution. A conversation is returned unchanged."""
    if isinstance(row, Conversation):
        return row
    solution = getattr(row, "solution", "")
    reply = (
        f"{solution}\n#### {row.answer}" if isinstance(row, Gsm8kRow) else solution or row.answer
    )
    messages = (
        ChatMessage(role="user", content=problem_text(row)),
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
    """Return the index of the message that the model writes."""
    roles = [one.role for one in row.messages]
    if row.start or not any(one.calls for one in row.messages[:-1]):
        return row.start or len(roles) - 1
    return roles.index(ASSISTANT)
