"""Next replies of held-out conversations, whose tools, calls and results may be shown as text."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Literal

from coterie.datasets.catalogue import Split
from coterie.datasets.conversations import Conversation
from coterie.datasets.load import Rows
from coterie.datasets.messages import ChatMessage
from coterie.datasets.problems import ChoiceRow, MathRow, SvampRow
from coterie.datasets.rows import Gsm8kRow, QuestionRow
from coterie.environments.protocol import ActorKind, Grade, OneAgent, Pure, State, Transition
from coterie.environments.qa_metrics import f1, gold_answers, secret_answers
from coterie.environments.settings import draw
from coterie.errors import UserError
from coterie.record.tree import ANSWERED, Task
from coterie.record.turn import Message, Part, Tool, ToolResult, Turn, digest
from coterie.tools.calls import NativeCalls, Tag, Tags, ToolSource
from coterie.tools.registry import tags_of_sources

ASSISTANT: Literal["assistant"] = "assistant"
PROBLEMS = (Gsm8kRow, SvampRow, MathRow, ChoiceRow)


class ConversationReply(OneAgent, Pure):
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
        self.dataset = rows
        self.sources: Sequence[ToolSource] | None = None

    def write_as_tags(self, sources: Sequence[ToolSource]) -> None:
        """Show calls and results of the rows as tags (:func:`with_tags`), with these tools or the rows' tools."""
        self.sources = sources
        self.version = digest("tags", [source.identity for source in sources])

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        rows = draw(self.dataset, split, count, seed, previous_counts)
        return [self._task(self._conversation(row)) for row in rows]

    def rows(self, split: Split) -> list[Conversation]:
        return list(map(self._conversation, self.dataset.split(split)))

    def _conversation(self, row: QuestionRow) -> Conversation:
        conversation = as_conversation(row)
        return conversation if self.sources is None else with_tags(conversation, self.sources)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        row = self._rows[state.task.id]
        context = row.messages[: _reply_index(row)]
        return tuple(Message(m.role, (Part(m.content, source="task"),)) for m in context)

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return self._rows[state.task.id].tools

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        (turn,) = turns
        calls = [f"{call.name}({call.arguments})" for call in turn.calls]
        return Transition(answer="\n".join((turn.text.strip(), *calls)), end=ANSWERED)

    async def grade(self, state: State, session: Any) -> Grade:
        return Grade(f1(state.answer, gold_answers(state.task)))

    def _task(self, row: Conversation) -> Task:
        context, reply = row.messages[: (index := _reply_index(row))], row.messages[index]
        public = {"question": "\n\n".join(message.text for message in context)}
        return Task(row.id, public, secret_answers(row.model_copy(update={"answer": reply.text})))

    @cached_property
    def _rows(self) -> dict[str, Conversation]:
        return {row.id: row for split in self.dataset.splits for row in self.rows(split)}


def as_conversation(row: QuestionRow) -> Conversation:
    """Convert a row of the catalogue to a question and its solution. A conversation is returned unchanged."""
    if isinstance(row, Conversation):
        return row
    reply = getattr(row, "solution", "") or row.answer
    if isinstance(row, Gsm8kRow):
        reply = f"{row.solution}\n#### {row.answer}"
    request = ChatMessage(role="user", content=row.shown_question)
    messages = (request, ChatMessage(role=ASSISTANT, content=reply))
    fields: dict[str, Any] = {"id": row.id, "question": row.question, "answer": row.answer}
    return Conversation(**fields, messages=messages, start=1, origin=f"row {row.id}")


def with_tags(row: Conversation, sources: Sequence[ToolSource] = ()) -> Conversation:
    """Return a conversation in which tools, calls and results are text, as ``tools.calls=tags`` shows them.

    Calls of one message are written one after the other, since a sampled message ends with its first call.

    Args:
        row: Conversation or preference.
        sources: Tools that the system prompt describes; the row's by default, each with its only argument, or an
            object of its arguments, between the tags.

    Raises:
        UserError: A call cannot be written as a tag.
    """
    tools = tuple(tool for source in sources for tool in source.tools) or row.tools
    if not tools:
        return row
    properties: dict[str, Any] = {tool.name: tool.parameters.get("properties") for tool in tools}
    arguments = {name: list(values or ()) for name, values in properties.items()}
    tags = tags_of_sources(sources) if sources else Tags(
        {name: Tag(*names if len(names) == 1 else ()) for name, names in arguments.items()}, answer=None
    )  # fmt: skip
    system = row.messages[0].content if row.messages[0].role == "system" else ""
    teaching = "\n\n".join(filter(None, (system, tags.teach(tools))))
    teaching_message = ChatMessage(role="system", content=teaching)
    # The new system message comes first, or replaces the old one, so positions shift.
    start = row.start or bool(system)
    parts = (row.messages[bool(system) : row.start], row.messages[start:], row.rejected)
    before, after, rejected = (tuple(_calls_as_text(part, tags, row.origin)) for part in parts)
    start = 1 + len(before) if row.start else 0
    changes = {
        "messages": (teaching_message, *before, *after),
        "rejected": rejected,
        "start": start,
    }
    return row.model_copy(update={**changes, "tools": (), "answer": after[-1].content})


def _calls_as_text(
    messages: Sequence[ChatMessage], tags: Tags, origin: str
) -> Iterator[ChatMessage]:
    results: dict[str, str] = {}
    for position, message in enumerate(messages):
        if message.role == "tool":
            continue
        # The results right after this message, by the id of their call.
        following = takewhile(lambda later: later.role == "tool", messages[position + 1 :])
        results = {later.results: later.content for later in following}
        texts, thought = [message.content] * bool(message.content.strip()), message.thought
        plain = {"calls": (), "is_trained": message.is_trained}
        for tool_call in message.calls:
            try:
                texts.append(tags.write(tool_call))
            except UserError as error:
                raise UserError(f"{origin}: {error.what}", error.todo) from error
            # A call with a result ends the message, as when it is sampled; the result follows it.
            if tool_call.id in results:
                changes = {**plain, "content": "\n".join(texts), "thought": thought}
                yield message.model_copy(update=changes)
                text = tags.show([ToolResult(tool_call.id, results[tool_call.id])])
                yield ChatMessage(role="user", content=text)
                texts, thought = [], ""
        if texts or not message.calls:
            changes = {**plain, "content": "\n".join(texts), "thought": thought}
            yield message.model_copy(update=changes)


def _reply_index(row: Conversation) -> int:
    roles = [message.role for message in row.messages]
    if row.start or not any(message.calls for message in row.messages[:-1]):
        return row.start or len(roles) - 1
    return roles.index(ASSISTANT)
