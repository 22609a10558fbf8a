"""Fetches of web pages from checked addresses, with limits on size and time.

A page may link to this machine, to its private network, or to a cloud's metadata server with credentials. So a name is
resolved once, all its addresses are checked, and the connection uses a checked address, so that later DNS changes have
no effect. Each connection serves one request. TLS checks the name. There are no cookies, proxies or passwords, and each
redirect is checked like a new URL.
"""

import asyncio
import ipaddress
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Self

import httpx2
from pydantic import field_validator, model_validator

from coterie.config.settings import Settings, key
from coterie.tools.calls import ToolError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
GLOBAL_6 = ipaddress.ip_network("2000::/3")
"""Public IPv6 addresses. Only 2002::/16 of them embeds IPv4 addresses."""
NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "100.64.0.0/10",  # shared by providers; also a cloud's metadata
            "168.63.129.16/32",  # a cloud's metadata at a public address
            "192.0.0.0/24",  # protocols; also a cloud's metadata
            "192.88.99.0/24",  # relays to IPv6
            "2001::/23",  # protocols; Teredo holds IPv4 addresses
            "2001:db8::/32",
            "2002::/16",  # holds IPv4 addresses
            "3fff::/20",
        ),
    )
)
"""Refused networks, in addition to the special ones of ``ipaddress``, which vary by Python version."""
LOOKUP = 10.0
"""Timeout of a DNS query."""
MAX_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
MAX_ADDRESSES = 3
CONNECT = 10.0
"""Timeout of a connection to one address."""
GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class PageError(ToolError):
    """A page can't be read. The agent sees the message."""


class HostSettings(Settings):
    """Hosts from which pages may be fetched."""

    allowed_hosts: tuple[str, ...] = key(
        (), "Allowed hosts, including their subdomains (`example.org`); empty: all."
    )
    denied_hosts: tuple[str, ...] = key(
        (), "Denied hosts, including their subdomains; overrides allowed_hosts."
    )
    private_hosts: tuple[str, ...] = key(
        (),
        "Hosts with a port (`wiki.intranet:80`, `127.0.0.1:8080`) that may be on this machine or a private network. "
        "Other hosts with private addresses are refused.",
    )

    @field_validator("allowed_hosts", "denied_hosts", "private_hosts")
    @classmethod
    def _plain(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not host or "/" in host or "*" in host:
                raise ValueError(
                    f"{host!r} is not a host; write `example.org`, without https:// and *"
                )
        return tuple(_plain(host) for host in hosts)

    @model_validator(mode="after")
    def _ports(self) -> Self:
        for host in self.private_hosts:
            if not host.rpartition(":")[2].isdigit():
                raise ValueError(f"{host!r} in private_hosts has no port; write `{host}:80`")
        return self


class FetchSettings(HostSettings):
    """Settings of page requests."""

    page_seconds: float = key(30.0, "Time limit of a page, including redirects, in seconds.", gt=0)
    page_bytes: int = key(
        5_000_000,
        "Limit on the compressed and the decompressed bytes of a page; it is truncated there.",
        ge=1000,
    )
    user_agent: str = key("coterie (research agent)", "User agent in requests.", min_length=1)


# -- addresses -----------------------------------------------------------------------------------


def web_url(text: str) -> httpx2.URL:
    """Parse a URL of the web. Raises :class:`PageError`."""
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise PageError(f"not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise PageError("not a URL of the web: it must begin with http:// or https:// and a host")
    if url.userinfo:
        raise PageError("a URL with a user's name is not read")
    if url.port is not None and not 0 < url.port < 2**16:
        raise PageError(f"not a URL: there is no port {url.port}")
    return url.copy_with(fragment=None)


def port(url: httpx2.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def check_name(url: httpx2.URL, settings: HostSettings) -> None:
    """Raise :class:`PageError` for a host that the settings do not allow."""
    host = _plain(url.host)
    if any(_below(host, one) for one in settings.denied_hosts):
        raise PageError(f"pages of {host} may not be read")
    if settings.allowed_hosts and not any(_below(host, one) for one in settings.allowed_hosts):
        raise PageError(f"pages of {host} may not be read")


async def resolve_addresses(url: httpx2.URL, settings: HostSettings) -> list[Address]:
    """Resolve a URL's host to allowed addresses. Raises :class:`PageError`.

    A host with any refused address is refused, since it is an attack or an internal name.
    """
    check_name(url, settings)
    addresses = await _look_up(url.raw_host.decode("ascii"), port(url))
    if f"{_plain(url.host)}:{port(url)}" in settings.private_hosts:
        return addresses
    for address in addresses:
        if not is_public(address):
            raise PageError(f"{url.host} is not in the public net, so it may not be read")
    return addresses


def is_public(address: Address) -> bool:
    if any(address in net for net in NOT_PUBLIC if net.version == address.version):
        return False
    if isinstance(address, ipaddress.IPv6Address) and address not in GLOBAL_6:
        return False  # including embedded IPv4 addresses: ::ffff:127.0.0.1, 64:ff9b::7f00:1
    return address.is_global and not address.is_multicast and not address.is_reserved


async def _look_up(host: str, number: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOKUP):
            rows: Sequence[tuple[object, ...]] = await loop.getaddrinfo(
                host.strip("[]").rstrip("."), number, type=socket.SOCK_STREAM
            )
    except (OSError, UnicodeError) as error:  # TimeoutError too
        raise PageError(f"the host {host} is not found") from error
    texts = dict.fromkeys(
        str(row[4][0]).partition("%")[0] for row in rows if isinstance(row[4], tuple)
    )
    return [ipaddress.ip_address(text) for text in texts]


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


def _below(host: str, parent: str) -> bool:
    return host == parent or host.endswith(f".{parent}")


# -- one page ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetched:
    """Response of a server."""

    url: str
    kind: str
    """Media type in the header, without parameters; empty if missing."""
    charset: str
    """Charset in the header; empty if missing."""
    body: bytes
    whole: bool
    """True if the body is not truncated."""


class Fetcher:
    """HTTP client for pages. Close it after use. ``trust`` has the certificates for TLS; default: the system's."""

    def __init__(self, settings: FetchSettings, *, trust: ssl.SSLContext | None = None) -> None:
        self.settings = settings
        # Connections are not reused: a connection for one name would serve another name with the same address.
        self._transport = httpx2.AsyncHTTPTransport(
            verify=trust or ssl.create_default_context(),
            limits=httpx2.Limits(max_keepalive_connections=0),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._transport.aclose()

    async def fetch(self, url: str, kinds: tuple[str, ...]) -> Fetched:
        """Fetch a page if its media type begins with one of ``kinds`` or is missing.

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
            addresses = await resolve_addresses(url, self.settings)
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
            async for piece in decompress(response, self.settings.page_bytes):
                body += piece
        except httpx2.TransportError as error:
            raise PageError(f"the connection broke off: {error or type(error).__name__}") from error
        whole = len(body) < self.settings.page_bytes
        return Fetched(str(url), kind, charset, bytes(body), whole)


async def decompress(response: httpx2.Response, most: int) -> AsyncIterator[bytes]:
    """Yield the decompressed body; ``most`` limits both the compressed and the decompressed bytes."""
    coding = response.headers.get("content-encoding", "identity").lower().strip()
    if coding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise PageError(f"it is packed as {coding[:100]}, which was not asked for")
    unpack = None if coding in ("identity", "") else zlib.decompressobj(GZIP_OR_ZLIB)
    sent, left = 0, most
    async for piece in response.aiter_raw():
        try:
            data = piece[:left] if unpack is None else unpack.decompress(piece, left)
        except zlib.error as error:
            raise PageError(f"it can't be unpacked: {error}") from error
        yield data
        sent += len(piece)
        left -= len(data)
        if left <= 0 or sent >= most or (unpack is not None and unpack.eof):
            return
