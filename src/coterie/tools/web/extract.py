"""The text of what a server sent: of HTML by ``trafilatura``, in processes of ours; plain text as it is."""

import asyncio
import codecs
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import UserError
from coterie.tools.line_process import LineProcess
from coterie.tools.web.addresses import PageError
from coterie.tools.web.fetch import Fetched

KINDS = ("text/", "application/xhtml+xml", "application/json", "application/xml")
"""Media types that are read."""
HTML = ("text/html", "application/xhtml+xml", "")
PROCESSES = 2
SECONDS = 20.0
"""For one page."""
SIGHT = 4096
"""Bytes in which a page may name its encoding, and in which it shows if it is not text."""
_NAMED = re.compile(
    rb"""<meta[^>]{1,200}charset\s*=\s*["']?\s*([A-Za-z0-9_:-]{1,40})""", re.IGNORECASE
)
_TEXTS = re.compile(r"utf|iso8859|cp125|cp932|koi8|gb|big5|euc|shift|mac-roman|ascii")
"""Codecs of the web; Python has some whose decoding takes time that grows with the square of the length."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page as text."""

    url: str
    title: str
    text: str
    whole: bool = True


class Extractor:
    """Takes texts out of pages. To be closed. Raises ``UserError`` if trafilatura is missing."""

    def __init__(self) -> None:
        if importlib.util.find_spec("trafilatura") is None:
            raise UserError(
                "reading pages needs the package trafilatura", "pip install 'coterie[web]'"
            )
        self._free: asyncio.LifoQueue[LineProcess] = asyncio.LifoQueue()
        program = Path(__file__).with_name("extract_side.py")
        self._processes = [LineProcess(program, "trafilatura") for _ in range(PROCESSES)]
        for process in self._processes:
            self._free.put_nowait(process)

    async def page(self, fetched: Fetched) -> Page:
        """The text of a page. Raises :class:`PageError` for what is not text, or has none."""
        text = decoded(fetched)
        if fetched.kind not in HTML:
            return Page(fetched.url, "", text.strip(), fetched.whole)
        line = json.dumps({"html": text, "url": fetched.url})
        process = await self._free.get()
        asked = asyncio.ensure_future(asyncio.to_thread(process.ask, line, SECONDS))
        # Also where nobody waits any more: the process is free when it has answered.
        asked.add_done_callback(lambda _: self._free.put_nowait(process))
        answer = await asyncio.shield(asked)
        if answer is None:
            raise PageError("it is too large or too complicated for its text to be extracted")
        found = json.loads(answer)
        if "error" in found:
            raise PageError(f"its text can't be extracted: {found['error']}")
        if not found["text"].strip():
            raise PageError("it has no text")
        return Page(fetched.url, found["title"], found["text"].strip(), fetched.whole)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()


def decoded(fetched: Fetched) -> str:
    """The characters of a page. Raises :class:`PageError` for what is not text, whatever its server says."""
    head = fetched.body[:SIGHT]
    wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or "16" in fetched.charset
    if head.startswith((b"%PDF", b"PK\x03\x04", b"\x1f\x8b")) or (b"\0" in head and not wide):
        raise PageError("it is not text, whatever its server says")
    named = _NAMED.search(head)
    for charset in (
        fetched.charset,
        named[1].decode() if named else "",
        "utf-16" if wide else "utf-8",
    ):
        try:
            if charset and _TEXTS.match(codecs.lookup(charset).name):
                return fetched.body.decode(
                    charset, errors="replace" if charset == fetched.charset else "strict"
                )
        except (LookupError, UnicodeError):
            continue
    return fetched.body.decode("utf-8" if not fetched.whole else "cp1252", errors="replace")
