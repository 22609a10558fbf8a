"""``coterie run``: run a recipe, print its plan, or resume a run."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.config.plugins import label
from coterie.terminal import Words, notes, results

RecipeName = Annotated[
    str | None,
    typer.Argument(
        metavar="[RECIPE]",
        help="Such as optima/isft, or path/file.py:NAME; default: the recipe of the file or folder.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="YAML file of settings; KEY=VALUE overrides it."),
]
NewFolder = Annotated[
    Path | None, typer.Option(help="Run folder; default: runs/RECIPE. Resumes an existing run.")
]
DryRun = Annotated[bool, typer.Option(help="Print the plan with time and memory, and stop.")]
Fork = Annotated[
    Path | None,
    typer.Option(help="New run folder that keeps the steps which the settings do not change."),
]


def run(
    recipe: RecipeName = None,
    words: Words = None,
    config: Config = None,
    folder: NewFolder = None,
    dry_run: DryRun = False,
    fork: Fork = None,
) -> None:
    """Run a recipe, or resume a run.

    A file of settings has lines such as `recipe: optima/isft` and `seed: 3`, and groups such as `rollout:` with
    `samples: 4` below. The config.yaml of a run folder is such a file.

    --dry-run estimates the time from a small trial, usually within a minute, and leaves no files.

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
    # These imports take seconds, so invalid settings are reported first.
    from coterie.cli.execution import run_recipe
    from coterie.recipes.registry import recipe as recipe_of

    if dry_run:
        from coterie.cli.execution import dry_run as show

        show(recipe_of(own), results(), notes())
    else:
        run_recipe(own, folder, notes(), fork_to=fork)
