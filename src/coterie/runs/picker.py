"""Best of n: a judge picks one of several dialogues of a task (AFM, arXiv 2508.13167, table 4)."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from coterie.config.folders import make_folder
from coterie.config.settings import key
from coterie.datasets.files import numbered
from coterie.engines.chat_model import NOBODY, JudgeSettings, ask_judge, json_objects, open_chat
from coterie.evaluation import Draw, Estimate, estimate
from coterie.record.turn import digest

TAIL = 1500
"""Number of last characters of a dialogue that the judge reads."""
_NUMBER = re.compile(r"\W*([0-9]{1,4})\W*")
_RULES = (
    "Several students worked on the same task. You see the end of each one's work, and its answer. Decide which "
    "answer is most likely right: look at what it rests on, and at how many others agree with it.\n"
    'Reply with JSON and nothing else: {"reason": "a few words", "best": 1}'
)


class PickerSettings(JudgeSettings):
    """Settings of the model that picks the best of several dialogues."""

    model: str = key(
        NOBODY,
        "`nobody`, a model that coterie loads, or the name of a model at `url`. With samples=N, it picks one of the "
        "N dialogues of a task, whose score counts.",
        source="AFM: Qwen2.5-72B-Instruct, of 3",
        min_length=1,
    )


async def pick_best(
    questions: Mapping[str, str],
    dialogues: Mapping[str, Sequence[Draw]],
    settings: PickerSettings,
    file: Path,
) -> tuple[Estimate, int]:
    """Let the judge pick a dialogue of each task.

    Args:
        questions: Question of each task.
        dialogues: Dialogues of each task. Those without an answer are not picked; a task without any scores 0.
        settings: Settings of the judge.
        file: Cache of the judge's replies.

    Returns:
        Score of the picked dialogues, and the number of tasks without a readable reply, whose first listed dialogue
        counts as picked.

    Raises:
        EngineError: A request failed.
        UserError: Like :func:`~coterie.engines.chat_model.open_chat`.
    """
    lines = numbered(file) if _resume_lines(file) else ()
    # Picks by hash of the prompt; 0 for an unreadable reply.
    picks = {line["key"]: int(line["best"]) for _, line in lines}
    async with open_chat(settings) as chat:

        async def pick(task: str, draws: Sequence[Draw]) -> tuple[float, bool]:
            # Judges prefer some positions of a list, so the order is pseudo-random but stable.
            order = sorted(range(len(draws)), key=lambda sample: digest(task, sample))
            listed = [draws[sample] for sample in order if draws[sample].answer is not None]
            # Equal answers have equal scores, which need no judge.
            if len({draw.answer for draw in listed}) <= 1:
                return (listed[0].score if listed else 0.0), True
            students = "\n\n".join(
                f"Student {number}:\n{draw.text[-TAIL:]}\nAnswer: {draw.answer}"
                for number, draw in enumerate(listed, 1)
            )
            prompt = f"Task: {questions[task]}\n\n{students}"
            name = digest(digest(settings.identity()), _RULES, prompt)
            if name not in picks:
                read = partial(read_pick, count=len(listed))
                picks[name] = await ask_judge(chat, _RULES, prompt, read, prompt) or 0
                line = json.dumps({"key": name, "best": picks[name]})
                with file.open("a", encoding="utf-8", newline="\n") as opened:
                    opened.write(line + "\n")
            return listed[max(picks[name], 1) - 1].score, picks[name] > 0

        picked = await asyncio.gather(*(pick(*item) for item in dialogues.items()))
    scores, readable = zip(*picked, strict=True)
    return estimate(scores), readable.count(False)


def _resume_lines(file: Path) -> bool:
    """Remove an incomplete last line of a file, or create its folder. Return True if the file has lines."""
    make_folder(file.parent)
    if not file.exists():
        return False
    # A killed process may have written only a part of the last line.
    with file.open("r+b") as opened:
        content = opened.read()
        opened.truncate(content.rfind(b"\n") + 1)
    return bool(content[: content.rfind(b"\n") + 1].strip())


def read_pick(reply: str, count: int) -> int | None:
    """Return the number in a reply: the last JSON object's, also within prose or a fence, or a number alone.

    ``None`` without a valid number.
    """
    alone = _NUMBER.fullmatch(reply)
    texts = [alone[1]] if alone else [str(choice.get("best")) for choice in json_objects(reply)]
    numbers = (int(text) for text in texts if text.isdecimal())
    return next((number for number in numbers if 1 <= number <= count), None)
