"""More formats for a pool, asked of a chat model one at a time.

Optima's authors had theirs written by a stronger model that was shown those there were (arXiv 2410.08115,
section 3.1). Here each reply is checked before it is kept: not empty, not too long, not cut, and not nearly
the same as another.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rapidfuzz import fuzz

from coterie.config.settings import Settings, key
from coterie.datasets.files import append_line, resume_lines
from coterie.engines.endpoint import Endpoint, EndpointSettings
from coterie.engines.messages import Utterance
from coterie.environments.format_pool import MAX_LENGTH, FormatLine, read_pool
from coterie.environments.formats import DEBATE_FORMATS, EXCHANGE_FORMATS
from coterie.errors import UserError

FormatSetting = Literal["exchange", "debate"]
NEAR = 85.0
"""Similarity in percent (the same words in any order are 100) from which two formats are one."""
TRIES = 5
"""Replies for each format that is wanted, before it is given up."""
MAX_TOKENS = 200
_FRAME = re.compile(r"^(?:[-*]|\d+[.)])\s+|^[\"'`]+|[\"'`]+$")


class FormatPoolSettings(Settings):
    """Who writes the formats."""

    endpoint: EndpointSettings
    temperature: float = key(1.0, "Sampling temperature.", ge=0, le=2)


@dataclass(frozen=True, slots=True)
class RefusedFormat:
    """Why a reply was not kept."""

    why: str


def clean(reply: str, known: Sequence[str]) -> str | RefusedFormat:
    """The format that a reply gives, on one line, without list marks and quotation marks."""
    text = _FRAME.sub("", _FRAME.sub("", " ".join(reply.split())).strip()).strip()
    if not text:
        return RefusedFormat("it is empty")
    if len(text) > MAX_LENGTH:
        return RefusedFormat(f"it has {len(text)} characters, more than {MAX_LENGTH}")
    for other in known:
        if fuzz.token_sort_ratio(text.lower(), other.lower()) >= NEAR:
            return RefusedFormat(f"it is nearly the same as {other!r}")
    return text


async def write_pool(
    endpoint: Endpoint,
    file: Path,
    count: int,
    setting: FormatSetting,
    temperature: float,
    tell: Callable[[str], None],
) -> list[str]:
    """Bring a pool file up to ``count`` formats, written as they come; what is there is kept.

    The packaged pool of the setting is shown too, and nothing near it is kept. Raises ``UserError`` for a
    broken file and if the model gives no more that can be used, ``EngineError`` if it fails.
    """
    pool = list(read_pool(file)) if resume_lines(file) else []
    packaged = EXCHANGE_FORMATS if setting == "exchange" else DEBATE_FORMATS
    left = TRIES * (count - len(pool))
    asked = len(pool)
    while len(pool) < count:
        if not left:
            raise UserError(
                f"{endpoint.settings.model} gave {len(pool)} of {count} formats that can be used",
                f"they are in {file}; give the command again for more, with another model or a higher "
                "temperature",
            )
        left -= 1
        asked += 1
        known = (*packaged, *pool)
        reply = await endpoint.chat(
            _request(setting, known), max_tokens=MAX_TOKENS, temperature=temperature, seed=asked
        )
        cut = reply.finish == "length"
        found = RefusedFormat("it was cut") if cut else clean(reply.text, known)
        if isinstance(found, RefusedFormat):
            tell(f"left out: {found.why}")
            continue
        line = FormatLine(index=len(pool), format=found)
        append_line(file, line.model_dump())
        pool.append(found)
        tell(f"{len(pool)} of {count}: {found}")
    return pool


def _request(setting: FormatSetting, known: Sequence[str]) -> list[Utterance]:
    return [
        Utterance("system", _TASK[setting]),
        Utterance("user", "\n".join(["These are there:", *(f"- {one}" for one in known), _LAST])),
    ]


_TASK: dict[FormatSetting, str] = {
    "exchange": (
        "Language models solve a task together: each knows a part of the facts, and they write short messages to each "
        "other. You invent forms in which such messages can be written. A form is shorter than plain sentences, and "
        "the reader still understands it."
    ),
    "debate": (
        "A language model answers a question with options and shows its steps to another one, which looks for "
        "mistakes. You invent forms in which the steps can be written. A form is shorter than plain sentences, and "
        "still easy to check."
    ),
}
_LAST = (
    "Write one more instruction, for a form that is unlike all of these. It has one sentence, and a short example if "
    "it needs one. Do not use codes that a reader must decipher, such as Morse or binary. A reply that is cut off is "
    "lost. Reply with the instruction alone, in this form:\nWrite key = value pairs, one to a line."
)
