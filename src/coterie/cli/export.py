"""Files of ``coterie export``: training data, tasks and logs of a run, or a model for Transformers or PEFT."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import yaml
from pyarrow import Table
from pyarrow.parquet import write_table

import coterie
from coterie.config.folders import atomic_folder, check_new
from coterie.config.resolve import flatten
from coterie.environments.qa_metrics import GRADER, known_answers, question_of
from coterie.environments.workflow.code import CHECKER, TESTS
from coterie.errors import UserError, did_you_mean
from coterie.models.catalogue import ADAPTER_FILE
from coterie.models.loading import TOKENIZER_FILES, is_adapter, writing
from coterie.models.saving import copy_files, save_model
from coterie.recipes.base import Recipe, recorded_run
from coterie.recipes.registry import settings
from coterie.record import export as jsonl
from coterie.record.export import (
    LLAMAFACTORY,
    Form,
    TrainedSelection,
    begin_with_user,
    chat,
    export_pair,
    export_rows,
)
from coterie.record.tree import Task
from coterie.reports.inspect_logs import LogHead, eval_log
from coterie.reports.sections import scores
from coterie.rollout.episodes import first_prompts
from coterie.runs.evaluation import evaluation
from coterie.runs.loop import EVALUATION
from coterie.runs.run import Run

ROWS, PAIRS, NO_ANSWER = "rows", "pairs", "tasks left out"
LEFT_OUT = "left out (docs/howto/export.md says why)"


def export_data(
    folder: Path,
    to: str,
    out: Path | None = None,
    *,
    iteration: int | None = None,
    role: str | None = None,
    secrets: bool = False,
) -> tuple[Path, Counter[str]]:
    """Write a folder atomically. Return it with the number of items of each kind.

    Raises ``UserError`` if the folder exists or the run has no data for it.
    """
    out = out or folder / "export" / to
    with recorded_run(folder) as (recipe, run), atomic_folder(_new(out)) as partial:
        checked_role(recipe, role)
        if to == "inspect":
            return out, _write_logs(recipe, run, iteration, partial, secrets=secrets)
        tasks = _write_tasks(recipe, run, role, partial) if to == "verl" else Counter[str]()
        where = "" if iteration is None else f" in iteration {iteration}"
        done = {key.iteration for key in recipe.finished(run)}
        iterations = sorted(i for i in done if iteration in (None, i))
        if not iterations and not tasks["train"] + tasks["heldout"]:
            raise UserError(f"{folder} has no finished stage{where}", "continue the run")
        counts = _write_chats(_trained(recipe, run, iterations, role), to, partial)  # type: ignore[arg-type]
        if to == "jsonl":
            chosen, file = None if iteration is None else iterations, partial / "trajectories.jsonl"
            jsonl.export(run.store, file, iterations=chosen, secrets=secrets)
        elif not (counts + tasks).keys() - {LEFT_OUT, NO_ANSWER}:
            problem = f"{folder} has no selected training data{where}"
            if count := counts[LEFT_OUT]:
                problem = f"{to} can't represent any of the {count} rows and pairs of {folder} "
                problem += "(docs/howto/export.md says which)"
            raise UserError(problem, "use --to jsonl, which has all trajectories")
    return out, counts + tasks


def _new(out: Path) -> Path:
    check_new(out, "remove it, or give --out another name")
    return out


def _write_logs(
    recipe: Recipe, run: Run, iteration: int | None, out: Path, *, secrets: bool
) -> Counter[str]:
    """Write a log for Inspect of each stage with trajectories, under a name that its viewer lists."""
    counts, role, benchmark = Counter[str](), recipe.roles()[0], recipe.settings.benchmark
    clock = datetime.combine(run.created, time(), UTC)  # runs record no time of day
    times = dict[tuple[int, str], tuple[datetime, datetime]]()
    # Runs store durations only, so the stages are laid end to end.
    for step in recipe.stage_keys():
        start = clock
        clock += timedelta(seconds=float(run.metrics(step).get("seconds", 0.0)))
        times[step.iteration, step.stage] = start, clock
    for iteration_, stage in sorted({(key[1], key[2]) for key in run.store.tree_keys(iteration)}):
        task = benchmark if stage == EVALUATION else f"{benchmark} {stage}"
        model = f"{Path(role.model).name}@{recipe.newest(run, role.name, iteration_)}"
        # All steps of reinforcement learning have the times of their stage.
        start, end = times.get((iteration_, stage.partition("/")[0]), (clock, clock))
        head = LogHead(task, model, recipe.environment.metric, start, end)
        log = eval_log(run.store, iteration_, stage, head, secrets=secrets)
        # The viewer separates the parts of a name by underscores.
        name = re.sub(r"[^\w.]+", "-", task.replace("_", "-"))
        id_ = log["eval"]["task_id"]
        file = out / f"{start:%Y-%m-%dT%H-%M-%S}+00-00_{name}-{iteration_:02d}_{id_}.json"
        file.write_text(json.dumps(log), encoding="utf-8")
        counts.update(logs=1, samples=len(log["samples"]))
    if not counts:
        raise UserError(f"{run.folder} has no trajectories", "continue the run")
    return counts


def _write_chats(trained: Iterator[TrainedSelection], form: Form, out: Path) -> Counter[str]:
    """Write non-empty files of rows and pairs (Parquet for verl), and ``dataset_info.json`` for LLaMA-Factory."""
    counts, tools = Counter[str](), set[str]()
    with (out / "rows.jsonl").open("w") as rows, (out / "pairs.jsonl").open("w") as pairs:
        files = {ROWS: rows, PAIRS: pairs}
        for selected in trained:
            name = ROWS if selected.selection.rejected is None else PAIRS
            # verl has no format for pairs.
            if name == PAIRS and form == "verl":
                continue
            is_rows = name == ROWS
            for item in export_rows(selected, form) if is_rows else [export_pair(selected, form)]:
                if item is not None:
                    files[name].write(json.dumps(item) + "\n")
                    tools |= {name} if "tools" in item else set()
                counts[LEFT_OUT if item is None else name] += 1
    # A kind without items has no file.
    for name in (ROWS, PAIRS):
        if not counts[name]:
            (out / f"{name}.jsonl").unlink()
    if form == "verl" and counts[ROWS]:
        items = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
        write_table(Table.from_pylist(items), out / "rows.parquet")
        (out / "rows.jsonl").unlink()
    if form == "llamafactory":
        pair = {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}
        columns = {ROWS: {"messages": "messages"}, PAIRS: pair}
        info = {
            f"coterie_{name}": {
                "file_name": f"{name}.jsonl",
                **LLAMAFACTORY,
                "ranking": name == PAIRS,
                "columns": columns[name] | ({"tools": "tools"} if name in tools else {}),
            }
            for name in (ROWS, PAIRS)
            if counts[name]
        }
        (out / "dataset_info.json").write_text(json.dumps(info, indent=2) + "\n")
    # Removes counts of 0.
    return +counts


def _trained(
    recipe: Recipe, run: Run, iterations: list[int], only: str | None
) -> Iterator[TrainedSelection]:
    for iteration in iterations:
        for role, tree, selection in recipe.trained_on(run, iteration):
            if only in (None, role):
                edit = None if selection.context is None else recipe.edits[selection.context]
                yield TrainedSelection(role, tree, selection, recipe.renderers[role].render, edit)


def _write_tasks(recipe: Recipe, run: Run, role: str | None, out: Path) -> Counter[str]:
    """Write tasks as Parquet for verl: recorded tasks for training, and held-out tasks."""
    players = recipe.players()
    agents = [agent for agent in players if players[agent] == (role or recipe.main_role)]
    if not agents:
        raise UserError(f"{role} plays no agent of {recipe.settings.benchmark}", "leave --role out")
    heldout = {task.id: task for task in recipe.heldout_tasks()}
    # All recorded tasks but the held-out ones were sampled for training.
    recorded = [id_ for id_ in run.store.task_ids() if id_ not in heldout]
    train = {id_: run.store.task(id_) for id_ in recorded}
    counts = Counter[str]()
    for split, tasks in (("train", train), ("heldout", heldout)):
        candidates = (_verl_row(recipe, task, agents[0], split) for task in tasks.values())
        rows = [row for row in candidates if row is not None]
        counts += Counter({split: len(rows), NO_ANSWER: len(tasks) - len(rows)})
        if rows:
            write_table(Table.from_pylist(rows), out / f"{split}.parquet")
    return counts


def _verl_row(recipe: Recipe, task: Task, agent: str, split: str) -> dict[str, Any] | None:
    """Return a row of verl; ``None`` for a task without a right answer, or with tests that call a function."""
    answers = known_answers(task)
    truth = answers[0] if answers else _program_tests(task)
    # A task that no rule can grade is no task for reinforcement learning.
    if not truth:
        return None
    opening = first_prompts(recipe.environment, task)[agent]
    extra = {"index": task.id, "split": split, "question": question_of(task)}
    return {
        "data_source": recipe.settings.benchmark,
        "prompt": begin_with_user(chat(opening.tree, opening.messages, agent)),
        "ability": "qa" if answers else "code",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {**extra, "answer": list(answers)},
        "label": truth,  # OpenRLHF reads labels from a column
    }


def _program_tests(task: Task) -> str:
    """Return inputs and expected outputs of a program for verl's ``prime_code``; empty for other tasks."""
    is_readable = TESTS in task.secrets and CHECKER not in task.secrets
    # Tests with a checker need code of their own, which verl does not run.
    tests = json.loads(task.secrets[TESTS].reveal(GRADER)) if is_readable else []
    if not all(isinstance(test, dict) and test.get("kind") == "stdin" for test in tests):
        return ""
    columns = {key: [test[key[:-1]] for test in tests] for key in ("inputs", "outputs")}
    return json.dumps(columns) if tests else ""


# -- models ----------------------------------------------------------------------------------------

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def _model_card(recipe: Recipe, run: Run, role: str, origin: str, *, adapter: bool) -> str:
    """Return the model card of a version of a role. Its settings are valid for ``coterie run --config``."""
    s = recipe.settings
    base = {role.name: role.model for role in recipe.roles()}[role]
    head: dict[str, object] = {"library_name": "peft" if adapter else "transformers"}
    # A local path means nothing to readers of the card.
    if HUB_NAME.fullmatch(base):
        head["base_model"] = base
    head["tags"] = ["coterie", recipe.name.partition("/")[0]]
    description = "A LoRA adapter of" if adapter else "Trained from"
    ends = "Give its `generation_config.json` to `generate` or vLLM, which otherwise read the base's ends of turn."
    return "\n".join([
        "---", yaml.safe_dump(head, sort_keys=False).rstrip(), "---", "",
        f"# {recipe.title} on {s.benchmark}", "",
        f"{description} `{base}` by `{recipe.name}` of coterie {coterie.__version__}: the role `{role}` {origin}.", "",
        *([ends, ""] if adapter else ()),
        *_figures(recipe, run),
        "## Settings", "",
        "Settings that differ from the preset of coterie, for `coterie run --config FILE`.", "",
        "```yaml", _changes(recipe), "```", "",
    ])  # fmt: skip


def _figures(recipe: Recipe, run: Run) -> list[str]:
    """Return a table of held-out scores and tokens of all policies."""
    versions = [key.iteration for key in recipe.finished(run, EVALUATION)]
    if not versions:
        return []
    results = [evaluation(run.store, version, label=f"{version}") for version in versions]
    table = scores(results, recipe.environment.metric)
    rows = [table["heads"], ("---",) * len(table["heads"]), *table["rows"]]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return ["## Figures", "", "On held-out tasks; policy 0 is the base.", "", *lines, ""]


def _changes(recipe: Recipe) -> str:
    values = flatten(recipe.settings.model_dump(mode="json"))
    choice = ("dataset.name", "environment.name", "model")
    # The card names data, environment and model even if they are the defaults.
    names = {name: values[name] for name in choice if values.get(name) is not None}
    preset = settings(recipe.name, [f"{name}={value}" for name, value in names.items()])
    defaults = flatten(preset.model_dump(mode="json"))
    changes = {path: value for path, value in values.items() if value != defaults.get(path)}
    card = {"recipe": recipe.name, **names, **changes}
    return str(yaml.safe_dump(card, sort_keys=False)).rstrip()


FILES = ("*.safetensors", "*.safetensors.index.json", "config.json", ADAPTER_FILE, *TOKENIZER_FILES)
"""Files of a checkpoint that an export includes."""


def export_model(
    folder: Path,
    out: Path,
    *,
    merge: bool = False,
    role: str | None = None,
    iteration: int | None = None,
    step: int | None = None,
) -> None:
    """Write a new folder. Raises ``UserError`` before a model is loaded."""
    if is_adapter(folder):
        if not merge or role or iteration is not None or step is not None:
            problem = f"{folder} is a LoRA adapter, not a run"
            raise UserError(problem, f"coterie export model {folder} --merge --out {out}")
        _merge_adapter(folder, _new(out))
        return
    with recorded_run(folder) as (recipe, run):
        role = checked_role(recipe, role)
        version = recipe.find_version(run, role, iteration, step, trained=True)
        with atomic_folder(_new(out)) as partial:
            _write(recipe, run, role, version, partial, merge=merge)
            origin = f"after {version} iterations" if step is None else f"after {step} steps"
            card = _model_card(recipe, run, role, origin, adapter=is_adapter(partial))
            (partial / "README.md").write_text(card, encoding="utf-8")


def _merge_adapter(folder: Path, out: Path) -> None:
    """Merge the adapter of a folder that PEFT wrote into its base, in float32, with the adapter's tokenizer if any."""
    from coterie.api import load_merged  # torch takes seconds to import

    loaded = load_merged(folder)
    with atomic_folder(out) as partial, writing(partial):
        save_model(loaded.model, partial)
        copy_files(folder, partial, TOKENIZER_FILES)


def _write(
    recipe: Recipe, run: Run, role: str, version: int | Path, partial: Path, *, merge: bool
) -> None:
    path = recipe.models(run).path(role, version)
    # A trained version is copied; the base and a merged adapter are loaded and saved.
    if version and not merge:
        copy_files(Path(path), partial, FILES)
        return
    loaded = recipe.models(run).load(role, version, merge=True)
    with writing(partial):
        save_model(loaded.model, partial)


def checked_role(recipe: Recipe, name: str | None) -> str:
    """Return the name of a role, by default the first. Raise ``UserError`` if it is unknown."""
    names = [role.name for role in recipe.roles()]
    if name is not None and name not in names:
        problem = f"{recipe.name} has no role {name!r}"
        raise UserError(problem, f"{did_you_mean(name, names)}use one of: {', '.join(names)}")
    return name or names[0]
