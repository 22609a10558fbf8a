"""A turn: one utterance, observation or tool result, with exactly the tokens that were sampled.

Types here: :class:`Part` (a piece of text or an image, who may see it, where it came from),
:class:`Message` (what a chat template renders), :class:`Request` (the prompt of a sampled turn, as
a delta), :class:`Sample` (what the engine returned), :class:`Turn` (a node of the tree).
"""

import hashlib
import json
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from coterie.config.text import encoded
from coterie.trajectories.calls import Tool, ToolCall, ToolResult, check_calls, in_order

SpeakerKind = Literal["agent", "person", "environment", "tool"]
Role = Literal["system", "user", "assistant", "tool", "inline"]
"""Whose a message is; ``inline`` is what the environment says within an agent's turn that a stop string ended."""
Finish = Literal["end", "stop_string", "length"]
"""Why sampling ended: an end-of-turn token, a stop string, or the limit of tokens."""


THOUGHT = "thought"
"""Source of the part of a turn that holds the thought of its agent, which nobody else may see."""


class PrivilegeError(Exception):
    """Something privileged was about to reach a reader who may not see it."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a turn or prompt."""

    text: str
    audience: frozenset[str] | None = None
    """Names that may see it; ``None`` is everybody."""
    source: str = "literal"
    """Where the text came from: ``literal``, ``task:FIELD``, ``secret:FIELD``, ``turn:ID``."""
    image: str | None = None
    """SHA-256 of an image that this part stands for (``text`` is then its description)."""
    span: tuple[int, int] | None = None
    """Half-open range in the turn's ids that this part's text came from, where known."""

    def visible_to(self, reader: str) -> bool:
        return self.audience is None or reader in self.audience


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who speaks: a kind and a name (``agent`` ``Alice``)."""

    kind: SpeakerKind
    name: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt: either literal parts, or a turn of the tree by id."""

    role: Role
    parts: tuple[Part, ...] = ()
    turn: str | None = None
    """Id of the turn that this message shows; its parts (or sampled ids) are then the content. Each result of a turn of
    results is shown as the parts of the message, if it has some."""

    @classmethod
    def of(cls, role: Role, text: str) -> "Message":
        """A message of one literal text that everybody may see."""
        return cls(role, (Part(text),))


@dataclass(frozen=True, slots=True)
class Request:
    """The prompt of one turn, stored as a delta on the agent's previous request.

    The agent's *running tokens* are its previous prompt plus what it then said. The prompt is
    the first ``keep`` running tokens followed by ``ids``. Where ``keep`` is all of them the prompt
    extends the conversation; where it is less, history was rewritten.
    """

    id: str
    agent: str
    parent: str
    """Id of the node after which the request was made."""
    previous: str | None
    """This agent's previous turn with a request on the path; ``None`` for its first request."""
    keep: int
    ids: tuple[int, ...]
    keep_messages: int
    """How many messages of the previous request stay in front of ``messages``."""
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    """All tools that the chat template showed in this prompt; those that are called by tags stand in its messages."""

    @classmethod
    def make(
        cls,
        agent: str,
        parent: str,
        previous: str | None,
        prompt: tuple[int, ...],
        messages: tuple[Message, ...],
        running: tuple[int, ...] = (),
        running_messages: tuple[Message, ...] = (),
        tools: tuple[Tool, ...] = (),
    ) -> "Request":
        """Store ``prompt`` and ``messages`` as deltas on what this agent had before.

        The id is a hash of all that is given, of the tools only where there are any.
        """
        keep = _common(prompt, running)
        keep_messages = _common(messages, running_messages)
        delta, new = prompt[keep:], messages[keep_messages:]
        seen = [[m.role, m.turn, [[p.text, p.source, p.image] for p in m.parts]] for m in new]
        offered = [[[t.name, t.description, t.parameters, t.alone] for t in tools]] if tools else []
        key = (agent, parent, previous, keep, delta, keep_messages, seen, *offered)
        id_ = digest("request", *key)
        return cls(id_, agent, parent, previous, keep, delta, keep_messages, new, tools)


@dataclass(frozen=True, slots=True)
class Sample:
    """What an engine returned for a request. Never edited."""

    request: str
    """Id of the :class:`Request` that it answers."""
    ids: tuple[int, ...]
    """All ids returned, the stop string or end-of-turn token included."""
    logprobs: tuple[float, ...]
    """Log-probability (nats) of each id under the behaviour distribution, rounded to float32, so
    that a sample is the same before and after the store."""
    finish: Finish
    policy: str
    version: str
    seed: int
    temperature: float
    top_p: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "logprobs", tuple(array("f", self.logprobs)))


@dataclass(frozen=True, slots=True)
class Turn:
    """A node of the tree."""

    id: str
    parent: str
    speaker: Speaker
    parts: tuple[Part, ...]
    ids: tuple[int, ...] = ()
    """The turn's tokens: those sampled, or for text that no policy of this run sampled its
    tokenisation, done once on entering the store (empty where it is never a training target)."""
    sample: Sample | None = None
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    author: str = ""
    """Who wrote an unsampled turn: ``script:NAME``, ``import:FILE``, ``environment``, ..."""
    draw: int = 0
    """Tells apart equal turns that were drawn separately."""
    request: str | None = None
    """Of an unsampled turn that may be trained on: id of the :class:`Request` that is its prompt."""
    truncated: bool = False
    """Whether it ran to the limit of tokens, or of the context; of a sampled turn, as its sample says."""

    def __post_init__(self) -> None:
        if self.sample is not None:
            object.__setattr__(self, "truncated", self.sample.finish == "length")

    @property
    def prompt(self) -> str | None:
        """Id of the request that the turn answers; ``None`` if it has none and is only context."""
        return self.sample.request if self.sample else self.request

    @property
    def text(self) -> str:
        """The text without the agent's thought: the part that others see and that answers are read from."""
        return "".join(part.text for part in self.parts if part.source != THOUGHT)

    @property
    def thought_tokens(self) -> int:
        """The number of tokens of the thought, its marks included."""
        spans = (part.span for part in self.parts if part.source == THOUGHT and part.span)
        return sum(stop - start for start, stop in spans)

    @property
    def whole_text(self) -> str:
        """The text with the agent's thought."""
        return "".join(part.text for part in self.parts)

    @property
    def writer(self) -> str:
        """Who wrote the tokens: ``POLICY@VERSION`` if sampled, else the author."""
        return f"{self.sample.policy}@{self.sample.version}" if self.sample else self.author


def make_turn(
    parent: str,
    speaker: Speaker,
    parts: Iterable[Part],
    *,
    ids: tuple[int, ...] = (),
    sample: Sample | None = None,
    calls: tuple[ToolCall, ...] = (),
    results: tuple[ToolResult, ...] = (),
    author: str = "",
    draw: int = 0,
    request: str | None = None,
    truncated: bool = False,
) -> Turn:
    """Build a turn; its id is a hash of (parent, speaker, ids, draw).

    ``request`` and ``truncated`` are for turns that were not sampled. Where a turn has no ids, its content (text,
    calls, results, whether it was cut off) stands for them. Results are put in the order of the calls
    that they answer, so their order of arrival changes nothing. Raises ``ValueError`` for calls that
    are not named by their place, and for two results of one call.
    """
    parts, results = tuple(parts), in_order(results)
    check_calls(calls)
    ids = sample.ids if sample else ids
    content: object = ids or [
        [[p.text, p.image] for p in parts],
        [[c.id, c.name, c.arguments, *([c.error] if c.error else [])] for c in calls],
        [[r.call_id, r.text, r.error] for r in results],
        *(["truncated"] if truncated else []),
    ]
    id_ = digest("turn", parent, speaker.kind, speaker.name, content, draw)
    return Turn(
        *(
            id_,
            parent,
            speaker,
            parts,
            ids,
            sample,
            calls,
            results,
            author,
            draw,
            request,
            truncated,
        )
    )


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def digest(*values: object) -> str:
    """A short stable hash of JSON-able values (128 bits, hexadecimal)."""
    return hashlib.sha256(encoded(_ENCODER.encode(values), "what was said or shown")).hexdigest()[
        :32
    ]


def _common(new: tuple[object, ...], old: tuple[object, ...]) -> int:
    if new[: len(old)] == old:
        return len(old)
    for index, (a, b) in enumerate(zip(new, old, strict=False)):
        if a != b:
            return index
    return min(len(new), len(old))
