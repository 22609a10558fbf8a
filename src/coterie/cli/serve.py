"""``coterie serve``: a model behind an OpenAI-compatible server, and tools behind an MCP server."""

import typer

from coterie.cli.serve_model import model
from coterie.cli.serve_tools import tools

app = typer.Typer(no_args_is_help=True, help="Serve models and tools over HTTP.")


@app.callback()
def serve() -> None:
    """Serve models and tools over HTTP."""


app.command()(model)
app.command()(tools)
