"""How pages are read."""

from coterie.config.settings import key
from coterie.engines.endpoint import EndpointSettings
from coterie.tools.web.fetch import FetchSettings


class CrawlSettings(FetchSettings):
    """Which pages may be read, what of them is shown, and what of that is kept."""

    pages: str = key(
        "", "A JSONL file of pages that takes the place of the web, with no others; empty: the web."
    )
    fetches: int = key(16, "Most pages that are fetched at a time.", ge=1)
    page_characters: int = key(
        10_000, "Characters of a page that are shown where it is not summarised.", ge=100
    )
    summary: EndpointSettings | None = key(
        None, "A chat model that summarises each page for the question; none: its text is shown."
    )
    summary_characters: int = key(
        60_000, "Characters of a page that the chat model is given.", ge=100
    )
    summary_tokens: int = key(800, "Most tokens of a summary.", ge=1)
    cache: str = key("", "A file in which texts of pages are kept; empty: they are kept nowhere.")
    cache_seconds: float = key(
        10_800.0, "How long a page is kept.", gt=0, source="GAP's crawl server"
    )
    cache_entries: int = key(10_000, "Most pages that are kept.", ge=1, source="GAP's crawl server")
