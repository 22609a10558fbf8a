"""``coterie merge``: the parts of a run, merged into the run that a single machine would have made."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.terminal import notes


def merge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two or more run folders.")],
    folder: Annotated[Path, typer.Option(help="The merged run: a folder that does not exist.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Parts may be missing: the merged run does them.")
    ] = False,
) -> None:
    """Merge the parts of a run that several machines have sampled. The parts stay as they are.

    Parts have the same settings, but rollout.shard=[0,3], [1,3] and [2,3], and each must have finished its rollouts.
    The merged run is the one that a single machine would have made: it selects from all tasks together. `coterie run`
    continues it.

    Examples:

        coterie merge runs/part-0 runs/part-1 runs/part-2 --folder runs/whole

        coterie merge runs/part-0 runs/part-2 --folder runs/whole --partial
    """
    from coterie.recipes.merge import merge as merge_parts
    from coterie.terminal import ConsoleProgress

    console = notes()
    progress = ConsoleProgress(console)
    made = merge_parts(runs, folder, console.print, progress, partial=partial)
    console.print(f"{made.tasks} tasks of {len(runs)} runs are in {folder}")
    if made.missing:
        parts = ", ".join(map(str, made.missing))
        console.print(f"the tasks of part {parts} are missing: the merged run does them itself")
    print(f"coterie run {made.recipe} --folder {folder}")
