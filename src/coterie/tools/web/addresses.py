"""Which hosts may be asked: by name, and by every address that the name stands for.

A page may link to this machine, to a neighbour in its network, or to the address where clouds hand out passwords. So a
name is looked up once, all its addresses are checked, and the connection goes to one that was checked.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Self

import httpx2
from pydantic import field_validator, model_validator

from coterie.config.settings import Settings, key
from coterie.tools.run import ToolError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
GLOBAL_6 = ipaddress.ip_network("2000::/3")
"""All IPv6 addresses of the public net; those that hold an IPv4 address and are not below 2002::/16 are elsewhere."""
NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "100.64.0.0/10",  # shared by providers; also a cloud's metadata
            "168.63.129.16/32",  # a cloud's own server, at a public address
            "192.0.0.0/24",  # protocols; also a cloud's metadata
            "192.88.99.0/24",  # relays to IPv6
            "2001::/23",  # protocols; Teredo holds IPv4 addresses
            "2001:db8::/32",
            "2002::/16",  # holds IPv4 addresses
            "3fff::/20",
        ),
    )
)
"""Refused beside what Python's ``ipaddress`` knows to be special, which differs from version to version."""
LOOKUP = 10.0
"""Seconds for one look-up of a name."""


class PageError(ToolError):
    """A page can't be read, and the agent that asked for it is told why."""


class HostSettings(Settings):
    """Whom pages may be fetched from."""

    allowed_hosts: tuple[str, ...] = key(
        (), "The only hosts that are asked, each with all below it (`example.org`); empty: all."
    )
    denied_hosts: tuple[str, ...] = key(
        (), "Hosts that are never asked, each with all below it; goes before allowed_hosts."
    )
    private_hosts: tuple[str, ...] = key(
        (),
        "Hosts with a port (`wiki.intranet:80`, `127.0.0.1:8080`) that may have addresses of this machine or a private "
        "network. All others are refused there.",
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


def web_url(text: str) -> httpx2.URL:
    """A URL that may be asked for. Raises :class:`PageError`."""
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
    """The port of a URL, named or not."""
    return url.port or (443 if url.scheme == "https" else 80)


def check_name(url: httpx2.URL, settings: HostSettings) -> None:
    """Refuse, with :class:`PageError`, a host that the settings do not allow."""
    host = _plain(url.host)
    if any(_below(host, one) for one in settings.denied_hosts):
        raise PageError(f"pages of {host} may not be read")
    if settings.allowed_hosts and not any(_below(host, one) for one in settings.allowed_hosts):
        raise PageError(f"pages of {host} may not be read")


async def checked_addresses(url: httpx2.URL, settings: HostSettings) -> list[Address]:
    """The addresses of a URL's host, all of which may be connected to. Raises :class:`PageError`.

    One address that may not be asked spoils all: such a name is a trap, or a network's own.
    """
    check_name(url, settings)
    found = await _look_up(url.raw_host.decode("ascii"), port(url))
    if f"{_plain(url.host)}:{port(url)}" in settings.private_hosts:
        return found
    for address in found:
        if not is_public(address):
            raise PageError(f"{url.host} is not in the public net, so it may not be read")
    return found


def is_public(address: Address) -> bool:
    """Whether an address is one of the public net, and of one host."""
    if any(address in net for net in NOT_PUBLIC if net.version == address.version):
        return False
    if isinstance(address, ipaddress.IPv6Address) and address not in GLOBAL_6:
        return False  # among them IPv4 addresses written as IPv6: ::ffff:127.0.0.1, 64:ff9b::7f00:1
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
