"""Fetches one page: from addresses that were checked, with limits of size and time, following redirects by hand.

A connection is made for one request, and to the address that was checked: whatever its name stands for a moment later
changes nothing. TLS checks the name. There are no cookies, proxies or passwords.
"""

import asyncio
import ssl
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2

from coterie.config.settings import key
from coterie.tools.web.addresses import (
    Address,
    HostSettings,
    PageError,
    checked_addresses,
    web_url,
)

MAX_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
MAX_ADDRESSES = 3
"""Addresses of a host that are tried."""
CONNECT = 10.0
"""Seconds for a connection to one address."""
GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class FetchSettings(HostSettings):
    """How pages are fetched."""

    page_seconds: float = key(
        30.0, "Seconds for a page, its redirects and all of its body included.", gt=0
    )
    page_bytes: int = key(
        5_000_000, "Bytes of a page that are read, sent and unpacked; it is cut off there.", ge=1000
    )
    user_agent: str = key("coterie (research agent)", "What servers are told of us.", min_length=1)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a server sent."""

    url: str
    """Where it was in the end."""
    kind: str
    """The media type that the server names, without parameters; empty if it names none."""
    charset: str
    """As the server names it; empty if it does not."""
    body: bytes
    whole: bool
    """Whether it was not cut off."""


class Fetcher:
    """Fetches pages. To be closed. ``trust`` is whose certificates TLS believes; default: the system's."""

    def __init__(self, settings: FetchSettings, *, trust: ssl.SSLContext | None = None) -> None:
        self.settings = settings
        # No connection is used twice: one that was made for a name would do for another name of that address.
        self._transport = httpx2.AsyncHTTPTransport(
            verify=trust or ssl.create_default_context(),
            limits=httpx2.Limits(max_keepalive_connections=0),
            trust_env=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def fetch(self, url: str, kinds: tuple[str, ...]) -> Fetched:
        """The page of a URL, if its media type begins with one of ``kinds`` or is not named.

        Raises :class:`PageError`.
        """
        try:
            async with asyncio.timeout(self.settings.page_seconds):
                return await self._follow(url, kinds)
        except TimeoutError as error:
            raise PageError(
                f"it took longer than {self.settings.page_seconds:g} seconds"
            ) from error

    async def _follow(self, text: str, kinds: tuple[str, ...]) -> Fetched:
        url = web_url(text)
        for _ in range(MAX_REDIRECTS + 1):
            addresses = await checked_addresses(url, self.settings)
            response = await self._connect(url, addresses)
            try:
                if response.status_code not in REDIRECTS or "location" not in response.headers:
                    return await self._read(url, response, kinds)
                try:
                    url = web_url(str(url.join(response.headers["location"])))
                except httpx2.InvalidURL as error:
                    raise PageError(f"it redirects to what is not a URL: {error}") from error
            finally:
                await response.aclose()
        raise PageError(f"it redirects more than {MAX_REDIRECTS} times")

    async def _connect(self, url: httpx2.URL, addresses: list[Address]) -> httpx2.Response:
        """The head of the answer of the first address that answers."""
        failure: Exception | None = None
        for address in addresses[:MAX_ADDRESSES]:
            try:
                return await self._transport.handle_async_request(self._request(url, address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
            except httpx2.TransportError as error:
                raise PageError(f"it can't be read: {error or type(error).__name__}") from error
        raise PageError(f"there is no connection to {url.host}: {failure}") from failure

    def _request(self, url: httpx2.URL, address: Address) -> httpx2.Request:
        headers = {
            "Host": url.netloc.decode("ascii"),
            "User-Agent": self.settings.user_agent,
            "Accept": "text/html,text/*;q=0.9,*/*;q=0.1",
            "Accept-Encoding": "gzip",
            "Connection": "close",
        }
        limits = {
            "connect": min(CONNECT, self.settings.page_seconds),
            "read": self.settings.page_seconds,
            "write": self.settings.page_seconds,
            "pool": self.settings.page_seconds,
        }
        extensions = {"timeout": limits, "sni_hostname": url.raw_host.decode("ascii").rstrip(".")}
        return httpx2.Request(
            "GET", url.copy_with(host=str(address)), headers=headers, extensions=extensions
        )

    async def _read(
        self, url: httpx2.URL, response: httpx2.Response, kinds: tuple[str, ...]
    ) -> Fetched:
        if response.status_code != 200:
            raise PageError(f"the server answers with status {response.status_code}")
        kind, _, parameters = response.headers.get("content-type", "").lower().partition(";")
        kind = kind.strip()
        if kind and not kind.startswith(kinds):
            raise PageError(f"it is {kind[:100]}, which is not read")
        charset = parameters.partition("charset=")[2].partition(";")[0].strip(" \"'")
        body = bytearray()
        try:
            async for piece in unpacked(response, self.settings.page_bytes):
                body += piece
        except httpx2.TransportError as error:
            raise PageError(f"the connection broke off: {error or type(error).__name__}") from error
        whole = len(body) < self.settings.page_bytes
        return Fetched(str(url), kind, charset, bytes(body), whole)


async def unpacked(response: httpx2.Response, most: int) -> AsyncIterator[bytes]:
    """The body as it arrives, unpacked: at most ``most`` bytes, of at most so many that are sent."""
    coding = response.headers.get("content-encoding", "identity").lower().strip()
    if coding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise PageError(f"it is packed as {coding[:100]}, which was not asked for")
    unpack = None if coding in ("identity", "") else zlib.decompressobj(GZIP_OR_ZLIB)
    sent, left = 0, most
    async for piece in response.aiter_raw():
        try:
            got = piece[:left] if unpack is None else unpack.decompress(piece, left)
        except zlib.error as error:
            raise PageError(f"it can't be unpacked: {error}") from error
        yield got
        sent += len(piece)
        left -= len(got)
        if left <= 0 or sent >= most or (unpack is not None and unpack.eof):
            return
