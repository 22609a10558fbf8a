"""Training rows and pairs of written conversations, equal to the rows of sampled dialogues."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from coterie.datasets.conversations import Conversation, Preference, Targets
from coterie.datasets.messages import ChatMessage, flaw_of, parse_messages, parse_tools
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.record.rows import Pair, Row, View, assemble, rows
from coterie.record.tree import Tree
from coterie.record.turn import (
    Message,
    Part,
    Speaker,
    Tool,
    ToolResult,
    Turn,
    common_length,
    make_turn,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ASSISTANT: Literal["assistant"] = "assistant"
COMPARED = 40
"""Characters of a recorded reply that are compared with its tokens."""
Prompts = list[tuple[tuple[int, ...], Turn]]


def rows_from_messages(
    tokenizer: "PreTrainedTokenizerBase | ChatRenderer",
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    targets: Targets = "all",
    origin: str = "",
) -> list[Row]:
    """Return the training rows of a conversation in OpenAI's format: several if the template rewrites messages.

    Args:
        tokenizer: Tokenizer with a chat template, or its renderer.
        messages: Objects with ``role`` and ``content``, also ``tool_calls`` and ``reasoning_content``.
        tools: Functions in OpenAI's format that the template shows.
        targets: Train on all messages of the assistant, or on the last one.
        origin: Name of the conversation for errors.

    Raises:
        ValueError: If the messages cannot be trained on.
        UserError: If the template cannot show them.
    """
    parsed, schemas = parse_messages(messages), parse_tools(tools)
    if flaw := flaw_of(parsed, schemas):
        raise ValueError(flaw)
    conversation = Conversation(
        id="?", question="?", answer="?", messages=parsed, tools=schemas, origin=origin
    )
    return conversation_rows(_renderer(tokenizer), conversation, targets)


def pairs_from_messages(
    tokenizer: "PreTrainedTokenizerBase | ChatRenderer",
    prompt: Sequence[Mapping[str, Any]],
    chosen: Sequence[Mapping[str, Any]],
    rejected: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    origin: str = "",
) -> Pair:
    """Return the preference pair of two continuations of a prompt; see :func:`rows_from_messages`."""
    context, *sides = map(parse_messages, (prompt, chosen, rejected))
    schemas = parse_tools(tools)
    if flaw := next(filter(None, (flaw_of((*context, *side), schemas) for side in sides)), ""):
        raise ValueError(flaw)
    preference = Preference(
        id="?", question="?", answer="?", messages=(*context, *sides[0]), rejected=sides[1],
        start=len(context), tools=schemas, origin=origin,
    )  # fmt: skip
    return preference_pair(_renderer(tokenizer), preference)


def conversation_rows(
    renderer: ChatRenderer, conversation: Conversation, targets: Targets = "all"
) -> list[Row]:
    """Return the rows of a conversation, none if no message is trained.

    Raises ``UserError`` if the template cannot show it.
    """
    if targets == "last" and not conversation.messages[-1].is_trained:
        return []
    if conversation.recorded:
        rows = list(_recorded(renderer, conversation)[0])
    else:
        rows = _rows_after(renderer, conversation, conversation.messages)
    # Earlier replies stay in the row as context, without a loss on them.
    return [replace(rows[-1], targets=rows[-1].targets[-1:])] if targets == "last" else rows


def preference_pair(renderer: ChatRenderer, preference: Conversation) -> Pair:
    """Return the pair of a preference, whose targets are the assistant's messages after the prompt."""
    if preference.recorded:
        chosen, rejected = _recorded(renderer, preference)
        return Pair(chosen, rejected)
    prompt = preference.messages[: preference.start]
    chosen, rejected = (
        tuple(_rows_after(renderer, preference, messages))
        for messages in (preference.messages, (*prompt, *preference.rejected))
    )
    return Pair(chosen, rejected)


def _recorded(renderer: ChatRenderer, conversation: Conversation) -> Sequence[tuple[Row, ...]]:
    """Return the recorded rows of each side. Raises ``UserError`` if their tokens are of another tokenizer."""
    row, reply = conversation.recorded[0][0], conversation.messages[-1]
    sampled = renderer.decode(row.ids[row.targets[0].start : row.targets[0].stop])
    # A reply may consist of a call alone.
    text = reply.content.strip() or "".join(call.name for call in reply.calls[:1])
    if text[:COMPARED] not in sampled:
        problem = f"{conversation.origin} was sampled with another tokenizer"
        raise UserError(problem, "give the model of its run, or one with the same tokenizer")
    return conversation.recorded


def _rows_after(
    renderer: ChatRenderer, conversation: Conversation, messages: Sequence[ChatMessage]
) -> list[Row]:
    origin = conversation.origin
    try:
        prompts = _prompts(renderer, messages, conversation.tools, origin)
    except UserError as error:
        where = f"{origin}: " if origin else ""
        as_text = "write calls as text with tools.calls=tags, " * bool(conversation.tools)
        raise UserError(
            f"{where}{error.what}", f"{as_text}leave the row out, or use another model"
        ) from error
    # Replies in the prompt (examples, or the common beginning of a pair) are context only.
    count = sum(message.role == ASSISTANT for message in messages[: conversation.start])
    replies = [message for message in messages if message.role == ASSISTANT]
    trained = {
        turn.id
        for (_, turn), message in zip(prompts[count:], replies[count:], strict=True)
        if message.is_trained
    }
    # A template that rewrites earlier messages, such as old thoughts, gives several rows.
    training_rows = []
    for number, row in enumerate(rows(View(ASSISTANT, "file", assemble(prompts)))):
        targets = tuple(target for target in row.targets if target.turn in trained)
        name = f"{origin}/{number}" if number else origin
        training_rows.append(replace(row, targets=targets, origin=name))
    return [row for row in training_rows if row.targets]


def _renderer(tokenizer: "PreTrainedTokenizerBase | ChatRenderer") -> ChatRenderer:
    return tokenizer if isinstance(tokenizer, ChatRenderer) else ChatRenderer(tokenizer)


def _prompts(
    renderer: ChatRenderer, messages: Sequence[ChatMessage], tools: tuple[Tool, ...], origin: str
) -> Prompts:
    tree, parent, prompts = Tree(origin, "file", 0), None, Prompts()
    history: list[Message] = []
    # OpenAI's format has a message for each result; the results of one reply become one turn.
    for is_result, group in groupby(messages, lambda message: message.role == "tool"):
        if is_result:
            results = tuple(ToolResult(message.results, message.content) for message in group)
            turn = make_turn(parent or tree.root, Speaker("tool", "tools"), (), results=results)
            history.append(Message("tool", turn=turn.id))
            tree.add(turn)
            parent = turn.id
            continue
        for message in group:
            if message.role != ASSISTANT:
                history.append(Message(message.role, (Part(message.content),)))
                continue
            # Some data sets write the thought inside the content. Separate it, as in a sampled turn.
            marks = renderer.template.thoughts
            split = marks and marks.split(message.content, opened=False)
            if split and split.thought and not message.thought:
                parts = {"content": split.content, "thought": split.thought}
                message = message.model_copy(update=parts)
            # Every reply is paired with its own prompt, since a template may rewrite the history before it.
            prompt = renderer.render(history, tree, ASSISTANT, tools=tools)
            ids = _reply_ids(renderer, message, history, tree, parent or tree.root, tools, prompt)
            turn = _turn(renderer, message, parent or tree.root, ids)
            tree.add(turn)
            parent = turn.id
            history.append(Message(ASSISTANT, turn=turn.id))
            prompts.append((prompt, turn))
    return prompts


def _turn(renderer: ChatRenderer, message: ChatMessage, parent: str, ids: tuple[int, ...]) -> Turn:
    text = renderer.format_turn(_whole(renderer, message))
    # Without ids this is the trial turn of ``_reply_ids``, whose calls the template formats.
    is_whole = ids or message.thought
    parts = renderer.parts(text, ASSISTANT, "data") if is_whole else (Part(message.content),)
    return make_turn(
        parent, Speaker("agent", ASSISTANT), parts, ids=ids, calls=message.calls, author="data"
    )


def _whole(renderer: ChatRenderer, message: ChatMessage) -> str:
    """Return content with its thought between the template's marks, or without it if the template has no marks."""
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
    template, marks = renderer.template, renderer.template.thoughts
    # The prompt holds an empty thought (thinking is disabled), so no model would write one here.
    if marks and not marks.opened and template.opener.strip() and message.thought.strip():
        raise _not_written("a thought after its prompts; try template_args={enable_thinking: true}")
    if not message.calls:
        return renderer.encode_turn(_whole(renderer, message))
    # The template itself writes calls. Render the chat with this reply in a copy of the tree: the
    # tokens after the prompt are what the model would sample.
    plain = replace(_turn(renderer, message, parent, ()), draw=1)
    trial = Tree(tree.task, tree.stage, tree.iteration, dict(tree.turns), dict(tree.requests))
    trial.add(plain)
    chat = (*history, Message(ASSISTANT, turn=plain.id))
    full_ids = renderer.render(chat, trial, ASSISTANT, generation=False, tools=tools)
    size = common_length(prompt, full_ids)
    rest, ids = renderer.decode(prompt[size:]).strip(), full_ids[size:]
    # The chat may lack a thought that the prompt opened, but nothing else of the prompt.
    if rest and not (marks and marks.opened and rest == template.opener.strip()):
        raise _not_written("this call after its prompt")
    # Prompts may lack the header (DiffusionGemma after results), or open a thought that the text lacks.
    header = renderer.control.encode([template.core])
    ids = ids[len(header) :] if ids[: len(header)] == header else ids
    ids = renderer.encode_turn("", end=False) + ids if rest else ids
    # A template may omit text, calls or the thought of a message with calls. Training on the rest
    # would teach another message, so the row is refused.
    text, names = renderer.decode(ids), [call.name for call in message.calls]
    opening = renderer.tools.required().opening.search(text)
    content = renderer.control.break_up(message.content.strip(), ASSISTANT)
    if opening and content not in text[: opening.start()]:
        raise _not_written("the text of a message before its calls")
    if any(text.count(name) < names.count(name) for name in names):
        raise _not_written("all calls of a message")
    # Cut after the last end of turn, since templates add a line break; or add the end after calls.
    ends = [index for index, token in enumerate(ids) if token in renderer.end_ids]
    ids = ids[: ends[-1] + 1] if ends else ids + (tuple(renderer.tools.ends)[:1] or renderer.end)
    # The thought is missing. Insert it before the content, if the tokens begin with the content.
    if marks and message.thought.strip() not in text:
        content_ids = renderer.encode_turn(message.content, end=False)
        if ids[: len(content_ids)] != content_ids:
            raise _not_written("the thought of a message that calls")
        ids = renderer.encode_turn(_whole(renderer, message), end=False) + ids[len(content_ids) :]
    return ids


def _not_written(part: str) -> UserError:
    return UserError(f"the chat template does not write {part}", "use a model whose template does")
