"""``/v1/chat/completions``: messages by the model's chat template to token ids, and a reply."""

import secrets
import time
from collections.abc import Sequence

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
from coterie.engines.serving.requests import ChatRequest
from coterie.engines.serving.responses import (
    ChatChoice,
    ChatLogprobs,
    ChatReply,
    ChatResponse,
    ChatTokenLogprob,
)
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message

READER = "assistant"


def chat_prompt(engine: InProcessEngine, body: ChatRequest) -> tuple[int, ...]:
    """The ids of a chat up to the reply.

    No message can forge another: control tokens are the template's alone. Raises
    ``UserError`` for roles that the template refuses, and ``Refused`` for a chat that is too long.
    """
    messages = [
        Message.of("system" if one.role == "developer" else one.role, one.text)
        for one in body.messages
    ]
    ids = engine.loaded.renderer.render(messages, Tree("chat", "serve", 0), READER)
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


def new_id() -> str:
    """A name for one answer."""
    return f"chatcmpl-{secrets.token_hex(12)}"


def _choice(
    engine: InProcessEngine, body: ChatRequest, index: int, completion: Completion
) -> ChatChoice:
    text, reason = shown(engine, body, completion)
    return ChatChoice(
        index=index,
        message=ChatReply(content=text),
        finish_reason=finish_reason(completion),
        stop_reason=reason,
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
