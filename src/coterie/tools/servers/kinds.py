"""The kinds of tools that ``coterie serve tools`` can serve, and what each of them gives the server.

A backend is a class. It is made before the port is taken or anything is loaded, and refuses there (``UserError``) what
can't work: no index, no key. Its routes are its own; limits, ids of requests, errors and health are the server's.
"""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from fastapi import APIRouter

from coterie.config.plugins import Kind
from coterie.config.settings import Settings, key

BACKENDS = Kind(
    "backend",
    {
        "retrieve": "coterie.tools.retrieval.server:RetrieveBackend",
        "code": "coterie.tools.servers.code:CodeBackend",
        "search": "coterie.tools.web.search_server:SearchBackend",
        "crawl": "coterie.tools.web.crawl_server:CrawlBackend",
        "mcp": "coterie.tools.mcp.server:McpBackend",
    },
)


class BackendSettings(Settings):
    """What every tool of a server has; a kind derives its own settings from it."""

    kind: str = key(..., "What it is: retrieve, code, search, crawl, mcp, or your own.")
    name: str = key(
        "",
        "Its name, under which its routes are also found (`/NAME/...`); default: its kind.",
        pattern=r"^[A-Za-z0-9_-]*$",
    )
    concurrent: int = key(64, "Requests that are worked on at the same time.", ge=1)
    queue: int = key(1000, "Requests that may wait; one more is answered with 503.", ge=0)
    seconds: float = key(
        120.0, "Time limit of a request, its wait included; a late one is answered with 408.", gt=0
    )
    body_bytes: int = key(
        1_000_000, "Most bytes of a request's body; a longer one is answered with 413.", ge=1
    )


class Backend(Protocol):
    """One tool of the server. The class names its settings as ``settings_type`` and is made with them."""

    @property
    def router(self) -> APIRouter:
        """Its routes, such as ``POST /retrieve``. Every ``POST`` is under the limits of its settings."""
        ...

    def open(self) -> AbstractAsyncContextManager[object]:
        """Loads what it needs, and keeps it for as long as the server runs.

        Raises ``UserError`` for what can't be loaded.
        """
        ...
