"""``coterie list``: recipes, environments, data sets and models by name."""

from collections.abc import Iterable

from rich.table import Table

from coterie.cli.models import model_table
from coterie.terminal import results


def list_names() -> None:
    """List recipes, environments, data sets and models.

    `coterie data list` also has licenses and numbers of rows.

    Example:

        coterie list
    """
    from coterie.datasets.catalogue import CATALOGUE
    from coterie.environments.registry import MICRO_WORLDS, PLAYED_IN, TOOLS
    from coterie.recipes.registry import names, settings_type

    out = results()
    recipes = ((name, settings_type(name).summary) for name in names())
    out.print(_table("recipes: coterie run NAME", recipes))
    out.print(
        "environments: coterie evaluate NAME, coterie run RECIPE environment=NAME", style="bold"
    )
    out.print("  " + ", ".join(dict.fromkeys((*MICRO_WORLDS, *TOOLS, "question"))))
    sets = (
        (name, f"{CATALOGUE[name].what if name in CATALOGUE else 'rows of a file'} ({own['name']})")
        for name, own in PLAYED_IN.items()
    )
    out.print(_table("data sets: coterie evaluate NAME, coterie run RECIPE dataset=NAME", sets))
    out.print("models: coterie run RECIPE model=NAME", style="bold")
    out.print(model_table())


def _table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(
        box=None, title=title, title_justify="left", title_style="bold", show_header=False
    )
    for row in rows:
        table.add_row(*row)
    return table
