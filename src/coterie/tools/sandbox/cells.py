"""What came of a cell: the text that is shown, and why the cell failed, if it did."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.tools.sandbox.inside.cell import CONTINUATION, GONE, TOLD
from coterie.tools.sandbox.inside.job import JobRecord

NOTHING = "The cell ran and printed nothing. Print what you want to see."
ANEW = "The session begins anew: variables, functions and imports of earlier cells are gone."
LOST = {
    "timeout": "The cell took too long and was stopped.",
    "memory": "The cell used too much memory and was stopped.",
    "ended": "The cell ended the process of the session.",
    "garbled": "The cell wrote to the channel of the session and was stopped.",
}
MAX_WHY = 200
"""Characters."""
_ADDRESS = re.compile(r"\bat 0x[0-9A-Fa-f]+")
ADDRESS = "at 0x..."
"""What is shown in place of an object's address, which may be another one in a replay."""


class BrokenReply(Exception):
    """A reply that no supervisor writes."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """What one cell gave."""

    text: str
    """What it printed, the value of its last expression, its traceback, or why it was stopped; never empty."""
    failed: str = ""
    """``syntax`` (nothing ran), ``error`` (an exception), ``refused`` (``exit()``, ``input()``), or one of ``LOST``;
    empty if it ran to its end. In words of the cell's own process, which may lie about itself."""

    @property
    def lost(self) -> bool:
        """Whether the state is lost: the next cell begins a new one."""
        return self.failed in LOST


def read_cell(records: Sequence[JobRecord], most: int) -> CellResult | None:
    """What records say, as text of about ``most`` characters; ``None`` if the process was gone, through no cell.

    Raises :class:`BrokenReply`.
    """
    try:
        (_, verdict), (_, head), (_, tail) = records
        told = json.loads(verdict)
        failed, why, left_out = told["failed"], str(told["why"])[:MAX_WHY], told["left_out"]
    except (ValueError, TypeError, KeyError) as error:
        raise BrokenReply(str(error)) from error
    if failed == GONE:
        return None
    if failed == "open":
        raise BrokenReply(f"a session could not be closed in: {_text(head)[:MAX_WHY]}")
    if failed not in LOST and failed not in TOLD.values():
        raise BrokenReply(f"a verdict that there is not: {failed!r}")
    # what was printed until a limit was met is no two times the same
    printed = (
        shortened(head, tail, left_out, most) if failed not in LOST or failed == "ended" else ""
    )
    if failed not in LOST:
        return CellResult(printed or NOTHING, failed)
    reason = LOST[failed] + (f" ({why})" if why else "")
    return CellResult("\n".join(filter(None, (printed, reason, ANEW))), failed)


def shortened(head: bytes, tail: bytes, left_out: int | None, most: int) -> str:
    """What was printed: of more than ``most`` characters the beginning and the end.

    ``left_out`` characters are missing between head and tail; ``None`` if nothing is.
    """
    half = most // 2
    if left_out is not None:
        beginning, end = _text(head), _text(tail.lstrip(CONTINUATION))
    else:
        text = _text(head + tail)
        if len(text) <= most:
            return text.rstrip("\n")
        beginning, end, left_out = text[:half], text[half:], 0
    left_out += max(len(beginning) - half, 0) + max(len(end) - half, 0)
    note = f"[... {left_out:,} characters are left out here ...]"
    return f"{beginning[:half]}\n{note}\n{end[-half:]}".rstrip("\n")


def _text(data: bytes) -> str:
    return _ADDRESS.sub(ADDRESS, data.decode(errors="replace"))
