"""``coterie import`` and ``coterie export``: our own record, and the files of published systems.

Commands for those files are the recipes' own; here they are hung up under the recipes' names.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from coterie.cli.export_model import export_model
from coterie.recipes.registry import descriptions

RECORD = "record"


class _Group(TyperGroup):
    """A group that takes a first word which is none of its commands as its command ``record``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command in front where it is left out."""
        first = next((arg for arg in args if not arg.startswith("-")), None)
        if first is not None and first not in self.commands:
            args = [RECORD, *args]
        return super().parse_args(ctx, args)


export_app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Write a run as JSONL: `coterie export RUN FILE`; in another system's form; or its model.",
)
import_app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Read JSONL: `coterie import FILE STORE`, or files of another system.",
)
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


@export_app.command(RECORD)
def export_record(
    folder: RunArgument,
    file: Annotated[Path, typer.Argument(help="JSONL file to write.")],
    secrets: Annotated[bool, typer.Option(help="Also write privileged fields.")] = False,
) -> None:
    """Write a run's record as JSONL. The word `record` can be left out.

    Example:

        coterie export runs/optima-isft record.jsonl
    """
    from coterie.trajectories.jsonl import export
    from coterie.trajectories.store import Store

    with Store.open(folder / "store.sqlite", read_only=True) as store:
        export(store, file, secrets=secrets)
    print(file)


export_app.command("model")(export_model)


@import_app.command(RECORD)
def import_record(
    file: Annotated[Path, typer.Argument(help="JSONL file to read.")],
    store: Annotated[Path, typer.Argument(help="Store to make, such as runs/mine/store.sqlite.")],
) -> None:
    """Make a store from JSONL; a broken line is named by its number and nothing is written. The word
    `record` can be left out.

    Example:

        coterie import record.jsonl imported.sqlite
    """
    from coterie.trajectories.jsonl import import_

    import_(file, store)
    print(store)


for _one in descriptions():
    if _one.export_files is not None:
        export_app.command(_one.name)(_one.export_files)
    if _one.import_files is not None:
        import_app.command(_one.name)(_one.import_files)
