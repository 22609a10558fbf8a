"""Process that extracts the text of pages, since a malicious page may take unbounded time or memory.

Reads lines of JSON (``{"html": ..., "url": ...}``) and answers each with one (``{"title": ..., "text": ...}``).
:mod:`coterie.tools.web` starts it. Run by hand, it prints ``ready`` if the package trafilatura is installed.
"""

import json
import resource
import sys

from trafilatura import extract, extract_metadata, html2txt

MEMORY = 4 * 2**30
"""Bytes of address space."""

HEAD = 2000
"""Characters in which a complete page has its ``<html`` tag."""


def main() -> None:
    """Answer each input line."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, hard))
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = text_of(request["html"], request["url"])
        except Exception as error:  # a page may break the parser in any way
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


def text_of(html: str, url: str) -> dict[str, str]:
    """Return the title and the text of a page, with links as Markdown; all text if it has no article."""
    if "<html" not in html[:HEAD].lower():
        html = f"<html><body>{html}</body></html>"  # trafilatura expects a complete page
    text = extract(html, url=url, output_format="markdown", include_links=True, include_tables=True)
    metadata = extract_metadata(html, default_url=url)
    return {"title": (metadata and metadata.title) or "", "text": text or html2txt(html) or ""}


if __name__ == "__main__":
    main()
