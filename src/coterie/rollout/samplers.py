"""How an agent's next turn is made: from the tokens of an engine, or as text by an endpoint.

A sampler is asked with messages and gives a turn. It keeps nothing between turns: what an agent has
seen and said so far is in the :class:`AgentContext` of its episode.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coterie.config.text import shallow
from coterie.engines.endpoint import Endpoint
from coterie.engines.messages import EndpointCall, Reply, Utterance
from coterie.engines.protocol import Completion, Engine, EngineError, Sampling
from coterie.models.call_syntaxes import whole_text
from coterie.tools.tags import closing
from coterie.trajectories.calls import Tool, ToolCall, call_id, place
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import (
    THOUGHT,
    Finish,
    Message,
    Part,
    PrivilegeError,
    Request,
    Sample,
    Speaker,
    Turn,
    make_turn,
)
from coterie.trajectories.view import Render

SAMPLED = "sampled"
CUT = "not run: the message was cut off before the end of the call"
NAMELESS = "not run: the call has no name"
MIN_ROOM = 8
"""Tokens that must be left of the context for a turn to be asked for."""


@dataclass(slots=True)
class AgentContext:
    """What an agent has seen and said so far, for storing its next request as a delta."""

    turn: str | None = None
    ids: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()

    def add(self, response: "Response", shown: tuple[Message, ...]) -> None:
        """Take in a turn of the agent's own, said when it was shown these messages."""
        assert response.request is not None, "only turns with tokens are stored as deltas"
        self.turn = response.turn.id
        self.ids = self.ids[: response.request.keep] + response.request.ids + response.turn.ids
        self.messages = (*shown, Message("assistant", turn=response.turn.id))


@dataclass(frozen=True, slots=True)
class Response:
    """A turn that was just made."""

    turn: Turn
    request: Request | None
    tokens: int
    """How many tokens it has, as its maker counts."""
    reasoning_tokens: int = 0
    """Tokens of the thought, as a server counts them."""

    @property
    def thought_tokens(self) -> int:
        return self.turn.thought_tokens or self.reasoning_tokens

    @property
    def truncated(self) -> bool:
        """Whether it ran to the limit of tokens, or of the context."""
        return self.turn.truncated


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a sampler needs to know to speak."""

    tree: Tree
    parent: str
    """The node after which the turn comes."""
    agent: str
    shown: tuple[Message, ...]
    seed: int
    draw: int
    tools: tuple[Tool, ...] = ()
    """What the agent may call in its model's own syntax; none where calls are tags, which its messages teach."""
    stop: tuple[str, ...] = ()
    """Stop strings, besides the sampler's own; the one that ended a turn is part of its text."""
    task: Task | None = None
    """For scripts, which know more than they are shown."""

    def request(self, prompt_ids: tuple[int, ...], context: AgentContext) -> Request:
        """The request of a turn, once the messages are rendered: a delta on what the agent had before."""
        return Request.make(
            self.agent,
            self.parent,
            context.turn,
            prompt_ids,
            self.shown,
            context.ids,
            context.messages,
            self.tools,
        )


ReadCalls = Callable[[str, Finish, Sequence[Tool]], tuple[ToolCall, ...]]
"""(text, why it ended, tools) -> the calls of a message."""


SplitTurn = Callable[[str, str, str, Sequence[int]], tuple[Part, ...]]
"""(text, agent, source, ids) -> the parts of a turn, its thought apart."""


class Sampler(Protocol):
    """Makes turns. Raises ``EngineError`` if it can't."""

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """The agent's next turn; ``context`` is brought up to date."""
        ...


class CandidateSampler(Sampler, Protocol):
    """Makes several turns of one prompt, which trees grow by."""

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        """Several ways to say the turn, one for each seed; ``context`` stays as it is.

        ``draws`` tell equal ones apart; without them they are one turn.
        """
        ...


class OutOfContext(EngineError):
    """A prompt leaves no room for a turn in the model's context."""


class TokenSampler:
    """Speaks by an engine: exact tokens in, exact tokens out."""

    def __init__(
        self,
        engine: Engine,
        render: Render,
        sampling: Sampling,
        context_length: int,
        calls: ReadCalls | None = None,
        parts: SplitTurn | None = None,
    ) -> None:
        """``calls`` reads the calls of a message (``ChatRenderer.calls``), where agents have tools of their model's.

        ``parts`` takes thoughts apart (``ChatRenderer.parts``); without it a message is all said to everybody.
        """
        self.engine = engine
        self.render = render
        self.sampling = sampling
        self.context_length = context_length
        self.calls = calls
        self.parts = parts

    def at(self, temperature: float) -> "TokenSampler":
        sampling = replace(self.sampling, temperature=temperature)
        return TokenSampler(
            self.engine, self.render, sampling, self.context_length, self.calls, self.parts
        )

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """One completion of the rendered messages, at most as long as the context has room."""
        (response,) = await self.candidates(prompt, context, [prompt.seed])
        context.add(response, prompt.shown)
        return response

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        """Several ways to say the turn, one for each seed; the prompt is read once.

        ``draws`` tell equal ones apart; without them they are one turn. ``context`` stays as it is, for
        only some of them may be gone on from (:meth:`AgentContext.add`).
        """
        prompt_ids = self.render(prompt.shown, prompt.tree, prompt.agent, tools=prompt.tools)
        request = prompt.request(prompt_ids, context)
        completions = await self.engine.sample(
            prompt_ids, seeds, self._within(prompt_ids, prompt.stop)
        )
        draws = draws or [prompt.draw] * len(seeds)
        return [
            self._response(prompt, request, *one) for one in zip(completions, draws, strict=True)
        ]

    def _response(
        self, prompt: Prompt, request: Request, completion: Completion, draw: int
    ) -> Response:
        stop = completion.stop if completion.stop in prompt.stop else ""
        calls: tuple[ToolCall, ...] = ()
        if prompt.tools:
            assert self.calls is not None, "a prompt with tools of the model's own needs its syntax"
            calls = self.calls(completion.text, completion.finish, prompt.tools)
        text, ids = completion.text + stop, completion.ids
        parts = self.parts(text, prompt.agent, SAMPLED, ids) if self.parts else None
        turn = make_turn(
            prompt.parent,
            Speaker("agent", prompt.agent),
            parts or [Part(text, source=SAMPLED)],
            sample=self._sample(request.id, completion),
            calls=calls,
            draw=draw,
        )
        return Response(turn, request, len(completion.ids))

    def _within(self, prompt_ids: Sequence[int], stop: tuple[str, ...]) -> Sampling:
        room = self.context_length - len(prompt_ids)
        if room < MIN_ROOM:
            raise OutOfContext(
                f"out of context: the dialogue is {len(prompt_ids)} tokens long, and "
                f"{self.engine.policy} takes {self.context_length}"
            )
        most = min(room, self.sampling.max_tokens)
        if most == self.sampling.max_tokens and not stop:
            return self.sampling
        return replace(self.sampling, max_tokens=most, stop=(*self.sampling.stop, *stop))

    def _sample(self, request: str, completion: Completion) -> Sample:
        return Sample(
            request,
            completion.ids,
            completion.logprobs,
            completion.finish,
            self.engine.policy,
            self.engine.version,
            completion.seed,
            self.sampling.temperature,
            self.sampling.top_p,
        )


class TextSampler:
    """Speaks by an endpoint: text in, text out, no tokens; for evaluation, never for training.

    A turn's end is what the endpoint says; a seed is passed on, and may be ignored there.
    """

    def __init__(self, endpoint: Endpoint, sampling: Sampling) -> None:
        self.endpoint = endpoint
        self.sampling = sampling

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        reply = await self.endpoint.chat(
            utterances(prompt),
            max_tokens=self.sampling.max_tokens,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            stop=(*self.sampling.stop, *prompt.stop),
            seed=prompt.seed % 2**31,
            tools=prompt.tools,
        )
        model = self.endpoint.settings.model
        text, stop = _until_stop(reply.text, prompt.stop)
        if not stop and reply.finish == "stop":
            stop = reply.stop or closing(text, prompt.stop)
        text += stop if stop in prompt.stop else ""
        agent = frozenset({prompt.agent})
        thought = [Part(reply.thought, agent, THOUGHT)] if reply.thought else []
        turn = make_turn(
            prompt.parent,
            Speaker("agent", prompt.agent),
            [*thought, Part(text, source=f"endpoint:{model}")],
            calls=_calls(reply) if prompt.tools else (),
            author=f"endpoint:{model}",
            draw=prompt.draw,
            truncated=reply.finish == "length" and not stop,
        )
        return Response(turn, None, reply.completion_tokens, reply.thought_tokens)


def _calls(reply: Reply) -> tuple[ToolCall, ...]:
    """The calls of a reply; the last one of a reply that was cut off is not run."""
    last = len(reply.calls) - 1 if reply.finish == "length" else -1
    return tuple(
        ToolCall(
            call_id(number),
            whole_text(one.name),
            whole_text(one.arguments),
            CUT if number == last else "" if one.name else NAMELESS,
        )
        for number, one in enumerate(reply.calls)
    )


def _until_stop(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """A text before the first stop string in it, and that string: some endpoints go on after it."""
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, ""
    place, stop = min(found)
    return text[:place], stop


def _text_for(reader: str, turn: Turn) -> str:
    """Return the text of a turn for a reader without thoughts, or the results of calls."""
    if not turn.parts:
        return "\n".join(result.text for result in turn.results)
    parts = (part for part in turn.parts if part.source != THOUGHT)
    return "".join(part.text for part in parts if part.visible_to(reader))


def utterances(prompt: Prompt) -> list[Utterance]:
    """Messages as plain text, and with tools of the model's own calls and results as such.

    Calls are numbered through the dialogue, in nine letters and digits, which every server takes.
    """
    found: list[Utterance] = []
    asked = 0
    for message in prompt.shown:
        turn = None if message.turn is None else prompt.tree.turns[message.turn]
        if turn is None or not prompt.tools:
            found.append(utterance(message, prompt))
        elif turn.calls and message.role == "assistant":
            asked += 1
            calls = tuple(
                EndpointCall(_call_name(asked, number), one.name or "unnamed", _arguments(one))
                for number, one in enumerate(turn.calls)
            )
            found.append(Utterance("assistant", _text_for(prompt.agent, turn), calls))
        elif turn.results and not turn.parts and message.role == "tool":
            instead = "".join(part.text for part in message.parts)
            found += [
                Utterance(
                    "tool", instead or one.text, call_id=_call_name(asked, place(one.call_id))
                )
                for one in turn.results
            ]
        else:
            found.append(utterance(message, prompt))
    return found


def _call_name(asked: int, number: int) -> str:
    return f"c{asked:04}{number:04}"


def _arguments(call: ToolCall) -> str:
    """A call's arguments as servers take them: what is no JSON object is a text in one."""
    try:
        if isinstance(shallow(json.loads(call.arguments)), dict):
            return call.arguments
    except (ValueError, RecursionError):
        pass
    return json.dumps({"text": call.arguments}, ensure_ascii=False)


def utterance(message: Message, prompt: Prompt) -> Utterance:
    """A message as plain text; refused (``PrivilegeError``) if the agent may not see all of it."""
    role = "user" if message.role == "tool" or message.role == "inline" else message.role
    if message.turn is not None:
        turn = prompt.tree.turns[message.turn]
        return Utterance(role, _text_for(prompt.agent, turn))
    for part in message.parts:
        if not part.visible_to(prompt.agent):
            raise PrivilegeError(f"{prompt.agent!r} may not see a part from {part.source}")
    return Utterance(role, "".join(part.text for part in message.parts))
