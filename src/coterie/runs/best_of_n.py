"""Best of n by a judge model: the dialogue of a task that it chooses, and the score of this choice.

AFM (arXiv 2508.13167, table 4): Qwen2.5-72B chooses one of three dialogues.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coterie.config.settings import key
from coterie.datasets.files import append_line, numbered, resume_lines
from coterie.engines.chat_model import ChatModel, ChatModelSettings, open_chat
from coterie.engines.endpoint import Utterance
from coterie.environments.answers import question_of
from coterie.evaluation.statistics import bootstrap_interval
from coterie.record.store import Store
from coterie.record.tree import LENGTH, Tree
from coterie.record.turn import digest

NOBODY = "nobody"
TRIES = 2
TAIL = 1500
"""Number of last characters of a dialogue that the judge reads."""
_OBJECT = re.compile(r"\{[^{}]*\}")
_NUMBER = re.compile(r"\W*([0-9]{1,4})\W*")
_RULES = (
    "Several students worked on the same task. You see the end of each one's work, and its answer. Decide which "
    "answer is most likely right: look at what it rests on, and at how many others agree with it.\n"
    'Reply with JSON and nothing else: {"reason": "a few words", "best": 1}'
)


class PickerSettings(ChatModelSettings):
    """Settings of the model that picks the best of several dialogues."""

    model: str = key(
        NOBODY,
        "`nobody`, a model that coterie loads, or the name of a model at `url`. With samples=N, it picks one of the "
        "N dialogues of a task, whose score counts.",
        source="AFM: Qwen2.5-72B-Instruct, of 3",
        min_length=1,
    )
    max_tokens: int = key(256, "Maximum tokens of a reply.", ge=1)

    @property
    def picks(self) -> bool:
        return self.model != NOBODY


@dataclass(frozen=True, slots=True)
class Try:
    """One of several dialogues of a task."""

    sample: int
    text: str
    answer: str | None
    """``None`` without an answer, or if the dialogue was cut off. The judge does not see such a dialogue."""
    score: float


@dataclass(slots=True)
class Picker:
    """Picks dialogues with a chat model, and caches its picks in a file."""

    chat: ChatModel
    identity: str
    file: Path
    unreadable: int = 0
    """Number of tasks without a readable reply, whose first listed dialogue counts as picked."""
    picks: dict[str, int] = field(default_factory=dict)
    """Cached picks by hash of the prompt; 0 for an unreadable reply."""

    def __post_init__(self) -> None:
        lines = numbered(self.file) if resume_lines(self.file) else ()
        self.picks |= {line["key"]: int(line["best"]) for _, line in lines}

    async def score(self, task: str, question: str, tries: Sequence[Try]) -> float:
        """Return the score of the picked dialogue; 0 if none has an answer."""
        listed = sorted(
            (one for one in tries if one.answer is not None),
            key=lambda one: digest(task, one.sample),
        )
        if len({one.answer for one in listed}) < 2:
            return listed[0].score if listed else 0.0
        return listed[await self._pick(question, listed)].score

    async def _pick(self, question: str, tries: Sequence[Try]) -> int:
        dialogues = "\n\n".join(
            f"Student {place}:\n{one.text[-TAIL:]}\nAnswer: {one.answer}"
            for place, one in enumerate(tries, 1)
        )
        text = f"Task: {question}\n\n{dialogues}"
        key_ = digest(self.identity, _RULES, text)
        if key_ not in self.picks:
            self.picks[key_] = await self._ask(text, len(tries))
            append_line(self.file, {"key": key_, "best": self.picks[key_]})
        best = self.picks[key_]
        self.unreadable += best == 0
        return max(best, 1) - 1

    async def _ask(self, text: str, count: int) -> int:
        messages = [Utterance("system", _RULES), Utterance("user", text)]
        for number in range(TRIES):
            seed = int(digest(text, number)[:8], 16) % 2**31
            reply = await self.chat.ask(messages, seed)
            if (best := read_pick(reply.text, count)) is not None:
                return best
        return 0


def read_pick(reply: str, count: int) -> int | None:
    """Return the number in a reply: the last JSON object's, also within prose or a fence, or a number alone.

    ``None`` without a valid number.
    """
    numbers: list[object] = []
    for text in _OBJECT.findall(reply):
        try:
            numbers.append(json.loads(text).get("best"))
        except ValueError:
            continue
    if alone := _NUMBER.fullmatch(reply):
        numbers.append(alone[1])
    for one in reversed(numbers):
        if str(one).isdecimal() and 1 <= int(str(one)) <= count:
            return int(str(one))
    return None


@dataclass(frozen=True, slots=True)
class BestOfN:
    """Result of a best-of-n evaluation."""

    judge: str
    n: int
    score: float
    interval: tuple[float, float]
    unreadable: int
    """Tasks without a readable reply of the judge."""


async def score_best_of_n(
    store: Store,
    iteration: int,
    stage: str,
    tasks: int,
    samples: int,
    settings: PickerSettings,
    file: Path,
) -> BestOfN:
    """Let the judge choose a dialogue of each task, and cache its replies in ``file``.

    A task without dialogues scores 0. Raises ``EngineError`` if a request fails, and ``UserError`` like
    :func:`~coterie.engines.chat_model.open_chat`.
    """
    async with open_chat(settings, file.parent / "picker") as chat:
        picker = Picker(chat, digest(settings.identity()), file)
        requests = [
            picker.score(tree.task, question_of(store.task(tree.task)), tries(tree, samples))
            for tree in store.outlines(iteration, stage)
        ]
        scores = await asyncio.gather(*requests)
    scores += [0.0] * (tasks - len(scores))
    interval = bootstrap_interval(scores, seed=0)
    return BestOfN(settings.model, samples, sum(scores) / len(scores), interval, picker.unreadable)


def tries(tree: Tree, samples: int) -> Sequence[Try]:
    """Return the first ``samples`` dialogues of a task that were graded."""
    return [
        Try(
            outcome.sample,
            path[-1].text,
            None if outcome.ending == LENGTH else outcome.answer,
            outcome.score,
        )
        for outcome, path in tree.trajectories()
        if outcome.sample < samples and outcome.score is not None
    ]
