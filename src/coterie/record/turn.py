"""Turn: an utterance, observation or tool result, with its sampled tokens and tool calls.

The id of a call is its index in the turn (``c0``, ``c1``, ...), not the engine's id. Results are sorted by call, so
the order in which they arrive does not matter.
"""

import hashlib
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from json.encoder import JSONEncoder, c_make_encoder, encode_basestring  # type: ignore[attr-defined]
from typing import Literal

from coterie.config.folders import encoded

_PLACE = re.compile(r"c(0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Tool:
    """Description of a tool; the environment runs it."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """JSON schema of the arguments, an object."""
    alone: bool = False
    """True if it changes the environment: its calls run in order, never concurrently with others."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool."""

    id: str
    """``c`` and the call's index in its turn, from 0."""
    name: str
    arguments: str
    error: str = ""
    """Reason why the call is answered without running it (invalid JSON, unknown tool, cut off)."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a call."""

    call_id: str
    text: str
    error: bool = False
    began: float = field(default=0.0, compare=False)
    """Seconds from the first call of its turn to this one."""
    seconds: float = field(default=0.0, compare=False)
    """Duration of all tries; 0 if the call was not run."""
    left_out: int = field(default=0, compare=False)
    """Number of characters removed from its text."""


def call_id(index: int) -> str:
    return f"c{index}"


def place(id_: str) -> int:
    """Return the index of a call from its id. Raises ``ValueError`` for other ids."""
    match = _PLACE.fullmatch(id_)
    if match is None:
        raise ValueError(f"{id_!r} is not the id of a call; ids are c0, c1, ...")
    return int(match[1])


def check_calls(calls: Sequence[ToolCall]) -> None:
    """Raise ``ValueError`` for calls whose ids are not their indices."""
    if [call.id for call in calls] != [call_id(number) for number in range(len(calls))]:
        raise ValueError(f"call ids must be c0, c1, ... in order, got {[c.id for c in calls]}")


def in_order(results: Iterable[ToolResult]) -> tuple[ToolResult, ...]:
    """Sort results by call. Raises ``ValueError`` for two results of one call."""
    ordered = sorted(results, key=lambda result: place(result.call_id))
    if len({result.call_id for result in ordered}) < len(ordered):
        raise ValueError(f"two results of one call: {[result.call_id for result in ordered]}")
    return tuple(ordered)


SpeakerKind = Literal["agent", "person", "environment", "tool"]
Role = Literal["system", "user", "assistant", "tool", "inline"]
"""Role of a message; ``inline`` is text of the environment within an agent's turn, after a stop string."""
Finish = Literal["end", "stop_string", "length"]
"""Finish reason: an end-of-turn token, a stop string, or the token limit."""

SAMPLED = "sampled"
"""Source of the text that a model sampled."""
THOUGHT = "thought"
"""Source of the part with an agent's thought, which only the agent may see."""


class PrivilegeError(Exception):
    """A reader may not see a privileged part."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a turn or prompt."""

    text: str
    audience: frozenset[str] | None = None
    """Names of its readers; ``None`` for everyone."""
    source: str = "literal"
    """Source of the text: ``literal``, ``task:FIELD``, ``secret:FIELD``, ``turn:ID``."""
    image: str | None = None
    """SHA-256 of an image, which ``text`` describes."""
    span: tuple[int, int] | None = None
    """Half-open range of the text in the turn's ids, if known."""

    def visible_to(self, reader: str) -> bool:
        """Return True if the reader may see the part."""
        return self.audience is None or reader in self.audience


@dataclass(frozen=True, slots=True)
class Speaker:
    """Speaker of a turn, such as ``agent`` ``Alice``."""

    kind: SpeakerKind
    name: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a prompt: literal parts, or a turn of the tree by id."""

    role: Role
    parts: tuple[Part, ...] = ()
    turn: str | None = None
    """Id of a turn whose parts (or sampled ids) are the content. If the message has parts, too, they replace each of
    the turn's results."""

    @classmethod
    def of(cls, role: Role, text: str) -> "Message":
        """Return a message with one literal text for all readers."""
        return cls(role, (Part(text),))


@dataclass(frozen=True, slots=True)
class Request:
    """Prompt of one turn, stored as a delta on the agent's previous request.

    The agent's *running tokens* are its previous prompt and turn. The prompt is the first ``keep`` running tokens
    followed by ``ids``. It extends the conversation if ``keep`` is their number; otherwise history was rewritten.
    """

    id: str
    agent: str
    parent: str
    """Id of the node that the turn is added to."""
    previous: str | None
    """Id of the agent's previous turn with a request on the path; ``None`` for its first request."""
    keep: int
    ids: tuple[int, ...]
    keep_messages: int
    """Number of first messages of the running prompt that stay before ``messages``."""
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    """Tools that the chat template rendered. Tools called by tags are described in the messages."""

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
        """Build a request as a delta on the running prompt. The id hashes the arguments, ``tools`` only if any."""
        # Prompts of a dialogue repeat each other. As deltas, a dialogue takes space linear in its length.
        keep = common_length(prompt, running)
        keep_messages = common_length(messages, running_messages)
        delta, new = prompt[keep:], messages[keep_messages:]
        content = [[m.role, m.turn, [[p.text, p.source, p.image] for p in m.parts]] for m in new]
        # Fields at their default are left out of the key, so that ids of earlier records do not change.
        offered = [[[t.name, t.description, t.parameters, t.alone] for t in tools]] if tools else []
        key = (agent, parent, previous, keep, delta, keep_messages, content, *offered)
        id_ = digest("request", *key)
        return cls(id_, agent, parent, previous, keep, delta, keep_messages, new, tools)


@dataclass(frozen=True, slots=True)
class Sample:
    """Result of an engine for a request. Never edited."""

    request: str
    """Id of its :class:`Request`."""
    ids: tuple[int, ...]
    """All returned ids, including a stop string or end-of-turn token."""
    logprobs: tuple[float, ...]
    """Log-probability (nats) of each id under the behavior distribution, rounded to float32 as in the store."""
    finish: Finish
    policy: str
    version: str
    """Version of the weights that sampled the last token."""
    seed: int
    temperature: float
    top_p: float
    versions: tuple[tuple[str, int], ...] = ()
    """Version and number of tokens of each span, in order, if the weights changed meanwhile; else empty."""

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.ids):
            raise ValueError(f"{len(self.logprobs)} log-probs of {len(self.ids)} tokens")
        if self.versions and sum(count for _, count in self.versions) != len(self.ids):
            raise ValueError(f"versions {self.versions} of {len(self.ids)} tokens")
        # A sample in memory equals the one read back from the store, which keeps float32.
        object.__setattr__(self, "logprobs", tuple(array("f", self.logprobs)))


@dataclass(frozen=True, slots=True)
class Turn:
    """A node of the tree."""

    id: str
    parent: str
    speaker: Speaker
    parts: tuple[Part, ...]
    ids: tuple[int, ...] = ()
    """Sampled tokens, or the tokens of unsampled text, tokenized once (empty if it is never a training target)."""
    sample: Sample | None = None
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    author: str = ""
    """Author of an unsampled turn: ``script:NAME``, ``import:FILE``, ``environment``, ..."""
    draw: int = 0
    """Distinguishes equal turns that were sampled separately."""
    request: str | None = None
    """Id of the :class:`Request` of an unsampled turn that may be trained on."""
    truncated: bool = False
    """True if a token limit or the context cut it off; a sampled turn takes this from its sample."""

    def __post_init__(self) -> None:
        if self.sample is not None:
            # The sample knows; a second value could contradict it.
            object.__setattr__(self, "truncated", self.sample.finish == "length")

    @property
    def prompt(self) -> str | None:
        """Id of the turn's request; ``None`` if the turn is only context."""
        return self.sample.request if self.sample else self.request

    @property
    def text(self) -> str:
        """Text without the agent's thought, which others see and answers are read from."""
        # Answers, similarity and other agents must not see the thought.
        return "".join(part.text for part in self.parts if part.source != THOUGHT)

    @property
    def thought_tokens(self) -> int:
        """Number of tokens of the thought, including its marks."""
        spans = (part.span for part in self.parts if part.source == THOUGHT and part.span)
        return sum(stop - start for start, stop in spans)

    @property
    def whole_text(self) -> str:
        """Text with the agent's thought."""
        return "".join(part.text for part in self.parts)

    @property
    def writer(self) -> str:
        """Writer of the (last) tokens: ``POLICY@VERSION`` if sampled, else the author."""
        return f"{self.sample.policy}@{self.sample.version}" if self.sample else self.author

    def moved(self, parent: str, speaker: Speaker, calls: tuple[ToolCall, ...]) -> "Turn":
        """Copy the turn under another parent, with other calls. Its request stays."""
        if (self.parent, self.speaker, self.calls) == (parent, speaker, calls):
            return self
        # The id contains the parent, so it changes. The prompt that was sampled from does not.
        return _with_id(replace(self, parent=parent, speaker=speaker, calls=calls))


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
    """Build a turn; its id is a hash of (parent, speaker, ids or else content, draw). Results are sorted by call.

    ``request`` and ``truncated`` are for unsampled turns. Raises ``ValueError`` for calls whose ids are not their
    indices, and for two results of one call.
    """
    if calls:
        check_calls(calls)
    # Of a sampled turn, only the engine's ids are true; text may tokenize differently.
    parts, ids = tuple(parts), sample.ids if sample else ids
    results = in_order(results) if results else ()
    turn = Turn(
        "", parent, speaker, parts, ids, sample, calls, results, author, draw, request, truncated
    )
    return _with_id(turn)


def _with_id(turn: Turn) -> Turn:
    """Set the id of a new turn."""
    # Tokens identify a turn better than its text: different tokens may decode to the same text.
    # Optional fields are in the hash only if set, which keeps ids of earlier records.
    content: object = turn.ids or [
        [[p.text, p.image] for p in turn.parts],
        [[c.id, c.name, c.arguments, *([c.error] if c.error else [])] for c in turn.calls],
        [[r.call_id, r.text, r.error] for r in turn.results],
        *(["truncated"] if turn.truncated else []),
    ]
    speaker = turn.speaker
    id_ = digest("turn", turn.parent, speaker.kind, speaker.name, content, turn.draw)
    # The class is frozen, and the id depends on all other fields, so it is set last.
    object.__setattr__(turn, "id", id_)
    return turn


# A JSONEncoder rebuilds this C encoder at each call, which more than doubles the time.
_encode = c_make_encoder(
    None, JSONEncoder().default, encode_basestring, None, ":", ",", False, False, True
)


def digest(*values: object) -> str:
    """Return a stable hash of JSON-able values (128 bits, hexadecimal)."""
    text = "".join(_encode(values, 0))
    return hashlib.sha256(encoded(text, "what was said or shown")).hexdigest()[:32]


def common_length(new: tuple[object, ...], old: tuple[object, ...]) -> int:
    """Return the number of first elements that two tuples share."""
    # The usual case, in which a prompt extends the previous one, is one comparison in C.
    if new[: len(old)] == old:
        return len(old)
    for index, (a, b) in enumerate(zip(new, old, strict=False)):
        if a != b:
            return index
    return min(len(new), len(old))
