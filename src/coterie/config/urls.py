"""URLs of servers in settings."""

import httpx2


def server_url(url: str) -> httpx2.URL:
    """Parse the URL of a server. Raise ``ValueError`` unless it is an HTTP(S) URL."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"is not a URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("must begin with http:// or https:// and a host")
    return parsed
