"""``/v1/completions``: from what was asked to the engine and back."""

import asyncio
import secrets
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, TypeVar

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, EngineError
from coterie.engines.serving.answers import RequestRefused
from coterie.engines.serving.requests import CompletionRequest, SamplingRequest
from coterie.engines.serving.responses import (
    CachedTokens,
    CompletionChoice,
    CompletionResponse,
    PromptLogprob,
    TokenLogprobs,
    Usage,
)

Result = TypeVar("Result")
Scores = list[dict[int, PromptLogprob] | None]


async def complete(engine: InProcessEngine, body: CompletionRequest) -> CompletionResponse:
    """Sample (or score) every prompt; raises :class:`RequestRefused` for what the model can't take."""
    prompts = [_ids(engine, prompt) for prompt in body.prompts()]
    check(engine, body, prompts, body.max_tokens)
    calls = [sample(engine, body, ids, body.max_tokens) for ids in prompts]
    completions, scores = await _all(calls), await _scores(engine, body, prompts)
    found = [
        (ids, one, score)
        for ids, ones, score in zip(prompts, completions, scores, strict=True)
        for one in ones
    ]
    choices = [_choice(engine, body, index, *one) for index, one in enumerate(found)]
    return CompletionResponse(
        id=f"cmpl-{secrets.token_hex(12)}",
        created=int(time.time()),
        model=body.model,
        choices=choices,
        usage=usage(prompts, completions),
    )


def check(
    engine: InProcessEngine,
    body: SamplingRequest,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
) -> None:
    """Refuse prompts that the model can't take, and stops that it does not know."""
    for ids in prompts:
        try:
            engine.check(ids, max_tokens)
        except EngineError as error:
            raise RequestRefused(400, str(error), param="prompt") from error
    ends = engine.loaded.renderer.end_ids
    if others := set(body.stop_token_ids or ()) - ends:
        raise RequestRefused(
            400,
            f"stop_token_ids: {sorted(others)} do not end a turn of this model, and only ids that "
            f"do ({sorted(ends)}) can stop it; use stop strings",
            param="stop_token_ids",
        )


async def sample(
    engine: InProcessEngine, body: SamplingRequest, prompt: Sequence[int], max_tokens: int
) -> list[Completion]:
    """The completions of one prompt; empty ones where no tokens are wanted."""
    if not max_tokens:
        return [Completion((), (), "", "length", seed) for seed in body.seeds()]
    return await engine.sample(prompt, body.seeds(), body.sampling(max_tokens, engine.timeout))


def finish_reason(completion: Completion) -> Literal["stop", "length"]:
    """Why it ended, in the protocol's words."""
    return "length" if completion.finish == "length" else "stop"


def shown(
    engine: InProcessEngine, body: SamplingRequest, completion: Completion
) -> tuple[str, str | int | None]:
    """The text of a completion as it was asked for, and what stopped it."""
    ids, keep = list(completion.ids), body.include_stop_str_in_output
    if completion.finish == "end":
        reason = ids[-1] if ids[-1] in (body.stop_token_ids or ()) else None
        return decoded(engine, body, ids if keep else ids[:-1]), reason
    text = decoded(engine, body, ids)
    found = [(place, stop) for stop in body.stops if (place := text.find(stop)) >= 0]
    if completion.finish == "length" or not found:
        return text, None
    place, stop = min(found)
    return text[: place + len(stop) * keep], stop


def token_logprobs(engine: InProcessEngine, completion: Completion) -> TokenLogprobs:
    """Its ids' log-probs, with the text of each."""
    decode = engine.loaded.renderer.decode
    return TokenLogprobs(
        tokens=[decode([token]) for token in completion.ids],
        token_logprobs=list(completion.logprobs),
    )


def usage(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[Completion]]) -> Usage:
    """Tokens read, each prompt once whatever its number of completions, and sampled."""
    read = sum(map(len, prompts))
    sampled = sum(len(one.ids) for ones in completions for one in ones)
    cached = sum(ones[0].cached for ones in completions)
    return Usage(
        prompt_tokens=read,
        completion_tokens=sampled,
        total_tokens=read + sampled,
        prompt_tokens_details=CachedTokens(cached_tokens=cached),
    )


def _choice(
    engine: InProcessEngine,
    body: CompletionRequest,
    index: int,
    prompt: list[int],
    completion: Completion,
    scores: Scores | None,
) -> CompletionChoice:
    text, reason = shown(engine, body, completion)
    return CompletionChoice(
        index=index,
        text=text,
        finish_reason=finish_reason(completion),
        stop_reason=reason,
        token_ids=list(completion.ids) if body.return_token_ids else None,
        prompt_token_ids=prompt if body.return_token_ids else None,
        logprobs=None if body.logprobs is None else token_logprobs(engine, completion),
        prompt_logprobs=scores,
    )


async def _scores(
    engine: InProcessEngine, body: CompletionRequest, prompts: list[list[int]]
) -> list[Scores | None]:
    """Of each prompt's ids at temperature 1; prompts that begin alike are scored together."""
    if body.prompt_logprobs is None:
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
            found[index] = [
                None,
                *({token: PromptLogprob(logprob=value)} for token, value in pairs),
            ]
    return found


def _ids(engine: InProcessEngine, prompt: str | list[int]) -> list[int]:
    """A prompt's ids; text gets the tokens that the tokenizer adds to a whole text."""
    return engine.loaded.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt


def decoded(engine: InProcessEngine, body: SamplingRequest, ids: Sequence[int]) -> str:
    """The text of ids, with or without control tokens as asked for."""
    text = engine.loaded.tokenizer.decode(
        list(ids), skip_special_tokens=body.skip_special_tokens, clean_up_tokenization_spaces=False
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
