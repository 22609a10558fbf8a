"""Best of n by a judge model: which of several dialogues it takes for the best, without knowing what is right.

AFM (arXiv 2508.13167, table 4) has Qwen2.5-72B pick one of three.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coterie.config.settings import key
from coterie.datasets.files import append_line, numbered, resume_lines
from coterie.engines.chat_model import ChatModel, ChatModelSettings
from coterie.engines.messages import Utterance
from coterie.trajectories.turn import digest

NOBODY = "nobody"
TRIES = 2
SHOWN = 1500
"""Characters of a dialogue's end that the judge reads."""
_OBJECT = re.compile(r"\{[^{}]*\}")
_NUMBER = re.compile(r"\W*([0-9]{1,4})\W*")
_RULES = (
    "Several students worked on the same task. You see the end of each one's work, and its answer. Decide which "
    "answer is most likely right: look at what it rests on, and at how many others agree with it.\n"
    'Reply with JSON and nothing else: {"reason": "a few words", "best": 1}'
)


class PickerSettings(ChatModelSettings):
    """Which model picks the best of several dialogues, if any."""

    model: str = key(
        NOBODY,
        "`nobody`, a model that coterie loads, or, with `url`, the name of a model there. With samples=N: the "
        "score of the dialogue that it takes for the best of N.",
        source="AFM: Qwen2.5-72B-Instruct, of 3",
        min_length=1,
    )
    max_tokens: int = key(256, "Most tokens of a reply.", ge=1)

    @property
    def picks(self) -> bool:
        return self.model != NOBODY


@dataclass(frozen=True, slots=True)
class Try:
    """One of several dialogues of a task."""

    sample: int
    text: str
    answer: str | None
    """``None`` if it has none, or was cut off: it is not shown."""
    score: float


@dataclass(slots=True)
class Picker:
    """Asks a chat model, and remembers in a file what it said."""

    chat: ChatModel
    identity: str
    file: Path
    unreadable: int = 0
    """Tasks of which no reply could be read; the first one that was shown counts."""
    known: dict[str, int] = field(default_factory=dict)
    """What it said before, by a hash of what it was asked; 0 where that could not be read."""

    def __post_init__(self) -> None:
        lines = numbered(self.file) if resume_lines(self.file) else ()
        self.known |= {line["key"]: int(line["best"]) for _, line in lines}

    async def score(self, task: str, question: str, tries: Sequence[Try]) -> float:
        """The score of the dialogue that is picked; 0 if none has an answer."""
        shown = sorted(
            (one for one in tries if one.answer is not None),
            key=lambda one: digest(task, one.sample),
        )
        if len({one.answer for one in shown}) < 2:
            return shown[0].score if shown else 0.0
        place = await self._picked(question, shown)
        return shown[place].score

    async def _picked(self, question: str, shown: Sequence[Try]) -> int:
        listed = "\n\n".join(
            f"Student {place}:\n{one.text[-SHOWN:]}\nAnswer: {one.answer}"
            for place, one in enumerate(shown, 1)
        )
        asked = f"Task: {question}\n\n{listed}"
        hashed = digest(self.identity, _RULES, asked)
        if hashed not in self.known:
            self.known[hashed] = await self._ask(asked, len(shown))
            append_line(self.file, {"key": hashed, "best": self.known[hashed]})
        best = self.known[hashed]
        self.unreadable += best == 0
        return max(best, 1) - 1

    async def _ask(self, asked: str, count: int) -> int:
        said = [Utterance("system", _RULES), Utterance("user", asked)]
        for number in range(TRIES):
            seed = int(digest(asked, number)[:8], 16) % 2**31
            reply = await self.chat.ask(said, seed)
            if (best := read_pick(reply.text, count)) is not None:
                return best
        return 0


def read_pick(reply: str, count: int) -> int | None:
    """The number that a reply names, JSON also within prose or a fence, or the number alone; ``None`` if there is
    none, or no such student."""
    found: list[object] = []
    for written in _OBJECT.findall(reply):
        try:
            found.append(json.loads(written).get("best"))
        except ValueError:
            continue
    if alone := _NUMBER.fullmatch(reply):
        found.append(alone[1])
    for one in reversed(found):
        if str(one).isdecimal() and 1 <= int(str(one)) <= count:
            return int(str(one))
    return None
