"""``coterie serve``: a model behind an OpenAI-compatible server, and tools behind theirs."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.serve_model import model
from coterie.errors import UserError
from coterie.terminal.console import notes

app = typer.Typer(no_args_is_help=True, help="Serve models and tools over HTTP.")
console = notes()

BACKLOG = 2048
"""Connections that may wait to be taken."""


@app.callback()
def serve() -> None:
    """Serve models and tools over HTTP."""


app.command()(model)


@app.command()
def tools(
    config: Annotated[
        Path, typer.Option(help="A YAML file: `tools:`, a list with the settings of each.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8008,
    stdio: Annotated[
        bool,
        typer.Option(
            "--stdio", help="Serve the tool of kind mcp by standard input and output instead."
        ),
    ] = False,
) -> None:
    """Serve tools that agents call: passages, searches, pages, code; each by its own protocol.

    What each kind needs, and its keys: docs/howto/tools.md. A line for each request goes to standard error.

    Example:

        coterie serve tools --config tools.yaml
    """
    from coterie.tools.servers.config import read_tools

    if stdio:
        _talk(config)
        return
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(_bound(host, port)) as listener:
        url = _address(listener)
        served = read_tools(config)
        from coterie.tools.servers.running import run

        def ready() -> None:
            _listen(listener)
            print(url, flush=True)
            names = ", ".join(one.settings.name for one in served)
            console.print(f"serving {names} at {url} (Ctrl-C ends it)")

        logging.basicConfig(format="%(asctime)s %(message)s")
        logging.getLogger("coterie.tools.servers").setLevel(logging.INFO)
        run(served, listener, ready)
    console.print("stopped")


def _talk(config: Path) -> None:
    """Serve one client of MCP by standard input and output."""
    from coterie.tools.servers.config import read_tools

    offered = [one.backend for one in read_tools(config) if one.settings.kind == "mcp"]
    if len(offered) != 1:
        raise UserError(
            f"{config} has {len(offered)} tools of kind mcp", "--stdio serves one: name it alone"
        )
    from coterie.tools.mcp.server import McpBackend

    assert isinstance(offered[0], McpBackend)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(offered[0].talk())


def _address(listener: socket.socket) -> str:
    """The URL of a socket that has a port; warns if others than this machine can reach it."""
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host).is_loopback:
        console.print(
            f"warning: whoever can reach {host} port {port} can use this server: it asks for no key",
            style="yellow",
        )
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _bound(host: str, port: int) -> socket.socket:
    """A socket that has the port, and refuses connections until it listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UserError(
            f"--host {host}: {error.strerror}", "give an address of this machine"
        ) from error
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _unusable(host, port, error) from error
    return bound


def _listen(bound: socket.socket) -> None:
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _unusable(host, port, error) from error


def _unusable(host: str, port: int, error: OSError) -> UserError:
    if error.errno == errno.EADDRINUSE:
        return UserError(
            f"port {port} of {host} is in use",
            "end what uses it, give another with --port, or take a free one with --port 0",
        )
    return UserError(
        f"can't listen on {host} port {port}: {error.strerror}",
        "give an address of this machine with --host, and a port above 1023 with --port",
    )
