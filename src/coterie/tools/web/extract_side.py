"""Takes the text out of pages, in a process of its own: a page may be made to take all time or memory.

Reads lines of JSON (``{"html": ..., "url": ...}``) and answers each with one (``{"title": ..., "text": ...}``). Started
by :mod:`coterie.tools.web.pages`; run by hand it says ``ready`` if the package trafilatura is there.
"""

import json
import resource
import sys

from trafilatura import extract, extract_metadata, html2txt

MEMORY = 4 * 2**30
"""Bytes of address space."""

HEAD = 2000
"""Characters in which a whole page says that it is one."""


def main() -> None:
    """Answer lines until there are no more."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, hard))
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = text_of(request["html"], request["url"])
        except Exception as error:  # a page may break the parser in any way, and then has no text
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


def text_of(html: str, url: str) -> dict[str, str]:
    """The title and the text of a page, with its links as Markdown; all of its text where no article is found."""
    if "<html" not in html[:HEAD].lower():
        html = f"<html><body>{html}</body></html>"  # else it is not taken for a page
    text = extract(html, url=url, output_format="markdown", include_links=True, include_tables=True)
    found = extract_metadata(html, default_url=url)
    return {"title": (found and found.title) or "", "text": text or html2txt(html) or ""}


if __name__ == "__main__":
    main()
