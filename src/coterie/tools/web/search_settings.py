"""How the web is searched."""

from pydantic import field_validator

from coterie.config.settings import Settings, key
from coterie.config.urls import server_url


def check_base(url: str) -> str:
    """A server's URL without its last slash; ``ValueError`` if it is not one, or holds a password."""
    if server_url(url).userinfo:
        raise ValueError("must not hold a password or key")
    return url.rstrip("/")


class SearchSettings(Settings):
    """Where queries are answered, and what of that is kept."""

    backend: str = key(
        "",
        "What answers: serper (Google's results, needs a key), corpus (a file of pages), or your own.",
    )
    upstream: str = key("https://google.serper.dev/search", "Of serper: where it is.", quiet=True)
    key_variable: str = key(
        "SERPER_API_KEY",
        "Of serper: environment variable (or name in `.env`) that holds the key. Not the key itself.",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        quiet=True,
    )
    requests_per_minute: float | None = key(None, "Of serper: most queries in any minute.", ge=1)
    upstream_concurrency: int = key(8, "Of serper: most queries at a time.", ge=1)
    upstream_seconds: float = key(60.0, "Of serper: seconds after which one try is given up.", gt=0)
    upstream_retries: int = key(
        3, "Of serper: further tries after a failure that may pass.", ge=0, le=20
    )
    pages: str = key("", "Of corpus: a JSONL file of rows with url, title, text, and perhaps date.")
    cache: str = key(
        "", "A file in which answers are kept; empty: they are kept nowhere. Not for corpus."
    )
    cache_seconds: float = key(
        3600.0, "How long an answer is kept.", gt=0, source="GAP's search server"
    )
    cache_entries: int = key(
        1_000_000, "Most answers that are kept.", ge=1, source="GAP's search server"
    )

    @field_validator("upstream")
    @classmethod
    def _check_upstream(cls, url: str) -> str:
        return check_base(url)
