"""How an agent's next turn is made: from the tokens of an engine.

A voice is asked with messages and gives a turn. It keeps nothing between turns: what an agent has
seen and said so far is in the :class:`Memory` of its episode.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coterie.engines.protocol import Completion, Engine, EngineError, Sampling
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Part, Request, Sample, Speaker, Turn, make_turn
from coterie.trajectories.view import Render

LEAST_ROOM = 8
"""Tokens that must be left of the context for a turn to be asked for."""


@dataclass(slots=True)
class Memory:
    """What an agent has seen and said so far, for storing its next request as a delta."""

    turn: str | None = None
    ids: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Utterance:
    """A turn that was just made."""

    turn: Turn
    request: Request | None
    cut: bool
    """Whether it ran to the limit of tokens, or of the context."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a voice needs to know to speak."""

    tree: Tree
    parent: str
    """The node after which the turn comes."""
    agent: str
    shown: tuple[Message, ...]
    seed: int
    draw: int


class Voice(Protocol):
    """Makes turns. Raises ``EngineError`` if it can't."""

    async def speak(self, ask: Ask, memory: Memory) -> Utterance:
        """The agent's next turn; ``memory`` is brought up to date."""
        ...


class TokenVoice:
    """Speaks by an engine: exact tokens in, exact tokens out."""

    def __init__(
        self, engine: Engine, render: Render, sampling: Sampling, context_length: int
    ) -> None:
        self.engine = engine
        self.render = render
        self.sampling = sampling
        self.context_length = context_length

    async def speak(self, ask: Ask, memory: Memory) -> Utterance:
        """One completion of the rendered messages, at most as long as the context has room."""
        prompt = self.render(ask.shown, ask.tree, ask.agent)
        request = Request.make(
            ask.agent, ask.parent, memory.turn, prompt, ask.shown, memory.ids, memory.messages
        )
        (completion,) = await self.engine.sample(prompt, [ask.seed], self._within(prompt))
        turn = make_turn(
            ask.parent,
            Speaker("agent", ask.agent),
            [Part(completion.text, source="sampled")],
            sample=self._sample(request.id, completion),
            draw=ask.draw,
        )
        memory.turn = turn.id
        memory.ids = prompt + completion.ids
        memory.messages = (*ask.shown, Message("assistant", turn=turn.id))
        return Utterance(turn, request, completion.finish == "length")

    def _within(self, prompt: Sequence[int]) -> Sampling:
        room = self.context_length - len(prompt)
        if room < LEAST_ROOM:
            raise EngineError(
                f"out of context: the dialogue is {len(prompt)} tokens long, and "
                f"{self.engine.policy} takes {self.context_length}"
            )
        if room >= self.sampling.max_tokens:
            return self.sampling
        return replace(self.sampling, max_tokens=room)

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
