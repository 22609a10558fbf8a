"""``/v1/completions``: from what was asked to the engine and back."""

import asyncio
import secrets
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, TypeVar

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, EngineError
from coterie.engines.serving.answered import (
    CachedTokens,
    CompletionAnswer,
    CompletionChoice,
    Scored,
    TokenLogprobs,
    Usage,
)
from coterie.engines.serving.asked import CompletionAsked, SamplingAsked
from coterie.engines.serving.errors import Refused

Result = TypeVar("Result")
Scores = list[dict[int, Scored] | None]


async def complete(engine: InProcessEngine, asked: CompletionAsked) -> CompletionAnswer:
    """Sample (or score) every prompt; raises :class:`Refused` for what the model can't take."""
    prompts = [_ids(engine, prompt) for prompt in asked.prompts()]
    check(engine, asked, prompts, asked.max_tokens)
    calls = [sample(engine, asked, ids, asked.max_tokens) for ids in prompts]
    said, scores = await _all(calls), await _scores(engine, asked, prompts)
    found = [
        (ids, one, score)
        for ids, ones, score in zip(prompts, said, scores, strict=True)
        for one in ones
    ]
    choices = [_choice(engine, asked, index, *one) for index, one in enumerate(found)]
    return CompletionAnswer(
        id=f"cmpl-{secrets.token_hex(12)}",
        created=int(time.time()),
        model=asked.model,
        choices=choices,
        usage=usage(prompts, said),
    )


def check(
    engine: InProcessEngine,
    asked: SamplingAsked,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
) -> None:
    """Refuse prompts that the model can't take, and stops that it does not know."""
    for ids in prompts:
        try:
            engine.check(ids, max_tokens)
        except EngineError as error:
            raise Refused(400, str(error), param="prompt") from error
    ends = engine.loaded.renderer.end_ids
    if others := set(asked.stop_token_ids or ()) - ends:
        raise Refused(
            400,
            f"stop_token_ids: {sorted(others)} do not end a turn of this model, and only ids that "
            f"do ({sorted(ends)}) can stop it; use stop strings",
            param="stop_token_ids",
        )


async def sample(
    engine: InProcessEngine, asked: SamplingAsked, prompt: Sequence[int], max_tokens: int
) -> list[Completion]:
    """The completions of one prompt; empty ones where no tokens are wanted."""
    if not max_tokens:
        return [Completion((), (), "", "length", seed) for seed in asked.seeds()]
    return await engine.sample(prompt, asked.seeds(), asked.sampling(max_tokens, engine.timeout))


def finish_reason(said: Completion) -> Literal["stop", "length"]:
    """Why it ended, in the protocol's words."""
    return "length" if said.finish == "length" else "stop"


def shown(
    engine: InProcessEngine, asked: SamplingAsked, said: Completion
) -> tuple[str, str | int | None]:
    """The text of a completion as it was asked for, and what stopped it."""
    ids, keep = list(said.ids), asked.include_stop_str_in_output
    if said.finish == "end":
        reason = ids[-1] if ids[-1] in (asked.stop_token_ids or ()) else None
        return decoded(engine, asked, ids if keep else ids[:-1]), reason
    text = decoded(engine, asked, ids)
    found = [(place, stop) for stop in asked.stops if (place := text.find(stop)) >= 0]
    if said.finish == "length" or not found:
        return text, None
    place, stop = min(found)
    return text[: place + len(stop) * keep], stop


def token_logprobs(engine: InProcessEngine, said: Completion) -> TokenLogprobs:
    """Its ids' log-probs, with the text of each."""
    decode = engine.loaded.renderer.decode
    return TokenLogprobs(
        tokens=[decode([token]) for token in said.ids], token_logprobs=list(said.logprobs)
    )


def usage(prompts: Sequence[Sequence[int]], said: Sequence[Sequence[Completion]]) -> Usage:
    """Tokens read, each prompt once whatever its number of completions, and sampled."""
    read = sum(map(len, prompts))
    sampled = sum(len(one.ids) for ones in said for one in ones)
    cached = sum(ones[0].cached for ones in said)
    return Usage(
        prompt_tokens=read,
        completion_tokens=sampled,
        total_tokens=read + sampled,
        prompt_tokens_details=CachedTokens(cached_tokens=cached),
    )


def _choice(
    engine: InProcessEngine,
    asked: CompletionAsked,
    index: int,
    prompt: list[int],
    said: Completion,
    scores: Scores | None,
) -> CompletionChoice:
    text, reason = shown(engine, asked, said)
    return CompletionChoice(
        index=index,
        text=text,
        finish_reason=finish_reason(said),
        stop_reason=reason,
        token_ids=list(said.ids) if asked.return_token_ids else None,
        prompt_token_ids=prompt if asked.return_token_ids else None,
        logprobs=None if asked.logprobs is None else token_logprobs(engine, said),
        prompt_logprobs=scores,
    )


async def _scores(
    engine: InProcessEngine, asked: CompletionAsked, prompts: list[list[int]]
) -> list[Scores | None]:
    """Of each prompt's ids at temperature 1; prompts that begin alike are scored together."""
    if asked.prompt_logprobs is None:
        return [None] * len(prompts)
    found: list[Scores | None] = [[None] for _ in prompts]
    groups: dict[int, list[int]] = {}
    for index, ids in enumerate(prompts):
        if len(ids) > 1:
            groups.setdefault(ids[0], []).append(index)
    calls = [engine.logprobs([i], [prompts[m][1:] for m in ms]) for i, ms in groups.items()]
    for members, values in zip(groups.values(), await asyncio.gather(*calls), strict=True):
        for index, logprobs in zip(members, values, strict=True):
            pairs = zip(prompts[index][1:], logprobs, strict=True)
            found[index] = [None, *({token: Scored(logprob=value)} for token, value in pairs)]
    return found


def _ids(engine: InProcessEngine, prompt: str | list[int]) -> list[int]:
    """A prompt's ids; text gets the tokens that the tokenizer adds to a whole text."""
    return engine.loaded.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt


def decoded(engine: InProcessEngine, asked: SamplingAsked, ids: Sequence[int]) -> str:
    """The text of ids, with or without control tokens as asked for."""
    text = engine.loaded.tokenizer.decode(
        list(ids), skip_special_tokens=asked.skip_special_tokens, clean_up_tokenization_spaces=False
    )
    assert isinstance(text, str)
    return text


async def _all(calls: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Results in order; if one fails the others are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]
