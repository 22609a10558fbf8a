"""Generation of formats for a pool by a chat model, one at a time.

Optima's authors generated their pool with a stronger model, which saw the existing formats (arXiv 2410.08115, section
3.1). Here a format is rejected if it is empty, too long, truncated, or similar to another.
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
"""Similarity in percent (100: the same words in any order) from which two formats are duplicates."""
TRIES = 5
"""Maximum average number of replies for each new format."""
MAX_TOKENS = 200
_FRAME = re.compile(r"^(?:[-*]|\d+[.)])\s+|^[\"'`]+|[\"'`]+$")


class FormatPoolSettings(Settings):
    """Settings of the model that writes formats."""

    endpoint: EndpointSettings
    temperature: float = key(1.0, "Sampling temperature.", ge=0, le=2)


@dataclass(frozen=True, slots=True)
class RejectedFormat:
    """Reason why a reply was rejected."""

    why: str


def clean(reply: str, known: Sequence[str]) -> str | RejectedFormat:
    """Return the format in a reply, on one line without list marks and quotation marks, or why it is rejected."""
    text = _FRAME.sub("", _FRAME.sub("", " ".join(reply.split())).strip()).strip()
    if not text:
        return RejectedFormat("it is empty")
    if len(text) > MAX_LENGTH:
        return RejectedFormat(f"it has {len(text)} characters, more than {MAX_LENGTH}")
    for other in known:
        if fuzz.token_sort_ratio(text.lower(), other.lower()) >= NEAR:
            return RejectedFormat(f"it is too similar to {other!r}")
    return text


async def write_pool(
    endpoint: Endpoint,
    file: Path,
    count: int,
    setting: FormatSetting,
    temperature: float,
    tell: Callable[[str], None],
) -> list[str]:
    """Add formats to a pool file, as they arrive, until it has ``count``.

    The model sees the packaged pool of the setting too, and formats similar to it are rejected.

    Raises:
        UserError: the file is invalid, or the model returns too few usable formats.
        EngineError: the model fails.
    """
    pool = list(read_pool(file)) if resume_lines(file) else []
    packaged = EXCHANGE_FORMATS if setting == "exchange" else DEBATE_FORMATS
    tries = TRIES * (count - len(pool))
    attempt = len(pool)
    while len(pool) < count:
        if not tries:
            raise UserError(
                f"{endpoint.settings.model} wrote only {len(pool)} of {count} usable formats",
                f"they are in {file}; run the command again with another model or a higher temperature",
            )
        tries -= 1
        attempt += 1
        known = (*packaged, *pool)
        reply = await endpoint.chat(
            _request(setting, known), max_tokens=MAX_TOKENS, temperature=temperature, seed=attempt
        )
        truncated = reply.finish == "length"
        new = RejectedFormat("it is truncated") if truncated else clean(reply.text, known)
        if isinstance(new, RejectedFormat):
            tell(f"rejected: {new.why}")
            continue
        line = FormatLine(index=len(pool), format=new)
        append_line(file, line.model_dump())
        pool.append(new)
        tell(f"{len(pool)} of {count}: {new}")
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
