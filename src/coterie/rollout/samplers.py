"""Samplers of an agent's next turn, without state: exact tokens from an engine, or text from an endpoint."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from coterie.config.folders import shallow
from coterie.engines.endpoint import Endpoint, Reply, Utterance
from coterie.engines.protocol import Completion, Engine, EngineError, Sampling
from coterie.environments.user_simulator import PERSON, UserSimulator
from coterie.models.call_syntaxes import whole_text
from coterie.record.rows import Render
from coterie.record.tree import Task, Tree
from coterie.record.turn import (
    SAMPLED,
    THOUGHT,
    Finish,
    Message,
    Part,
    PrivilegeError,
    Request,
    Sample,
    Speaker,
    Tool,
    ToolCall,
    Turn,
    call_id,
    make_turn,
    place,
)
from coterie.tools.calls import closing

if TYPE_CHECKING:
    from coterie.models.chat import ChatRenderer

CUT = "not run: the message was cut off before the end of the call"
NAMELESS = "not run: the call has no name"
MIN_ROOM = 8
"""Minimum number of free tokens of the context for a turn."""
TOKEN_CHARACTERS = 128
"""Characters of the longest tokens, which are white space in the vocabularies of GPT-4 and Qwen."""


@dataclass(frozen=True, slots=True)
class AgentContext:
    """Running prompt of an agent, which its next request is stored as a delta on."""

    turn: str | None = None
    ids: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()

    def after(self, turn: Turn, request: Request | None) -> "AgentContext":
        """Return the context with the messages of a request and the agent's turn."""
        assert request is not None, "only turns with tokens are stored as deltas"
        # The running prompt is the kept beginning, the request's new tokens and the sampled turn.
        reply = Message("assistant", turn=turn.id)
        kept_messages = self.messages[: request.keep_messages]
        ids = self.ids[: request.keep] + request.ids + turn.ids
        return AgentContext(turn.id, ids, (*kept_messages, *request.messages, reply))


@dataclass(frozen=True, slots=True)
class Response:
    """A new turn with its request."""

    turn: Turn
    request: Request | None
    tokens: int
    reasoning_tokens: int = 0

    @property
    def thought_tokens(self) -> int:
        return self.turn.thought_tokens or self.reasoning_tokens


@dataclass(frozen=True, slots=True)
class Prompt:
    """Input of a sampler."""

    tree: Tree
    parent: str
    agent: str
    messages: tuple[Message, ...]
    seed: int
    draw: int
    tools: tuple[Tool, ...] = ()
    """Tools called in the model's own syntax; empty where calls are tags, which the messages explain."""
    stop: tuple[str, ...] = ()
    """Stop strings in addition to the sampler's own; a turn includes the stop string that ended it."""
    task: Task | None = None
    """The whole task, for scripts and user simulators."""
    max_tokens: int | None = None
    """Limit of the turn's tokens in addition to the sampler's own."""

    def size(self) -> int:
        """Return the number of characters that nobody sampled."""
        turns = [self.tree.turns[m.turn] for m in self.messages if m.turn is not None]
        texts = [part.text for message in self.messages for part in message.parts]
        texts += [turn.text for turn in turns if turn.sample is None]
        texts += [result.text for turn in turns for result in turn.results]
        return sum(map(len, texts))

    def request(self, prompt_ids: tuple[int, ...], context: AgentContext) -> Request:
        ids, old = context.ids, context.messages
        return Request.make(
            self.agent, self.parent, context.turn, prompt_ids, self.messages, ids, old, self.tools
        )


ReadCalls = Callable[[str, Finish, Sequence[Tool]], tuple[ToolCall, ...]]
"""(text, finish reason, tools) -> calls of a message."""

SplitTurn = Callable[[str, str, str, Sequence[int]], tuple[Part, ...]]
"""(text, agent, source, ids) -> parts of a turn, with its thought as a separate part."""


class Sampler(Protocol):
    """Makes turns; raises ``EngineError`` on failure."""

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """Return the agent's next turn."""
        ...


class CandidateSampler(Protocol):
    """Makes several turns for one prompt, which trees branch with."""

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        """Return one turn for each seed.

        Equal turns with different ``draws`` are separate nodes; without ``draws`` they are one node.
        """
        ...


class OutOfContext(EngineError):
    """The prompt leaves too little room for a turn in the model's context."""


@dataclass(eq=False)
class TokenSampler:
    """Sampler with an engine: exact tokens in, exact tokens out.

    Args:
        context_length: Maximum tokens of prompt and turn.
        calls: Reads the calls of a message (``ChatRenderer.calls``); needed for tools of the model's own syntax.
        parts: Separates thoughts (``ChatRenderer.parts``); without it, all text is visible to everyone.
    """

    engine: Engine
    render: Render
    sampling: Sampling
    context_length: int
    calls: ReadCalls | None = None
    parts: SplitTurn | None = None

    @classmethod
    def of(
        cls, engine: Engine, renderer: "ChatRenderer", sampling: Sampling, context_length: int
    ) -> "TokenSampler":
        """Return a sampler that renders, reads calls and separates thoughts with one renderer."""
        return cls(
            engine, renderer.render, sampling, context_length, renderer.calls, renderer.parts
        )

    def at(self, temperature: float) -> "TokenSampler":
        return replace(self, sampling=replace(self.sampling, temperature=temperature))

    @property
    def width(self) -> int:
        return self.engine.width

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        (response,) = await self.candidates(prompt, context, [prompt.seed])
        return response

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        """Sample one turn for each seed with one pass over the prompt, within the free context."""
        # The tokens of a text that is far too long would take minutes in which nobody is answered.
        if (size := prompt.size()) > self.context_length * TOKEN_CHARACTERS:
            raise OutOfContext(
                f"out of context: the dialogue is {size} characters long, and "
                f"{self.engine.policy} takes {self.context_length} tokens"
            )
        prompt_ids = self.render(prompt.messages, prompt.tree, prompt.agent, tools=prompt.tools)
        request = prompt.request(prompt_ids, context)
        room, sampling = self.context_length - len(prompt_ids), self.sampling
        if room < MIN_ROOM:
            raise OutOfContext(
                f"out of context: the dialogue is {len(prompt_ids)} tokens long, and "
                f"{self.engine.policy} takes {self.context_length}"
            )
        room = room if prompt.max_tokens is None else min(room, prompt.max_tokens)
        if room < sampling.max_tokens or prompt.stop:
            # Ask for no more tokens than the context has left.
            max_tokens, stop = min(room, sampling.max_tokens), (*sampling.stop, *prompt.stop)
            sampling = replace(sampling, max_tokens=max_tokens, stop=stop)
        completions = await self.engine.sample(prompt_ids, seeds, sampling)
        draws = draws or [prompt.draw] * len(seeds)
        return [
            self._response(prompt, request, *completion_and_draw)
            for completion_and_draw in zip(completions, draws, strict=True)
        ]

    def _response(
        self, prompt: Prompt, request: Request, completion: Completion, draw: int
    ) -> Response:
        # Completions have no stop string in their text, but the environment needs it to read a call.
        stop = completion.stop if completion.stop in prompt.stop else ""
        calls: tuple[ToolCall, ...] = ()
        if prompt.tools:
            assert self.calls is not None, "tools of the model's own syntax need a reader of calls"
            calls = self.calls(completion.text, completion.finish, prompt.tools)
        text, ids = completion.text + stop, completion.ids
        parts = self.parts(text, prompt.agent, SAMPLED, ids) if self.parts else None
        engine, settings, versions = self.engine, self.sampling, completion.versions
        # Weights may be updated during a long turn; the version of the last token stands for it.
        version = versions[-1][0] if versions else engine.version
        behavior = (completion.logprobs, completion.finish, engine.policy, version)
        distribution = (completion.seed, settings.temperature, settings.top_p)
        # The spans are only stored if the tokens come from several versions.
        spans = versions if len(versions) > 1 else ()
        sample = Sample(request.id, completion.ids, *behavior, *distribution, spans)
        turn_parts, speaker = parts or [Part(text, source=SAMPLED)], Speaker("agent", prompt.agent)
        turn = make_turn(prompt.parent, speaker, turn_parts, sample=sample, calls=calls, draw=draw)
        return Response(turn, request, len(completion.ids))


@dataclass(eq=False)
class TextSampler:
    """Sampler with an endpoint: text in, text out, no tokens. For evaluation, never for training.

    The endpoint reports the finish reason, and may ignore the seed.
    """

    endpoint: Endpoint
    sampling: Sampling

    @property
    def width(self) -> int:
        return self.endpoint.settings.concurrency

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        max_tokens = self.sampling.max_tokens
        reply = await self.endpoint.chat(
            utterances(prompt),
            max_tokens=min(prompt.max_tokens or max_tokens, max_tokens),
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            stop=(*self.sampling.stop, *prompt.stop),
            # Servers often accept only signed 32-bit seeds.
            seed=prompt.seed % 2**31,
            tools=prompt.tools,
        )
        model = self.endpoint.settings.model
        text, stop = reply.text, ""
        if matches := [(text.index(stop), stop) for stop in prompt.stop if stop in text]:
            place_of_stop, stop = min(matches)  # some endpoints ignore stop strings
            text = text[:place_of_stop]
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
    """Convert the calls of a reply; the last call of a truncated reply is not run."""
    cut_call = len(reply.calls) - 1 if reply.finish == "length" else -1
    return tuple(
        ToolCall(
            call_id(number),
            whole_text(call.name),
            whole_text(call.arguments),
            CUT if number == cut_call else "" if call.name else NAMELESS,
        )
        for number, call in enumerate(reply.calls)
    )


def _text_for(reader: str, turn: Turn) -> str:
    """Return a turn's text or results for a reader, without thoughts."""
    if not turn.parts:
        return "\n".join(result.text for result in turn.results)
    parts = (part for part in turn.parts if part.source != THOUGHT)
    return "".join(part.text for part in parts if part.visible_to(reader))


def utterances(prompt: Prompt) -> list[Utterance]:
    """Convert messages to plain text, and calls and results of the model's own syntax to structured ones.

    Call ids number the calls of the dialogue in nine letters and digits, which every server accepts.
    """
    result: list[Utterance] = []
    calling = 0
    for message in prompt.messages:
        turn = None if message.turn is None else prompt.tree.turns[message.turn]
        # Calls written as tags are part of the text.
        if turn is None or not prompt.tools:
            result.append(utterance(message, prompt))
        elif turn.calls and message.role == "assistant":
            calling += 1
            calls = tuple(
                ToolCall(f"c{calling:04}{number:04}", call.name or "unnamed", _arguments(call))
                for number, call in enumerate(turn.calls)
            )
            result.append(Utterance("assistant", _text_for(prompt.agent, turn), calls))
        elif turn.results and not turn.parts and message.role == "tool":
            # Parts of the message replace the text of each result, as when old results are shortened.
            instead = "".join(part.text for part in message.parts)
            for call_result in turn.results:
                id_ = f"c{calling:04}{place(call_result.call_id):04}"
                result.append(Utterance("tool", instead or call_result.text, call_id=id_))
        else:
            result.append(utterance(message, prompt))
    return result


def _arguments(call: ToolCall) -> str:
    """Return a call's arguments as a JSON object; other text becomes its ``text`` field."""
    with suppress(ValueError, RecursionError):
        if isinstance(shallow(json.loads(call.arguments)), dict):
            return call.arguments
    return json.dumps({"text": call.arguments}, ensure_ascii=False)


def utterance(message: Message, prompt: Prompt) -> Utterance:
    """Convert a message to plain text. Raises ``PrivilegeError`` for a part that the agent may not see."""
    role = "user" if message.role == "tool" or message.role == "inline" else message.role
    if message.turn is not None:
        turn = prompt.tree.turns[message.turn]
        return Utterance(role, _text_for(prompt.agent, turn))
    # Last check before text leaves the run: secrets of other readers must never be sent.
    for part in message.parts:
        if not part.visible_to(prompt.agent):
            raise PrivilegeError(f"{prompt.agent!r} may not see a part from {part.source}")
    return Utterance(role, "".join(part.text for part in message.parts))


@dataclass(eq=False)
class UserSampler:
    """Sampler that passes the task and the dialogue to a user simulator."""

    simulator: UserSimulator

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        assert prompt.task is not None, "a user simulator needs a task"
        dialogue = (utterance(message, prompt) for message in prompt.messages)
        # For the simulator the roles are reversed: its own turns are the person's.
        names = {"assistant": PERSON}
        transcript = [
            (names.get(utterance.role, "agent"), utterance.text) for utterance in dialogue
        ]
        reply = await self.simulator.reply(prompt.task, transcript, prompt.seed)
        person, parts = Speaker("person", prompt.agent), [Part(reply or "…", source=PERSON)]
        turn = make_turn(prompt.parent, person, parts, author=self.simulator.name)
        return Response(turn, None, 0)

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        """Return one reply for all seeds: equal dialogues get equal replies."""
        response = await self.respond(prompt, context)
        return [response] * len(seeds)
