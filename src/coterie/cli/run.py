"""``coterie run``: a whole recipe, its plan, or the rest of a run."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.config.plugins import label
from coterie.terminal import Words, notes, results

RecipeName = Annotated[
    str | None,
    typer.Argument(
        metavar="[RECIPE]",
        help="Such as optima/isft, or path/file.py:NAME; default: the file's, or the folder's.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="A YAML file of settings; what is given as KEY=VALUE wins over it."),
]
NewFolder = Annotated[
    Path | None, typer.Option(help="Run folder; default: runs/RECIPE. Resumed if it exists.")
]
DryRun = Annotated[bool, typer.Option(help="Print the plan with its time and memory, and stop.")]
Fork = Annotated[
    Path | None,
    typer.Option(help="Make this new run, keeping the steps that the settings leave valid."),
]


def run(
    recipe: RecipeName = None,
    words: Words = None,
    config: Config = None,
    folder: NewFolder = None,
    dry_run: DryRun = False,
    fork: Fork = None,
) -> None:
    """Run a whole recipe, or the rest of it.

    A file of settings has lines such as `recipe: optima/isft`, `seed: 3`, and groups such as `rollout:`
    with `samples: 4` below; the config.yaml of a run folder is one.

    --dry-run tries a small piece of the run, mostly for less than a minute, and leaves nothing behind.

    Examples:

        coterie run optima/isft

        coterie run --config mine.yaml seed=4

        coterie run --folder runs/optima-isft

        coterie run optima/isft rollout.samples=4 --folder runs/four --dry-run

        coterie run optima/isft reward.lambda_token=0.3 --folder runs/four --fork runs/brief
    """
    from coterie.cli.arguments import read_arguments, stored_settings

    arguments = read_arguments(recipe, words or [], config, folder)
    folder = folder or Path("runs") / label(arguments.recipe).replace("/", "-")
    own = arguments.resolve(stored_settings(arguments.recipe, folder, forked=fork is not None))
    # Only now, for these imports take seconds and wrong settings are refused without them.
    from coterie.cli.execution import run_recipe
    from coterie.recipes.registry import recipe as recipe_of

    if dry_run:
        from coterie.cli.execution import dry_run as show

        show(recipe_of(own), results(), notes())
    else:
        run_recipe(own, folder, notes(), fork_to=fork)
