"""``coterie run --dry-run``: the plan of a run, with its time and memory on this machine."""

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from coterie.cli.running import plan_table
from coterie.errors import UserError
from coterie.recipes.base import Recipe
from coterie.recipes.trial import Estimate, estimate
from coterie.terminal.progress import duration


def dry_run(recipe: Recipe, out: Console, notes: Console) -> None:
    """Print what a run of the recipe would do and take; nothing is left behind."""
    table = plan_table(recipe)
    notes.print("trying a small piece of the run, which tells its time and memory ...")
    try:
        found = estimate(recipe)
    except UserError as error:
        said = f"Time and memory are not estimated: {error.what}."
    else:
        for what, how_much in _lines(found):
            table.add_row(what, how_much)
        said = f"Time and memory are estimated by {found.basis}." + _without(found)
    out.print(table)
    out.print(Padding(Text(said), (1, 0, 0, 1)))


def _without(found: Estimate) -> str:
    if not found.untold:
        return ""
    return (
        f" The time is without {', '.join(found.untold)}, which could not be tried: {found.reason}."
    )


def _lines(found: Estimate) -> list[tuple[str, str]]:
    lines = []
    if found.seconds is not None:
        about = "at least" if found.untold else "about"
        lines.append(("time of all stages", f"{about} {duration(found.seconds)}"))
        lines.append(("memory of the process", f"about {_bytes(found.memory)}"))
    if found.device_memory:
        lines.append(("memory on the GPU", f"about {_bytes(found.device_memory)}"))
    return lines


def _bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
