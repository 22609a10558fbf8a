"""``/v1/chat/completions``: messages by the model's chat template to token ids, and a reply."""

import secrets
import time
from collections.abc import Sequence

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion
from coterie.engines.serving.answered import (
    ChatAnswer,
    ChatChoice,
    ChatLogprobs,
    ChatReply,
    ChatTokenLogprob,
)
from coterie.engines.serving.asked import ChatAsked
from coterie.engines.serving.completions import (
    check,
    finish_reason,
    sample,
    shown,
    token_logprobs,
    usage,
)
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message

READER = "assistant"


def chat_prompt(engine: InProcessEngine, asked: ChatAsked) -> tuple[int, ...]:
    """The ids of a chat up to the reply.

    No message can forge another: control tokens are the template's alone. Raises
    ``UserError`` for roles that the template refuses, and ``Refused`` for a chat that is too long.
    """
    messages = [
        Message.of("system" if one.role == "developer" else one.role, one.text)
        for one in asked.messages
    ]
    ids = engine.loaded.renderer.render(messages, Tree("chat", "serve", 0), READER)
    check(engine, asked, [ids], room(engine, asked, ids))
    return ids


def room(engine: InProcessEngine, asked: ChatAsked, prompt: Sequence[int]) -> int:
    """The most tokens of the reply: as asked for, or what the context still takes."""
    left = max(engine.loaded.context_length - len(prompt), 1)
    return asked.max_completion_tokens or asked.max_tokens or left


async def complete_chat(
    engine: InProcessEngine, asked: ChatAsked, prompt: tuple[int, ...]
) -> ChatAnswer:
    """Sample the replies to a chat."""
    said = await sample(engine, asked, prompt, room(engine, asked, prompt))
    return ChatAnswer(
        id=new_id(),
        created=int(time.time()),
        model=asked.model,
        choices=[_choice(engine, asked, index, one) for index, one in enumerate(said)],
        usage=usage([prompt], [said]),
        prompt_token_ids=list(prompt) if asked.return_token_ids else None,
    )


def new_id() -> str:
    """A name for one answer."""
    return f"chatcmpl-{secrets.token_hex(12)}"


def _choice(engine: InProcessEngine, asked: ChatAsked, index: int, said: Completion) -> ChatChoice:
    text, reason = shown(engine, asked, said)
    return ChatChoice(
        index=index,
        message=ChatReply(content=text),
        finish_reason=finish_reason(said),
        stop_reason=reason,
        token_ids=list(said.ids) if asked.return_token_ids else None,
        logprobs=_logprobs(engine, said) if asked.logprobs else None,
    )


def _logprobs(engine: InProcessEngine, said: Completion) -> ChatLogprobs:
    found = token_logprobs(engine, said)
    pairs = zip(found.tokens, found.token_logprobs, strict=True)
    return ChatLogprobs(
        content=[
            ChatTokenLogprob(token=text, logprob=logprob, bytes=list(text.encode()))
            for text, logprob in pairs
        ]
    )
