"""Marks and fenced blocks of code in messages.

Marks divide a message: one before the answer, one after thoughts, and fences. In an answer or a fence, marks inside
strings, docstrings and comments of code are ignored.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

MARKER = "I WANT TO ANSWER:"
"""Marker before the agent's answer, the same as in ColBench, so that its trajectories can be read."""
OUTPUT = "OUTPUT:"
"""Marker after thoughts, which other actors do not see and the history drops."""
_PYTHON = ("python", "python3", "py", "py3")


class Mark(NamedTuple):
    """A mark in a message."""

    kind: Literal["marker", "output", "opening", "closing", "ticks"]
    start: int
    end: int
    language: str = ""


# Strings and comments come first, so that marks inside them are skipped.
_LEXER = r"""
    (?P<literal>
        (?<!\\)\"""(?:\\.|{stop}[^\\])*?\""" | (?<!\\)'''(?:\\.|{stop}[^\\])*?'''
        | (?<![\w\\])[rbfuRBFU]{{0,2}}"(?:\\.|{stop}[^"\\\n])*"
        | (?<![\w\\])[rbfuRBFU]{{0,2}}'(?:\\.|{stop}[^'\\\n])*'
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
"""In prose the marker always counts, since models put it in quotes or headings."""


def marks_in(text: str, *, code: bool) -> Iterator[Mark]:
    fenced, at = False, 0
    while match := (_CODE if code or fenced else _PROSE).search(text, at):
        kind, at = match.lastgroup, match.end()
        if match["marker"]:
            # The text after the marker is the answer, and in an answer code is expected.
            code = True
            yield Mark("marker", match.start(), at)
        elif match["output"]:
            yield Mark("output", match.start(), at)
        elif fenced and not match["literal"]:
            # Only the three ticks close the fence. The text directly after them is read again.
            fenced, at = False, match.start() + 3
            yield Mark("closing", match.start(), at)
        elif match["opening"]:
            fenced = True
            yield Mark("opening", match.start(), at, match["language"].lower())
        elif kind == "ticks":
            yield Mark("ticks", match.start(), at)


def code_of(answer: str) -> str:
    """Return the code of an answer: its first Python fence, else its first fence, else all of it."""
    marks = list(marks_in(answer, code=True))
    fences = [mark for mark in marks if mark.kind == "opening"]
    if not fences:
        inline = any(mark.kind == "ticks" for mark in marks)
        return legacy_code_of(answer) if inline else answer.strip()
    fence = next((one for one in fences if one.language in _PYTHON), fences[0])
    # A block that is never closed ends with the answer.
    ends = [mark.start for mark in marks if mark.kind == "closing" and mark.start >= fence.end]
    return answer[fence.end : ends[0] if ends else len(answer)].strip()


def python_blocks(text: str) -> list[str]:
    """Return the closed fenced blocks of Python or of no named language, in order."""
    marks = list(marks_in(text, code=False))
    return [
        text[one.end : other.start].strip()
        for one, other in pairwise(mark for mark in marks if mark.kind in ("opening", "closing"))
        if (one.kind, other.kind) == ("opening", "closing") and one.language in ("", *_PYTHON)
    ]


def legacy_code_of(answer: str) -> str:
    """Return the code as ColBench's grader extracts it: another fence (``py``, ``Python``) becomes part of the code."""
    _, fence, after = answer.partition("```python")
    if not fence:
        _, fence, after = answer.partition("```")
    return (after.partition("```")[0] if fence else answer).strip()
