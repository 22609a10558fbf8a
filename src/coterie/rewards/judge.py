"""A language model that ranks replies without training: it compares two at a time.

Candidates stand in a circle, in an order drawn from the seed, and each is compared with the next few.
So each takes part in equally many comparisons, as often shown first as second, and no two are
compared twice the same way round.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from coterie.engines.messages import Utterance

Chat = Callable[[list[Utterance]], Awaitable[str]]
"""A chat model: what is said to it, to what it answers. Raises ``EngineError``."""
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
    """Where in which task the replies could be given."""

    key: str
    """Names the turn (task and turn id): comparisons are drawn from the seed and this."""
    task: str
    reference: str = field(repr=False)
    """The privileged solution, as revealed to a critic."""
    dialogue: Sequence[tuple[str, str]] = ()
    """(who, what they said) so far, oldest first."""


@dataclass(slots=True)
class Judge:
    """Asks ``chat`` to compare replies, and counts how that goes."""

    chat: Chat
    opponents: int = 3
    """With how many of the next in the circle each candidate is compared (at least 1)."""
    seed: int = 0
    comparisons: int = 0
    unreadable: int = 0
    """Answers that named neither or both; each is a tie."""

    def __post_init__(self) -> None:
        if self.opponents < 1:
            raise ValueError(f"a judge needs at least 1 opponent a candidate, got {self.opponents}")

    async def wins(self, situation: Situation, replies: Sequence[str]) -> list[float]:
        """For each reply the share of its comparisons that it wins; a tie is half a win.

        Equal replies tie without being asked about; a single reply has 0.5. Raises ``EngineError``.
        """
        drawn = self._drawn(situation.key, len(replies))
        tasks = [
            asyncio.ensure_future(self._first_wins(situation, replies[a], replies[b]))
            for a, b in drawn
        ]
        try:
            results = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        won = [0.0] * len(replies)
        for (a, b), share in zip(drawn, results, strict=True):
            won[a] += share
            won[b] += 1 - share
        each = 2 * len(drawn) // max(len(replies), 1)
        return [share / each if each else 0.5 for share in won]

    def _drawn(self, key: str, count: int) -> list[tuple[int, int]]:
        circle = list(range(count))
        random.Random(f"{self.seed}/{key}").shuffle(circle)
        steps = range(1, min(self.opponents, count - 1) + 1)
        return [(circle[i], circle[(i + step) % count]) for step in steps for i in range(count)]

    async def _first_wins(self, situation: Situation, a: str, b: str) -> float:
        """1 if A is better, 0 if B is, one half for a tie."""
        if a == b:
            return 0.5
        self.comparisons += 1
        verdict = read_verdict(await self.chat(question(situation, a, b)))
        self.unreadable += verdict is None
        return {"A": 1.0, "B": 0.0, None: 0.5}[verdict]


def question(situation: Situation, a: str, b: str) -> list[Utterance]:
    """What the judge is asked about one comparison."""
    said = "\n".join(f"{who}: {what}" for who, what in situation.dialogue) or "(nothing yet)"
    blocks = {
        "Task": situation.task,
        "Reference solution": situation.reference,
        "Conversation so far": said,
        "Reply A": a,
        "Reply B": b,
    }
    shown = "\n\n".join(f"## {title}\n{text}" for title, text in blocks.items())
    return [
        Utterance("system", _RULES),
        Utterance("user", f"{shown}\n\nWhich reply is better, A or B?"),
    ]


def read_verdict(answer: str) -> str | None:
    """``A`` or ``B``: the letter alone on the first or last line; else the one reply that the last line names.

    So a reason may lead to the letter or follow it. What says both, or neither, is not a verdict.
    """
    lines = [line for line in answer.splitlines() if line.strip()]
    ends = lines[:1] + lines[-1:]
    said = {alone[1].upper() for line in ends if (alone := _LETTER.fullmatch(line))}
    if not said:
        said = {letter.upper() for line in lines[-1:] for letter in _NAMED.findall(line)}
    return said.pop() if len(said) == 1 else None
