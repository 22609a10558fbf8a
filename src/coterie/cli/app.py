"""Commands of ``coterie``. Each is thin: what it does lives on the floors below.

Heavy imports (torch, transformers) happen inside commands, so that ``--help`` is quick.
"""

import os
import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

import coterie
from coterie.cli.chat import chat
from coterie.cli.config import config
from coterie.cli.data import app as data_app
from coterie.cli.errors import run_app
from coterie.cli.export import app as export_app
from coterie.cli.export import import_record
from coterie.cli.list import app as models_app
from coterie.cli.list import list_names
from coterie.cli.run import run
from coterie.cli.serve import app as serve_app
from coterie.cli.sweep import merge, sweep
from coterie.errors import UserError, did_you_mean
from coterie.recipes.registry import quickstart_method
from coterie.terminal import Words, notes, results

EPILOG = (
    "First: `coterie quickstart`. `coterie list` has recipes, benchmarks and models; each command's --help has "
    "examples; `coterie config RECIPE` lists settings."
)
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Post-train language-model agents that work with others.",
)
app.add_typer(data_app, name="data")
app.add_typer(models_app, name="models")
app.add_typer(serve_app, name="serve")
app.add_typer(export_app, name="export")
console = notes()


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"coterie {coterie.__version__}")
        raise typer.Exit


@app.callback(epilog=EPILOG)
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Say which, and stop."
        ),
    ] = False,
) -> None:
    """Post-train language-model agents that work with others."""


FIRST_METHOD = quickstart_method()
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Iteration = Annotated[
    int | None, typer.Option(help="Which iteration; default: the first in which it is missing.")
]
StageRecipe = Annotated[
    str, typer.Option("--recipe", help="Recipe of a run folder that is to be made.")
]


app.command("run")(run)
app.command("sweep")(sweep)
app.command("merge")(merge)
app.command("list")(list_names)
app.command("import")(import_record)


def _stage(name: str, text: str) -> None:
    """Add the command of one stage."""

    def command(
        folder: Folder,
        words: Words = None,
        iteration: Iteration = None,
        recipe: StageRecipe = FIRST_METHOD,
    ) -> None:
        from coterie.cli.execution import run_stage

        run_stage(name, folder, words or [], recipe, iteration, console)

    example = f"coterie {name} runs/mine --iteration 0"
    command.__doc__ = f"{text}\n\n    Example:\n\n        {example}\n    "
    app.command(name=name)(command)


_stage("rollout", "Sample the training dialogues of one iteration.")
_stage("reward", "Compute the rewards of one iteration's dialogues.")
_stage("select", "Select what one iteration trains on.")
_stage("train", "Train on what was selected.")


@app.command()
def stage(
    name: Annotated[str, typer.Argument(metavar="STAGE", help="A stage of the run's recipe.")],
    folder: Folder,
    words: Words = None,
    iteration: Iteration = None,
    recipe: StageRecipe = FIRST_METHOD,
) -> None:
    """Do one stage of one iteration, whatever the recipe calls it.

    Example:

        coterie stage reward runs/mine --iteration 1
    """
    from coterie.cli.execution import run_stage

    run_stage(name, folder, words or [], recipe, iteration, console)


class Checkpoints(StrEnum):
    """Which policies of a run."""

    last = "last"
    all = "all"


Target = Annotated[
    str, typer.Argument(metavar="BENCHMARK|RUN", help="exchange, hotpot_qa, gsm8k, ...; or a run.")
]
Which = Annotated[Checkpoints, typer.Option(help="Of a run that is the policy of a benchmark.")]
Fast = Annotated[bool, typer.Option("--fast", help="As --paper, on 100 held-out tasks.")]
Paper = Annotated[
    bool,
    typer.Option(
        "--paper",
        help="1000 held-out tasks; colbench-code at temperature 1 and 1024 tokens a turn.",
    ),
]


@app.command()
def evaluate(
    target: Target,
    words: Words = None,
    checkpoints: Which = Checkpoints.last,
    iteration: Iteration = None,
    recipe: StageRecipe = FIRST_METHOD,
    fast: Fast = False,
    paper: Paper = False,
) -> None:
    """Evaluate any policy on a benchmark's held-out tasks; or do a run's own evaluation stage.

    The policy of a benchmark is a run folder, a model, or the URL of an OpenAI-compatible server.

    Examples:

        coterie evaluate hotpot_qa policy=runs/mine dataset.source=sample --checkpoints all

        coterie evaluate gsm8k policy=smollm2 tasks=100 dataset.source=sample

        coterie evaluate exchange policy=runs/mine samples=50 temperature=0.5

        coterie evaluate exchange policy=tiny-exchange method=cot

        coterie evaluate gsm8k policy=https://api.openai.com/v1 endpoint.model=NAME
        endpoint.key_variable=OPENAI_API_KEY

        coterie evaluate colbench-code policy=smollm2 user_simulator=smollm2 --fast

        coterie evaluate persona policy=tiny-persona best_of=8 critic=runs/sweet temperature=1

        coterie evaluate runs/mine --iteration 1
    """
    from coterie.environments.registry import is_played

    words = words or []
    benchmark = target if is_played(target) else target.replace("-", "_")
    if is_played(benchmark):
        from coterie.cli.evaluate import evaluate_benchmark

        words = [*_protocol(benchmark, fast=fast, paper=paper), *words]
        every = checkpoints is Checkpoints.all
        evaluate_benchmark(benchmark, words, every=every, console=console)
        return
    _check_run(target)
    from coterie.cli.execution import run_stage

    run_stage("evaluate", Path(target), words, recipe, iteration, console)


def _protocol(benchmark: str, *, fast: bool, paper: bool) -> list[str]:
    """The settings that --fast or --paper stand for."""
    from coterie.runs.benchmark import PUBLISHED

    if fast and paper:
        raise UserError("--fast and --paper are two numbers of tasks", "give one of them")
    if not (fast or paper):
        return []
    return [f"tasks={100 if fast else 1000}", *PUBLISHED.get(benchmark, ())]


def _check_run(target: str) -> None:
    """Raise ``UserError`` for a target that is neither a benchmark nor a run folder."""
    from coterie.environments.registry import ENVIRONMENTS, NAMES, OPEN

    folder = Path(target)
    if (folder / "config.yaml").is_file():
        return
    runs = [str(config.parent) for config in folder.parent.glob("*/config.yaml")]
    raise UserError(
        f"no benchmark or run folder is called {target!r}",
        f"{did_you_mean(target, [*NAMES, *OPEN, *ENVIRONMENTS.built_in, *runs])}`coterie list` has all benchmarks; "
        "`coterie run` makes a run folder",
    )


@app.command()
def report(folder: Folder) -> None:
    """Write the report page of a run folder, finished or not.

    Example:

        coterie report runs/optima-isft
    """
    from coterie.cli.execution import write_report

    print(write_report(folder))


@app.command()
def quickstart(
    folder: Annotated[
        Path | None, typer.Option(help="Run folder; default: runs/quickstart or -TASK.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Instead of tiny-exchange.")] = None,
    task: Annotated[str, typer.Option(help="exchange, hotpot_qa or gsm8k.")] = "exchange",
    words: Words = None,
) -> None:
    """Two agents learn to talk shorter and better; prints before and after.

    In minutes with the tiny model and its micro-world; in half an hour with a real language model on
    real questions. Starts afresh if the last quickstart is finished, resumes it if not.

    Examples:

        coterie quickstart

        coterie models get smollm2 && coterie quickstart --model smollm2 --task hotpot_qa
    """
    from coterie.cli.quickstart import quickstart as start

    folder = folder or Path("runs/quickstart" + f"-{task}" * (task != "exchange"))
    if model and any(word.startswith("model=") for word in words or []):
        raise UserError(
            "the model is given twice, by --model and by model=", "leave one of them out"
        )
    chosen = [f"model={model}"] if model else []
    start(folder, [*chosen, *(words or [])], task, console)


@app.command()
def reproduce(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="CLAIMS",
            help="optima, optima/isft, sweet_rl, moat, dense_tree, gap-sft, or gap.",
        ),
    ],
    scale: Annotated[str, typer.Option(help="Only `tiny` so far.")] = "tiny",
    folder: Annotated[Path | None, typer.Option(help="Folder of all its runs.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
    gate: Annotated[
        bool,
        typer.Option("--gate", help="Only measure whether claims can be tested; trains nothing."),
    ] = False,
    words: Words = None,
) -> None:
    """Test a paper's claims: runs the recipe and its controls, prints a table and one JSON line.

    `optima` has all methods, ablations and self-consistency; `optima/isft` has iSFT against training
    on rows that nothing selected; `sweet_rl` has SWEET, its baselines and its ablations; `moat` has joint
    alignment, its halves and supervised training; `dense_tree` has dense trees against sparse pairs; `gap-sft` has
    fine-tuning on parallel against sequential traces, and `gap` reinforcement learning against more fine-tuning.
    They are files of `experiments/` in the repository, so this command needs a checkout.

    Examples:

        coterie reproduce optima --scale tiny

        coterie reproduce optima/isft --seeds 5

        coterie reproduce sweet_rl --scale tiny

        coterie reproduce moat --gate
    """
    if scale != "tiny":
        raise UserError(f"--scale {scale} does not exist", "use --scale tiny")
    checkout = Path(__file__).parents[3]
    if not (checkout / "experiments/experiment.py").is_file():
        raise UserError(
            "the experiments are not in the installed package",
            "clone the repository, and run `pip install -e .` in it",
        )
    sys.path.insert(0, str(checkout))
    experiment = import_module("experiments.experiment")
    experiment.main(recipe, folder, seeds, words or [], gate, console)


app.command("config")(config)
app.command("chat")(chat)


@app.command()
def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="Say instead what this model's chat template can do for tools."
        ),
    ] = None,
) -> None:
    """Say what this machine has, what works on it, and what is missing.

    Examples:

        coterie doctor

        coterie doctor smollm2
    """
    from coterie.cli.doctor import checks, tool_findings

    if model is not None:
        for line in tool_findings(model):
            results().print(line)
        return

    table = Table(box=None, header_style="bold")
    for title in ("", "what", "found"):
        table.add_column(title)
    found = checks()
    for check in found:
        mark = Text("ok", "green") if check.ok else Text("no", "red")
        table.add_row(mark, check.what, check.found)
    results().print(table)
    if not all(check.ok or check.optional for check in found):
        raise typer.Exit(1)


def main() -> None:
    """Entry point: errors for people are printed without a traceback, with status 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    run_app(app, console)


if __name__ == "__main__":
    main()
