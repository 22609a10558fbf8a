"""Commands of ``coterie``.

Heavy imports (torch, transformers) happen inside commands, so that ``--help`` is fast.
"""

import atexit
import errno
import gc
import os
import re
import signal
import sqlite3
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_group

import coterie
from coterie.clusters import IN_JOB, SLURM, UNDER_TORCHRUN
from coterie.config.folders import FULL
from coterie.config.plugins import label, plugin_errors
from coterie.errors import UserError, did_you_mean
from coterie.recipes.registry import QUICKSTART
from coterie.runs.interruption import INTERRUPTED, TERMINATED
from coterie.terminal import Overrides, RecipeName, Source, Version, notes, results

EPILOG = (
    "Start with `coterie quickstart`. `coterie list` lists recipes, benchmarks and models, `coterie config RECIPE` "
    "lists settings, and each command's --help has examples."
)


class Commands(TyperGroup):
    """Commands of this module and of others, which are imported if one of their commands is called or listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._import_others()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # A misspelled name is compared with all commands.
        if cmd_name not in self.commands:
            self._import_others()
        return super().get_command(ctx, cmd_name)

    def _import_others(self) -> None:
        from coterie.cli.config import config
        from coterie.cli.data import app as data_app
        from coterie.cli.gateway_record import gateway
        from coterie.cli.list import app as models_app
        from coterie.cli.list import list_names
        from coterie.cli.serve import app as serve_app
        from coterie.cli.sweep import merge, sweep
        from coterie.cli.view import view

        others = typer.Typer(rich_markup_mode="markdown")
        for command in (config, gateway, merge, sweep, view):
            others.command()(command)
        others.command("list")(list_names)
        for name, group in (("data", data_app), ("models", models_app), ("serve", serve_app)):
            others.add_typer(group, name=name)
        self.commands.update(get_group(others).commands)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Post-train language-model agents that work together.",
)
export_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Export the training data or the model of a run for other programs.",
)
app.add_typer(export_app, name="export")
console = notes()
# The interpreter's last collection takes seconds, and frees what ends anyway.
atexit.register(gc.freeze)

USER_ERROR = 2
"""Exit status after a user error."""
DISK = (errno.EIO, errno.EFBIG, errno.EROFS, errno.ESTALE)
"""Errors of a disk, which may lack a file name."""
WORDING = {
    r"Input should be a valid (\w+).*": r"must be a valid \1",
    "Input should be": "must be",
    "Value error, ": "",
    "integer": "whole number",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
"""Patterns in a validator's message about an option, and their rewording."""


def _print_version(enabled: bool) -> None:
    if enabled:
        print(f"coterie {coterie.__version__}")
        raise typer.Exit


@app.callback(epilog=EPILOG)
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Post-train language-model agents that work together."""


Folder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
Iteration = Annotated[
    int | None, typer.Option(help="Iteration; default: the first iteration without this stage.")
]
StageRecipe = Annotated[str, typer.Option("--recipe", help="Recipe of a new run folder.")]


Config = Annotated[Path | None, typer.Option(help="YAML file of settings; KEY=VALUE overrides it.")]
NewFolder = Annotated[
    Path | None, typer.Option(help="Run folder; default: runs/RECIPE. Resumes an existing run.")
]
DryRun = Annotated[bool, typer.Option(help="Print the plan with time and memory, and stop.")]
Fork = Annotated[
    Path | None,
    typer.Option(help="New run folder that keeps the steps which the settings do not change."),
]


@app.command()
def run(
    recipe: RecipeName = None,
    overrides: Overrides = None,
    config: Config = None,
    folder: NewFolder = None,
    dry_run: DryRun = False,
    fork: Fork = None,
    from_step: Annotated[
        int | None, typer.Option(help="With --fork: also keep this many steps of rl.", min=1)
    ] = None,
) -> None:
    """Run a recipe, or resume a run.

    A file of settings has lines such as `recipe: optima/isft` and `seed: 3`, and groups such as `rollout:` with
    `rollouts_per_task: 4` below. The config.yaml of a run folder is such a file.

    --dry-run estimates the time from a small trial, usually within a minute, and leaves no files. With cluster=slurm
    it prints the file for sbatch, and without --dry-run the run is submitted.

    Examples:

        coterie run --config mine.yaml seed=4

        coterie run optima/isft rollout.rollouts_per_task=4 --folder runs/four --dry-run

        coterie run optima/isft reward.lambda_token=0.3 --folder runs/four --fork runs/brief

        coterie run rl/grpo reward.overlong_penalty=0.5 --folder runs/rl --fork runs/shorter --from-step 20
    """
    from coterie.cli.arguments import check_sources, read_arguments, stored_settings

    # torchrun starts this command on every rank, and only the first one drives the run.
    if UNDER_TORCHRUN in os.environ:
        from coterie.clusters.torchrun import torchrun_job

        if (job := torchrun_job()).rank:
            return job.serve()
    if from_step and fork is None:
        raise UserError("--from-step needs the folder of a new run", "add --fork FOLDER")
    arguments = read_arguments(recipe, overrides or [], config, folder)
    # The folder depends only on the recipe, so that the same command resumes the run.
    folder = folder or Path("runs") / label(arguments.recipe).replace("/", "-")
    settings = arguments.resolve(stored_settings(arguments.recipe, folder, forked=fork is not None))
    # This import takes seconds, so invalid settings and missing files are reported first.
    check_sources(settings)
    from coterie.runs.run import check_folder

    check_folder(folder, settings.recipe if fork is None else None)
    if fork is None and not dry_run and (folder / "config.yaml").is_file():
        console.print(f"{folder} exists: its settings apply where this command gives none")
    from coterie.cli import execution

    # The job itself runs this command again, inside Slurm.
    if settings.cluster == SLURM and IN_JOB not in os.environ:
        execution.submit_run(settings, folder, results(), dry_run=dry_run)
    elif dry_run:
        execution.dry_run(settings, results(), console)
    else:
        execution.run_recipe(settings, folder, console, fork_to=fork, from_step=from_step)


@app.command()
def repair(folder: Folder) -> None:
    """Drop damaged items of a run's store; `coterie run` then plays them again.

    Example:

        coterie repair runs/mine
    """
    from coterie.record.store import Store

    with Store.open(folder / "store.sqlite", check=False) as store:
        dropped = store.repair()
    results().print("\n".join(f"dropped {name}" for name in dropped) or "nothing was dropped")


@app.command()
def stage(
    name: Annotated[str, typer.Argument(metavar="STAGE", help="Stage of the run's recipe.")],
    folder: Folder,
    overrides: Overrides = None,
    iteration: Iteration = None,
    recipe: StageRecipe = QUICKSTART,
) -> None:
    """Run one stage of one iteration, by the stage names of the recipe.

    Example:

        coterie stage reward runs/mine --iteration 1
    """
    from coterie.cli.execution import run_stage

    run_stage(name, folder, overrides or [], recipe, iteration, console)


Target = Annotated[
    str,
    typer.Argument(
        metavar="BENCHMARK|RUN",
        help="Benchmark, such as exchange, hotpot_qa or gsm8k; or a run folder.",
    ),
]
Which = Annotated[
    str,
    typer.Option(
        help="Policies to evaluate, if the policy is a run: last, all, or steps such as 50,100."
    ),
]
Paper = Annotated[
    bool,
    typer.Option(
        "--paper",
        help="Use 1000 held-out tasks; for colbench-code and colbench-frontend (500 tasks), temperature 1 and 1024 "
        "tokens per turn.",
    ),
]


@app.command()
def evaluate(
    target: Target,
    overrides: Overrides = None,
    checkpoints: Which = "last",
    iteration: Iteration = None,
    recipe: StageRecipe = QUICKSTART,
    paper: Paper = False,
) -> None:
    """Evaluate a policy on the held-out tasks of a benchmark, or run the evaluation stage of a run.

    The policy of a benchmark is a run folder, a model, or the URL of an OpenAI-compatible server.

    Examples:

        coterie evaluate hotpot_qa policy=runs/mine dataset.source=sample --checkpoints all

        coterie evaluate exchange policy=runs/mine samples=50 temperature=0.5

        coterie evaluate questions.jsonl policy=smollm2 policy=runs/mine by=kind

        coterie evaluate gsm8k policy=https://api.openai.com/v1 endpoint.model=NAME
        endpoint.key_variable=OPENAI_API_KEY

        coterie evaluate colbench-code policy=smollm2 user_simulator=smollm2 --paper tasks=100

        coterie evaluate runs/mine --iteration 1

        coterie evaluate runs/rl --checkpoints 50,100
    """
    from coterie.environments.registry import ALIASES, is_played
    from coterie.runs.run import find_run

    overrides, run_and_step = overrides or [], find_run(target)
    # Other checkpoints than the last are played as a benchmark with the settings of the run's evaluation.
    if run_and_step and (checkpoints != "last" or run_and_step[1] is not None):
        from coterie.cli.evaluate import own_benchmark

        # The second entry is the benchmark of the run, and the entries after it are its settings.
        overrides = [f"policy={target}", *own_benchmark(run_and_step[0]), *overrides]
        target = overrides.pop(1)
    # Names may be typed with hyphens, such as `colbench-code`.
    benchmark = target if is_played(target) else target.replace("-", "_")
    benchmark = ALIASES.get(benchmark, benchmark)
    if is_played(benchmark):
        if not any(pair.startswith(("policy=", "policy.", "policies=")) for pair in overrides):
            fix = "add policy=NAME (a run folder, a model or a server URL)"
            raise UserError("no policy is given", fix)
        from coterie.cli.evaluate import play_benchmark
        from coterie.cli.figures import show
        from coterie.runs.benchmark import PUBLISHED

        if paper:
            # The user's overrides come last, so that they replace the published settings.
            overrides = ["tasks=1000", *PUBLISHED.get(benchmark, ()), *overrides]
        show(*play_benchmark(benchmark, overrides, checkpoints=checkpoints, console=console))
        return
    _check_run(target)
    from coterie.cli.execution import run_stage

    run_stage("evaluate", Path(target), overrides, recipe, iteration, console)


def _check_run(target: str) -> None:
    """Raise ``UserError`` for a target that is neither a benchmark nor a run folder."""
    from coterie.environments.registry import NAMES

    folder = Path(target)
    if (folder / "config.yaml").is_file():
        return
    # Run folders next to the missing one are suggested too.
    runs = [str(config.parent) for config in folder.parent.glob("*/config.yaml")]
    near = did_you_mean(target, [*NAMES, *runs])
    fix = f"{near}`coterie list` lists benchmarks; `coterie run` makes a run folder"
    raise UserError(f"no benchmark or run folder is called {target!r}", fix)


@app.command()
def report(folder: Folder) -> None:
    """Write the page report.html of a run folder, finished or not, from its record alone.

    It has the scores, curves and tables of the run, and the dialogues of about 16 tasks; `coterie view` shows all of
    them. Right answers, references and prompts with them are left out.

    Example:

        coterie report runs/optima-isft
    """
    from coterie.cli.report import write_report

    print(write_report(folder))


@app.command()
def quickstart(
    folder: Annotated[
        Path | None, typer.Option(help="Run folder; default: runs/quickstart or -TASK.")
    ] = None,
    task: Annotated[str, typer.Option(help="exchange, hotpot_qa or gsm8k.")] = "exchange",
    overrides: Overrides = None,
) -> None:
    """Train two agents to communicate with fewer tokens and higher scores. Prints results before and after.

    Takes minutes with the tiny model and its micro-world, and half an hour with a small language model on
    real questions. Resumes an unfinished quickstart, and replaces a finished quickstart.

    Examples:

        coterie quickstart

        coterie models get smollm2 && coterie quickstart --task hotpot_qa model=smollm2
    """
    from coterie.cli.execution import quickstart as start

    folder = folder or Path("runs/quickstart" + f"-{task}" * (task != "exchange"))
    start(folder, overrides or [], task, console)


@app.command()
def reproduce(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="CLAIMS",
            help="optima, sweet_rl, moat, dense_tree, gap, multi_agent, or another name of the README.",
        ),
    ],
    scale: Annotated[Literal["tiny"], typer.Option(help="Size of the runs.")] = "tiny",
    folder: Annotated[Path | None, typer.Option(help="Folder of all runs.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Number of seeds.")] = 5,
    seed: Annotated[
        int | None, typer.Option(min=0, max=99, help="Run one seed, which decides no claim.")
    ] = None,
    gate: Annotated[
        bool,
        typer.Option("--gate", help="Only measure if the claims can be tested, on a spare seed."),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run two methods with one seed and fewer tasks.")
    ] = False,
    processes: Annotated[
        int, typer.Option(min=1, help="Number of processes that share the seeds.")
    ] = 1,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Print the tables of a result file."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Test a paper's claims. Runs the recipe and its controls, and prints tables and one JSON line.

    Needs a checkout of the repository, because the experiments are in its folder `experiments/`.

    Examples:

        coterie reproduce optima/isft

        coterie reproduce moat --gate

        coterie reproduce gap --processes 2

        coterie reproduce multi_agent --quick
    """
    checkout = Path(__file__).parents[3]
    if not (checkout / "experiments/experiment.py").is_file():
        problem = "the installed package does not include the experiments"
        raise UserError(problem, "clone the repository, and run `pip install -e .` in it")
    # The root of the repository makes `experiments` importable.
    sys.path.insert(0, str(checkout))
    experiment = import_module("experiments.experiment")
    chosen = range(seeds) if seed is None else [seed]
    flags = {"gate": gate, "quick": quick, "processes": processes, "source": source}
    experiment.main(recipe, folder, chosen, overrides or [], console, **flags)


@app.command()
def chat(
    source: Source,
    overrides: Overrides = None,
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
    iteration: Version = None,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 is greedy.")] = 0.7,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum number of tokens of a reply.")
    ] = 512,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed for reproducible replies.")] = None,
) -> None:
    """Talk with a model, or with the policy of a run. Ctrl-C or Ctrl-D ends the chat; `/new` clears it.

    Without a terminal, each line of standard input is a message. Settings have the groups engine and tools.

    Examples:

        coterie chat runs/optima-isft

        echo 'What is a tree?' | coterie chat smollm2 --temperature 0

        coterie chat Qwen/Qwen3-4B 'tools=[python]' 'engine.template_args={enable_thinking: false}'
    """
    from coterie.cli.conversation import ChatOptions, talk

    talk(source, iteration, overrides or (), ChatOptions(temperature, max_tokens, seed, system))


@export_app.command("data")
def export_data(
    folder: Folder,
    to: Annotated[
        Literal["jsonl", "trl", "llamafactory", "verl", "inspect"],
        typer.Option(help="Format of the files."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder to make; default: RUN/export/FORM.")
    ] = None,
    iteration: Annotated[int | None, typer.Option(help="Iteration; default: all.", min=0)] = None,
    role: Annotated[
        str | None, typer.Option(help="Only training data of this model; default: all models.")
    ] = None,
    secrets: Annotated[
        bool,
        typer.Option(
            "--secrets", help="With jsonl or inspect: include privileged fields of trajectories."
        ),
    ] = False,
) -> None:
    """Write the training rows, preference pairs, trajectories, tasks or logs of a run.

    `jsonl`: rows with exact tokens, pairs, and all trajectories. `trl` (also for OpenRLHF) and `llamafactory`: rows and
    pairs as chats. `verl`: tasks with their right answers, and rows. `inspect`: logs for `inspect view`.

    Examples:

        coterie export data runs/optima-isft --to trl

        coterie export data runs/optima-isft --to verl --out tasks

        coterie export data runs/optima-isft --to inspect
    """
    from coterie.cli import export

    lines, counts = export.export_data(
        folder, to, out, iteration=iteration, role=role, secrets=secrets
    )
    # Counts go to stderr, so that stdout has only the path, for scripts.
    for name, count in counts.items():
        typer.echo(f"{name}: {count:,}", err=True)
    print(lines)


@export_app.command("model")
def export_model(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge a LoRA adapter into its base model.")
    ] = False,
    role: Annotated[
        str | None, typer.Option(help="Role of the model; default: the policy.")
    ] = None,
    iteration: Version = None,
    step: Annotated[
        int | None, typer.Option(help="The policy after this step of reinforcement learning.")
    ] = None,
) -> None:
    """Write the weights and the tokenizer of a run's policy, with a model card; or merge a PEFT adapter into its base.

    coterie (`model=FOLDER`) and Transformers load the folder; PEFT loads an adapter. `hf upload OWNER/NAME FOLDER`
    uploads it to the Hugging Face hub.

    Examples:

        coterie export model runs/optima-isft --out mine

        coterie export model runs/lora --out mine --merge

        coterie export model runs/rl --out mine --step 100

        coterie export model adapter --out merged --merge
    """
    from coterie.cli import export

    export.export_model(folder, out, merge=merge, role=role, iteration=iteration, step=step)
    print(out)


@app.command()
def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="Check only the tool support of this model's chat template."
        ),
    ] = None,
) -> None:
    """Check this machine: hardware, packages and optional features.

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
    for title in ("", "check", "result"):
        table.add_column(title)
    rows = list(checks())
    for check in rows:
        mark = Text("ok", "green") if check.ok else Text("no", "red")
        table.add_row(mark, check.what, check.result)
    results().print(table)
    if not all(check.ok or check.optional for check in rows):
        raise typer.Exit(1)


def main() -> None:
    """Run the command line. User errors are printed without a traceback and exit with status 2."""
    # Set before the libraries are imported, which read these variables only once.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    _end_as_by_ctrl_c()
    try:
        with plugin_errors():
            status = app(standalone_mode=False)
    except UserError as error:
        _refuse(error.what, error.todo)
    except TyperException as error:
        _refuse_usage(error)
    except OSError as error:
        _refuse_os(error)
    except sqlite3.OperationalError as error:
        _refuse(f"SQLite: {error}", "check the disk and the permissions of the run folder")
    if status == INTERRUPTED:
        console.print("stopped; run the same command again to continue")
    if isinstance(status, int) and status:
        sys.exit(status)


def _end_as_by_ctrl_c() -> None:
    """Handle SIGTERM and SIGHUP as Ctrl-C, which saves and says how to continue; ``nohup`` still ignores SIGHUP."""
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def end(number: int, _: object) -> None:
        if number == signal.SIGHUP:  # writing to a terminal that is gone would fail
            for output in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # `coterie run ... &` in a script
            signal.signal(signal.SIGINT, signal.default_int_handler)
        TERMINATED.set()
        signal.raise_signal(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, end)


def _refuse(problem: str, fix: str) -> NoReturn:
    console.print(Text.assemble(("error:", "bold red"), " ", problem))
    if fix:
        console.print(Text.assemble("  ", ("->", "bold"), " ", fix))
    sys.exit(USER_ERROR)


def _refuse_os(error: OSError) -> NoReturn:
    """Report a full disk or an unusable path. Raise other errors again, since they are bugs."""
    if error.errno in FULL:
        writing = f" (writing {error.filename})" if error.filename else ""
        _refuse(
            f"the disk is full{writing}; finished work is kept",
            "free some space and repeat the command; it resumes where it stopped",
        )
    # An operating system error that names no file is a bug, unless it is an error of the disk.
    if error.filename is None and error.errno not in DISK:
        raise error
    _refuse(
        f"{error.filename or 'a file'}: {error.strerror}",
        "check the path, its permissions and the disk, or give another path",
    )


def _refuse_usage(error: TyperException) -> NoReturn:
    text = error.format_message()
    if not text:  # a group without a command has printed its help
        sys.exit(error.exit_code)
    context = getattr(error, "ctx", None)
    help_ = f"`{context.command_path if context else 'coterie COMMAND'} --help` has examples"
    if text.startswith("No such option: --folder"):
        help_ = f"give the run folder as an argument, without --folder; {help_}"
    # Other programs have options for settings, so this is a common mistake.
    elif text.startswith("No such option: --"):
        help_ = f"settings are written as key=value, without dashes; {help_}"
    for old, new in WORDING.items():
        text = re.sub(old, new, text)
    _refuse(text, help_)
