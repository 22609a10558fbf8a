"""``coterie merge``: runs put together into one that trains on the tasks of all."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.terminal.console import notes


def merge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two or more run folders.")],
    folder: Annotated[Path, typer.Option(help="The merged run: a folder that does not exist.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Parts may be missing: the merged run does them.")
    ] = False,
) -> None:
    """Put runs together into one that trains on the tasks of all. The runs stay as they are.

    What is taken is what they did on their tasks before the first training. There are two kinds:

    Parts of one run, such as several machines have: the same settings, but rollout.shard=[0,3], [1,3] and [2,3].
    Each must have finished its rollouts. The merged run is the one that a single machine would have made: it selects
    from all tasks together.

    Families of tasks: runs of one recipe on different data sets or in different environments. Each must have selected,
    by its own budget, and the merged run trains on all that was selected. It has the settings of the run that is given
    first, and is evaluated on that one's held-out tasks.

    `coterie run` goes on with the merged run.

    Examples:

        coterie merge runs/part-0 runs/part-1 runs/part-2 --folder runs/whole

        coterie merge runs/part-0 runs/part-2 --folder runs/whole --partial

        coterie merge runs/maths runs/babyai --folder runs/both
    """
    from coterie.recipes.merging import merge as put_together
    from coterie.terminal.progress import ConsoleProgress

    console = notes()
    progress = ConsoleProgress(console)
    made = put_together(runs, folder, console.print, progress, partial=partial)
    console.print(f"{made.tasks} tasks of {len(runs)} runs are in {folder}")
    if made.missing:
        parts = ", ".join(map(str, made.missing))
        console.print(f"the tasks of part {parts} are missing: the merged run does them itself")
    print(f"coterie run {made.recipe} --folder {folder}")
