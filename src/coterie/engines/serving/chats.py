"""``/v1/chat/completions``: messages by the model's chat template to token ids, and a reply.

Tools are shown by the template, and calls are read in the syntax that the template writes. A reply whose calls can't
all be read, or that is cut within one, is text: half a call is never given as one.
"""

import secrets
import time
from collections.abc import Iterator, Sequence

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion
from coterie.engines.serving.completions import (
    check,
    finish_reason,
    sample,
    shown,
    token_logprobs,
    usage,
)
from coterie.engines.serving.errors import RequestRefused
from coterie.engines.serving.requests import ChatMessage, ChatRequest
from coterie.engines.serving.responses import (
    CallReply,
    ChatChoice,
    ChatFinish,
    ChatLogprobs,
    ChatReply,
    ChatResponse,
    ChatTokenLogprob,
    Delta,
    FunctionCalled,
)
from coterie.trajectories.calls import ToolCall, ToolResult, call_id
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Part, Role, Speaker, make_turn

READER = "assistant"


def chat_prompt(engine: InProcessEngine, body: ChatRequest) -> tuple[int, ...]:
    """The ids of a chat up to the reply.

    No message can forge another: control tokens are the template's alone. Raises
    ``UserError`` for roles that the template refuses, and ``Refused`` for a chat that is too long.
    """
    tree = Tree("chat", "serve", 0)
    messages = list(_messages(body.messages, tree))
    ids = engine.loaded.renderer.render(messages, tree, READER, tools=body.offered)
    check(engine, body, [ids], room(engine, body, ids))
    return ids


def room(engine: InProcessEngine, body: ChatRequest, prompt: Sequence[int]) -> int:
    """The most tokens of the reply: as asked for, or what the context still takes."""
    left = max(engine.loaded.context_length - len(prompt), 1)
    return body.max_completion_tokens or body.max_tokens or left


async def complete_chat(
    engine: InProcessEngine, body: ChatRequest, prompt: tuple[int, ...]
) -> ChatResponse:
    """Sample the replies to a chat."""
    completions = await sample(engine, body, prompt, room(engine, body, prompt))
    return ChatResponse(
        id=new_id(),
        created=int(time.time()),
        model=body.model,
        choices=[_choice(engine, body, index, one) for index, one in enumerate(completions)],
        usage=usage([prompt], [completions]),
        prompt_token_ids=list(prompt) if body.return_token_ids else None,
    )


def _messages(given: Sequence[ChatMessage], tree: Tree) -> Iterator[Message]:
    """A chat's messages; calls and their results are turns of ``tree``."""
    calls: dict[str, str] = {}
    results: list[ToolResult] = []
    last = tree.root
    role: Role
    for number, one in enumerate(given):
        if one.role == "tool":
            if (place := calls.pop(one.tool_call_id or "", None)) is None:
                raise RequestRefused(
                    400,
                    f"messages[{number}] answers {one.tool_call_id!r}, which is not an open call of the message with "
                    "tool_calls before it",
                    param="messages",
                )
            results.append(ToolResult(place, one.text))
            if number + 1 < len(given) and given[number + 1].role == "tool":
                continue
            turn = make_turn(last, Speaker("tool", "tools"), [], results=tuple(results))
            role, results = "tool", []
        elif one.tool_calls:
            calls = {call.id: call_id(place) for place, call in enumerate(one.tool_calls)}
            made = (call.function for call in one.tool_calls)
            role = "assistant"
            turn = make_turn(
                last,
                Speaker("agent", READER),
                [Part(one.text)],
                calls=tuple(ToolCall(call_id(n), f.name, f.arguments) for n, f in enumerate(made)),
            )
        else:
            yield Message.of("system" if one.role == "developer" else one.role, one.text)
            continue
        tree.add(turn)
        last = turn.id
        yield Message(role, turn=turn.id)


def reply_of(
    engine: InProcessEngine, body: ChatRequest, completion: Completion
) -> tuple[Delta, ChatFinish]:
    """What the model says besides its calls, its calls, and why it ended."""
    if body.offered:
        syntax = engine.loaded.renderer.tools.required()
        text, calls = syntax.split(completion.text, completion.finish, body.offered)
        if calls and not any(call.error for call in calls):
            made = [
                CallReply(
                    id=f"call_{secrets.token_hex(12)}",
                    function=FunctionCalled(name=one.name, arguments=one.arguments),
                )
                for one in calls
            ]
            return Delta(content=text or None, tool_calls=made), "tool_calls"
    return Delta(content=shown(engine, body, completion)[0]), finish_reason(completion)


def new_id() -> str:
    """A name for one answer."""
    return f"chatcmpl-{secrets.token_hex(12)}"


def _choice(
    engine: InProcessEngine, body: ChatRequest, index: int, completion: Completion
) -> ChatChoice:
    said, finish = reply_of(engine, body, completion)
    return ChatChoice(
        index=index,
        message=ChatReply(content=said.content, tool_calls=said.tool_calls),
        finish_reason=finish,
        stop_reason=shown(engine, body, completion)[1],
        token_ids=list(completion.ids) if body.return_token_ids else None,
        logprobs=_logprobs(engine, completion) if body.logprobs else None,
    )


def _logprobs(engine: InProcessEngine, completion: Completion) -> ChatLogprobs:
    found = token_logprobs(engine, completion)
    pairs = zip(found.tokens, found.token_logprobs, strict=True)
    return ChatLogprobs(
        content=[
            ChatTokenLogprob(token=text, logprob=logprob, bytes=list(text.encode()))
            for text, logprob in pairs
        ]
    )
