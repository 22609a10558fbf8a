"""What is thought, said and answered in an agent's message, and which part of an answer is code.

Marks divide a message: one before the answer, one after thoughts, and fences. In an answer and in a fence they count
only outside of the strings, docstrings and comments of the code.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

MARKER = "I WANT TO ANSWER:"
"""Stands before the agent's answer; ColBench's own marker, so that its trajectories can be read."""
OUTPUT = "OUTPUT:"
"""What stands before it in an utterance are thoughts, which nobody else sees and the history drops."""
_PYTHON = ("python", "python3", "py", "py3")

_LEXER = r"""
    (?P<literal>
        \"""(?:\\.|{stop}[^\\])*?\""" | '''(?:\\.|{stop}[^\\])*?'''
        | (?<!\w)[rbfuRBFU]{{0,2}}"(?:\\.|{stop}[^"\\\n])*" | (?<!\w)[rbfuRBFU]{{0,2}}'(?:\\.|{stop}[^'\\\n])*'
        | \#(?:{stop}[^\n])*
    )
    | (?P<marker>{marker}) | (?P<output>{output}) | (?P<opening>```[ \t]*(?P<language>\w*)[ \t]*\n) | (?P<ticks>```)
"""


def _lexer(stop: str) -> re.Pattern[str]:
    marker, output = (re.escape(mark) for mark in (MARKER, OUTPUT))
    text = _LEXER.format(marker=marker, output=output, stop=stop)
    return re.compile(text, re.VERBOSE | re.DOTALL)


_CODE = _lexer("")
_PROSE = _lexer(f"(?!{re.escape(MARKER)})")
"""Here the marker counts wherever it stands: people put it in quotes, or make a heading of it."""


class _Mark(NamedTuple):
    kind: Literal["marker", "output", "opening", "closing", "ticks"]
    start: int
    end: int
    language: str = ""


def _marks(text: str, *, code: bool) -> Iterator[_Mark]:
    fenced, at = False, 0
    while found := (_CODE if code or fenced else _PROSE).search(text, at):
        kind, at = found.lastgroup, found.end()
        if found["marker"]:
            code = True
            yield _Mark("marker", found.start(), at)
        elif found["output"]:
            yield _Mark("output", found.start(), at)
        elif fenced and not found["literal"]:
            fenced, at = False, found.start() + 3
            yield _Mark("closing", found.start(), at)
        elif found["opening"]:
            fenced = True
            yield _Mark("opening", found.start(), at, found["language"].lower())
        elif kind == "ticks":
            yield _Mark("ticks", found.start(), at)


def visible(text: str) -> str:
    """What follows ``OUTPUT:`` (up to a second one); a marker before it stays."""
    marks = list(_marks(text, code=False))
    outputs = [mark for mark in marks if mark.kind == "output"]
    if not outputs:
        return text
    end = outputs[1].start if len(outputs) > 1 else len(text)
    seen = text[outputs[0].end : end].strip()
    markers = [mark.start for mark in marks if mark.kind == "marker"]
    lost = any(start < outputs[0].start for start in markers)
    kept = any(outputs[0].end <= start < end for start in markers)
    return f"{MARKER} {seen}" if lost and not kept else seen


def answer_in(text: str) -> str | None:
    """What stands after the marker, up to a second one, in what is visible; ``None`` without a marker."""
    seen = visible(text)
    markers = [mark for mark in _marks(seen, code=False) if mark.kind == "marker"]
    if not markers:
        return None
    end = markers[1].start if len(markers) > 1 else len(seen)
    return seen[markers[0].end : end].strip()


def code_of(answer: str) -> str:
    """The code of an answer: what is in its first fence, of Python if there is one; else all of it."""
    marks = list(_marks(answer, code=True))
    fences = [mark for mark in marks if mark.kind == "opening"]
    if not fences:
        inline = any(mark.kind == "ticks" for mark in marks)
        return legacy_code_of(answer) if inline else answer.strip()
    fence = next((one for one in fences if one.language in _PYTHON), fences[0])
    ends = [mark.start for mark in marks if mark.kind == "closing" and mark.start >= fence.end]
    return answer[fence.end : ends[0] if ends else len(answer)].strip()


def python_blocks(text: str) -> list[str]:
    """The closed blocks between fences that are of Python, or of no named language, in their order."""
    marks = list(_marks(text, code=False))
    return [
        text[one.end : other.start].strip()
        for one, other in pairwise(mark for mark in marks if mark.kind in ("opening", "closing"))
        if (one.kind, other.kind) == ("opening", "closing") and one.language in ("", *_PYTHON)
    ]


def legacy_code_of(answer: str) -> str:
    """As ColBench's own grader finds it: a fence of another spelling (``py``, ``Python``) is part of the code."""
    _, fence, after = answer.partition("```python")
    if not fence:
        _, fence, after = answer.partition("```")
    return (after.partition("```")[0] if fence else answer).strip()
