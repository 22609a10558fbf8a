"""``coterie serve``: a model behind an OpenAI-compatible server of our own."""

import contextlib
import errno
import ipaddress
import json
import socket
from typing import Annotated

import typer

from coterie.errors import UserError
from coterie.terminal.console import notes

app = typer.Typer(no_args_is_help=True, help="Serve models over HTTP.")
console = notes()

BACKLOG = 2048
"""Connections that may wait to be taken."""


@app.callback()
def serve() -> None:
    """Serve models over HTTP."""


@app.command()
def model(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL", help="A run folder; or a packaged model, a folder, a hub name."
        ),
    ],
    iteration: Annotated[
        int | None,
        typer.Option(
            help="Of a run: the policy that this iteration began with (0: the base); "
            "default: the newest."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    allow_loading: Annotated[
        bool,
        typer.Option(
            "--allow-loading", help="Let clients load weights from folders of this machine."
        ),
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="What clients call the model; default: RUN|MODEL as given.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, cuda:1; default: the run's, or auto.")
    ] = None,
) -> None:
    """Serve a run's trained policy, or any model, by an OpenAI-compatible protocol.

    Examples:

        coterie serve model runs/optima-isft

        coterie serve model tiny-exchange --port 8001
    """
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(_bound(host, port)) as listener:
        host, port = listener.getsockname()[:2]
        if not ipaddress.ip_address(host).is_loopback:
            console.print(
                f"warning: whoever can reach {host} port {port} can use this "
                "server: it asks for no key",
                style="yellow",
            )
        from coterie.cli.serving import open_policies, run

        policies = open_policies(source, iteration, name or source, device)
        _listen(listener)
        _announce(policies.base.name, f"http://{f'[{host}]' if ':' in host else host}:{port}")
        run(policies, listener, allow_loading=allow_loading)
    console.print("stopped")


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


def _announce(name: str, url: str) -> None:
    """The URL on standard output, and how to try it."""
    print(url, flush=True)
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
    console.print(f"serving {name} at {url}/v1 (Ctrl-C ends it); try:")
    console.print(
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d '{json.dumps(body)}'",
    )
