"""``coterie serve``: a model behind an OpenAI-compatible server, and tools behind an MCP server."""

import asyncio
import contextlib
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.serve_model import model
from coterie.errors import UserError
from coterie.terminal import notes

console = notes()


def tools(
    config: Annotated[Path, typer.Option(help="YAML file of tools, as for `tools.config`.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free port.")] = 8008,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Serve one client on standard input and output.")
    ] = False,
) -> None:
    """Serve the tools of a file as an MCP server, on 127.0.0.1 under /mcp or on standard input and output.

    docs/howto/tools.md lists the keys of each tool.

    Example:

        coterie serve tools --config tools.yaml
    """
    from coterie.tools.mcp import ToolServer
    from coterie.tools.registry import sources_in

    with contextlib.suppress(KeyboardInterrupt):
        if stdio:
            asyncio.run(ToolServer(sources_in(config)).talk())
            return
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.closing(_listener(port)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
            server = ToolServer(sources_in(config))

            def ready() -> None:
                print(url, flush=True)
                console.print(f"serving {config} at {url} (Ctrl-C ends it)")

            asyncio.run(server.listen(listener, ready))
    console.print("stopped")


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise UserError(
            f"can't listen on port {port}: {error.strerror}",
            "stop the program that uses it, or take a free port with --port 0",
        ) from error


app = typer.Typer(no_args_is_help=True, help="Serve models and tools over HTTP.")


@app.callback()
def serve() -> None:
    """Serve models and tools over HTTP."""


app.command()(model)
app.command()(tools)
