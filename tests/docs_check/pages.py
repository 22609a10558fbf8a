"""Reads the commands that stand in code blocks of the pages."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = re.compile(r"(?:[A-Z_]+=\S+ )*(?:coterie|make|curl|pip|vllm|(?:\S+/)?python3?) |export ")
"""How a line begins that is a command; other lines of blocks are output, settings or Python."""
FENCE, INDENT = "```", "    "


@dataclass(frozen=True)
class Command:
    """A command of a page."""

    page: str
    line: int
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def pages() -> list[Path]:
    """All pages that tell a user what to type."""
    folders = ("docs/**/*.md", "experiments/*.md")
    found = [page for pattern in folders for page in sorted(ROOT.glob(pattern))]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *found]


def commands(page: Path) -> list[Command]:
    """The commands of a page's code blocks, in their order."""
    return commands_of(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())


def commands_of(text: str, page: str) -> list[Command]:
    """The commands of the code blocks (indented, or fenced without a language) of a text."""
    every, fence, begun, start = list[Command](), None, "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(FENCE):
            fence = None if fence is not None else line.strip().removeprefix(FENCE)
            continue
        if not (line.startswith(INDENT) if fence is None else fence in ("", "sh", "bash")):
            continue
        start = start if begun else number
        begun += line.strip()
        if begun.endswith("\\"):
            begun = begun[:-1]
            continue
        if PROGRAM.match(begun + " "):
            every.append(Command(page, start, tuple(shlex.split(begun, comments=True))))
        begun = ""
    return every
