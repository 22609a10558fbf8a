"""Process that extracts the text of pages, since a malicious page may take unbounded time or memory.

:mod:`coterie.tools.web` starts it. Run by hand, it prints ``ready`` if the package trafilatura is installed.
"""

from trafilatura import extract, extract_metadata, html2txt

from coterie.tools.line_process import serve

MEMORY = 4 * 2**30
"""Bytes of address space."""
HEAD = 2000
"""Characters in which a complete page has its ``<html`` tag."""


def text_of(request: dict[str, str]) -> dict[str, str]:
    """Return the title and the text of a page, with links as Markdown; all text if it has no article."""
    html, url = request["html"], request["url"]
    if "<html" not in html[:HEAD].lower():
        html = f"<html><body>{html}</body></html>"  # trafilatura expects a complete page
    try:
        text = extract(
            html, url=url, output_format="markdown", include_links=True, include_tables=True
        )
        metadata = extract_metadata(html, default_url=url)
        return {"title": (metadata and metadata.title) or "", "text": text or html2txt(html) or ""}
    except Exception as error:  # a page may break the parser in any way
        return {"error": f"{type(error).__name__}: {error}"[:300]}


if __name__ == "__main__":
    serve(text_of, MEMORY)
