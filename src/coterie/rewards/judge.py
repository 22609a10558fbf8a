"""Judge that ranks replies by pairwise comparisons with an untrained chat model.

Candidates are arranged in a circle, in an order drawn from the seed, and each is compared with the next few. Each has
the same number of comparisons, equally often as first and second, and no ordered pair is compared twice.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from coterie.engines.endpoint import Utterance

Chat = Callable[[list[Utterance]], Awaitable[str]]
"""Chat model: messages -> reply. Raises ``EngineError``."""
_LETTER = re.compile(r"\W*([ab])\W*", re.IGNORECASE)
_NAMED = re.compile(r"\b(?:reply|answer|option|verdict)(?:\W+is)?\W+([ab])\b", re.IGNORECASE)
_RULES = (
    "You compare two replies, A and B, that an assistant could send next in a conversation with a person. The "
    "assistant has not seen the reference solution.\n"
    "- The better reply brings the assistant closer to a solution that does what the reference does: it is a question "
    "about something that is still unknown, or an answer that is right.\n"
    "- Length and politeness do not count.\n"
    "- Reply with one letter and nothing else. If reply A is better, your message is:\nA\n"
    "If reply B is better, your message is:\nB"
)


@dataclass(frozen=True, slots=True)
class Situation:
    """Task and dialogue that the replies could continue."""

    key: str
    """Task and turn id; together with the seed it determines the comparisons."""
    task: str
    reference: str = field(repr=False)
    """Privileged solution, which critics may see."""
    dialogue: Sequence[tuple[str, str]] = ()
    """(speaker, text) so far, oldest first."""


@dataclass(slots=True)
class Judge:
    """Compares replies with ``chat``, and counts comparisons."""

    chat: Chat
    opponents: int = 3
    """Number of next candidates in the circle that each is compared with (at least 1)."""
    seed: int = 0
    comparisons: int = 0
    unreadable: int = 0
    """Number of answers without one clear letter, which count as ties."""

    def __post_init__(self) -> None:
        if self.opponents < 1:
            raise ValueError(f"a judge needs at least 1 opponent a candidate, got {self.opponents}")

    async def wins(self, situation: Situation, replies: Sequence[str]) -> list[float]:
        """Return the share of comparisons that each reply wins; a tie is half a win.

        Equal replies tie without a question to the model. A single reply has 0.5. Raises ``EngineError``.
        """
        pairs = self._pairs(situation.key, len(replies))
        tasks = [
            asyncio.ensure_future(self._first_wins(situation, replies[a], replies[b]))
            for a, b in pairs
        ]
        try:
            results = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        won = [0.0] * len(replies)
        for (a, b), share in zip(pairs, results, strict=True):
            won[a] += share
            won[b] += 1 - share
        each = 2 * len(pairs) // max(len(replies), 1)
        return [share / each if each else 0.5 for share in won]

    def _pairs(self, key: str, count: int) -> list[tuple[int, int]]:
        circle = list(range(count))
        random.Random(f"{self.seed}/{key}").shuffle(circle)
        steps = range(1, min(self.opponents, count - 1) + 1)
        return [(circle[i], circle[(i + step) % count]) for step in steps for i in range(count)]

    async def _first_wins(self, situation: Situation, a: str, b: str) -> float:
        """Return 1 if A is better, 0 if B is, 0.5 for a tie."""
        if a == b:
            return 0.5
        self.comparisons += 1
        verdict = read_verdict(await self.chat(question(situation, a, b)))
        self.unreadable += verdict is None
        return {"A": 1.0, "B": 0.0, None: 0.5}[verdict]


def question(situation: Situation, a: str, b: str) -> list[Utterance]:
    """Build the prompt of one comparison."""
    dialogue = "\n".join(f"{who}: {what}" for who, what in situation.dialogue) or "(nothing yet)"
    blocks = {
        "Task": situation.task,
        "Reference solution": situation.reference,
        "Conversation so far": dialogue,
        "Reply A": a,
        "Reply B": b,
    }
    text = "\n\n".join(f"## {title}\n{block}" for title, block in blocks.items())
    return [
        Utterance("system", _RULES),
        Utterance("user", f"{text}\n\nWhich reply is better, A or B?"),
    ]


def read_verdict(answer: str) -> str | None:
    """Return ``A`` or ``B``: a letter alone on the first or last line, else the only reply named in the last line.

    A reason may precede or follow the letter. An answer with both or neither is no verdict.
    """
    lines = [line for line in answer.splitlines() if line.strip()]
    ends = lines[:1] + lines[-1:]
    letters = {alone[1].upper() for line in ends if (alone := _LETTER.fullmatch(line))}
    if not letters:
        letters = {letter.upper() for line in lines[-1:] for letter in _NAMED.findall(line)}
    return letters.pop() if len(letters) == 1 else None
