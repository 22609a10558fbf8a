"""Training rows of written conversations: exact tokens, and a mask of the trained tokens.

Prompts are those that the model would receive in the assistant's place, so rows equal the rows of sampled dialogues. A
template that changes earlier turns (Qwen 3 drops their thoughts) splits a conversation into several segments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from coterie.datasets.conversations import (
    ChatMessage,
    Conversation,
    Preference,
    Targets,
    flaw_of,
    parse_messages,
    parse_tools,
)
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.record.rows import Pair, Row, View, assemble, rows
from coterie.record.tree import Tree
from coterie.record.turn import Message, Part, Speaker, Tool, ToolResult, Turn, make_turn

ASSISTANT: Literal["assistant"] = "assistant"
Prompts = list[tuple[tuple[int, ...], Turn]]


def rows_from_messages(
    tokenizer: PreTrainedTokenizerBase | ChatRenderer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    targets: Targets = "all",
    origin: str = "",
) -> list[Row]:
    """Return the training rows of a conversation in OpenAI's format.

    Args:
        tokenizer: Tokenizer with a chat template, or its renderer.
        messages: Objects with ``role`` and ``content``, also ``tool_calls`` and ``reasoning_content``.
        tools: Functions in OpenAI's format that the template shows.
        targets: Train on all messages of the assistant, or on the last one.
        origin: Name of the conversation for errors.

    Returns:
        One row, or several if the template rewrites earlier messages.

    Raises:
        ValueError: If the messages cannot be trained on.
        UserError: If the template cannot show them.
    """
    parsed, schemas = parse_messages(messages), parse_tools(tools)
    if flaw := flaw_of(parsed, schemas):
        raise ValueError(flaw)
    conversation = Conversation(
        id="?", question="?", answer="?", messages=parsed, tools=schemas, place=origin
    )
    return conversation_rows(_renderer(tokenizer), conversation, targets)


def pairs_from_messages(
    tokenizer: PreTrainedTokenizerBase | ChatRenderer,
    prompt: Sequence[Mapping[str, Any]],
    chosen: Sequence[Mapping[str, Any]],
    rejected: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    origin: str = "",
) -> Pair:
    """Return the preference pair of two continuations of a prompt; see :func:`rows_from_messages`."""
    before, *sides = map(parse_messages, (prompt, chosen, rejected))
    schemas = parse_tools(tools)
    if flaw := next(filter(None, (flaw_of((*before, *side), schemas) for side in sides)), ""):
        raise ValueError(flaw)
    preference = Preference(
        id="?", question="?", answer="?", messages=(*before, *sides[0]), rejected=sides[1],
        start=len(before), tools=schemas, place=origin,
    )  # fmt: skip
    return preference_pair(_renderer(tokenizer), preference)


def conversation_rows(
    renderer: ChatRenderer, conversation: Conversation, targets: Targets = "all"
) -> list[Row]:
    """Return the rows of a conversation. Raises ``UserError`` if the template cannot show it."""
    rows = _rows_after(renderer, conversation, conversation.messages)
    return [replace(rows[-1], targets=rows[-1].targets[-1:])] if targets == "last" else rows


def preference_pair(renderer: ChatRenderer, preference: Conversation) -> Pair:
    """Return the pair of a preference, whose targets are the assistant's messages after the prompt."""
    prompt = preference.messages[: preference.start]
    chosen, rejected = (
        tuple(_rows_after(renderer, preference, messages))
        for messages in (preference.messages, (*prompt, *preference.rejected))
    )
    return Pair(chosen, rejected)


def _rows_after(
    renderer: ChatRenderer, conversation: Conversation, messages: Sequence[ChatMessage]
) -> list[Row]:
    """Return the rows with targets. Targets are the assistant's messages after the prompt."""
    place = conversation.place
    try:
        prompts = _prompts(renderer, messages, conversation.tools, place)
    except UserError as error:
        where = f"{place}: " if place else ""
        raise UserError(
            f"{where}{error.what}", "leave the row out, or use another model"
        ) from error
    before = sum(one.role == ASSISTANT for one in messages[: conversation.start])
    trained = {turn.id for _, turn in prompts[before:]}
    training_rows = []
    for at, row in enumerate(rows(View(ASSISTANT, "file", assemble(prompts)))):
        targets = tuple(one for one in row.targets if one.turn in trained)
        training_rows.append(replace(row, targets=targets, origin=f"{place}/{at}" if at else place))
    return [row for row in training_rows if row.targets]


def _renderer(tokenizer: PreTrainedTokenizerBase | ChatRenderer) -> ChatRenderer:
    return tokenizer if isinstance(tokenizer, ChatRenderer) else ChatRenderer(tokenizer)


def _prompts(
    renderer: ChatRenderer, messages: Sequence[ChatMessage], tools: tuple[Tool, ...], origin: str
) -> Prompts:
    """Return the assistant's turns with the ids of their prompts."""
    tree, last, prompts = Tree(origin, "file", 0), None, Prompts()
    history: list[Message] = []
    for is_result, group in groupby(messages, lambda one: one.role == "tool"):
        if is_result:
            results = tuple(ToolResult(one.results, one.content) for one in group)
            turn = make_turn(last or tree.root, Speaker("tool", "tools"), (), results=results)
            history.append(Message("tool", turn=turn.id))
            tree.add(turn)
            last = turn.id
            continue
        for message in group:
            if message.role != ASSISTANT:
                history.append(Message(message.role, (Part(message.content),)))
                continue
            prompt = renderer.render(history, tree, ASSISTANT, tools=tools)
            ids = _reply_ids(renderer, message, history, tree, last or tree.root, tools, prompt)
            turn = _turn(renderer, message, last or tree.root, ids)
            tree.add(turn)
            last = turn.id
            history.append(Message(ASSISTANT, turn=turn.id))
            prompts.append((prompt, turn))
    return prompts


def _turn(renderer: ChatRenderer, message: ChatMessage, parent: str, ids: tuple[int, ...]) -> Turn:
    text = renderer.format_turn(_whole(renderer, message))
    whole = ids or message.thought
    parts = renderer.parts(text, ASSISTANT, "data") if whole else (Part(message.content),)
    return make_turn(
        parent, Speaker("agent", ASSISTANT), parts, ids=ids, calls=message.calls, author="data"
    )


def _whole(renderer: ChatRenderer, message: ChatMessage) -> str:
    """Return content with its thought between the template's marks, or without it if the template has none."""
    marks = renderer.template.thoughts
    if not message.thought or marks is None:
        return message.content
    return f"{marks.open}{message.thought}{marks.close}{message.content}"


def _reply_ids(
    renderer: ChatRenderer,
    message: ChatMessage,
    history: Sequence[Message],
    tree: Tree,
    parent: str,
    tools: tuple[Tool, ...],
    prompt: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the tokens of a message as the model would sample them after its prompt, including the end of turn."""
    if not message.calls:
        return renderer.encode_turn(_whole(renderer, message))
    plain = replace(_turn(renderer, message, parent, ()), draw=1)
    trial = Tree(tree.task, tree.stage, tree.iteration, dict(tree.turns), dict(tree.requests))
    trial.add(plain)
    chat = (*history, Message(ASSISTANT, turn=plain.id))
    whole = renderer.render(chat, trial, ASSISTANT, generation=False, tools=tools)
    if whole[: len(prompt)] != prompt:
        raise UserError(
            "the chat template does not write this call after its prompt",
            "use a model whose template shows tools",
        )
    ids = whole[len(prompt) :]
    text, names = renderer.decode(ids), [call.name for call in message.calls]
    if any(text.count(name) < names.count(name) for name in names):
        raise UserError(
            "the chat template does not write all calls of a message",
            "use a model whose template does",
        )
    ends = [at for at, one in enumerate(ids) if one in renderer.end_ids]
    ids = ids[: ends[-1] + 1] if ends else ids + (*renderer.tools.ends, *renderer.end)[:1]
    if renderer.template.thoughts and message.thought.strip() not in text:
        before = renderer.encode_turn(message.content, end=False)
        if ids[: len(before)] != before:
            raise UserError(
                "the chat template does not write the thought of a message that calls",
                "use a model whose template does",
            )
        ids = renderer.encode_turn(_whole(renderer, message), end=False) + ids[len(before) :]
    return ids
