"""``coterie export data``: write a folder of rows, pairs and trajectories, or of tasks for verl."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie.cli.export_model import checked_role
from coterie.config.folders import check_new_folder, whole_folder
from coterie.environments.answers import GRADER, known_answers, question_of
from coterie.environments.workflow_code import TESTS
from coterie.errors import UserError
from coterie.models.loading import load_renderer
from coterie.recipes.base import Recipe, recorded_run
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
from coterie.rollout.episodes import first_prompts
from coterie.runs.folder import Run

ROWS, PAIRS, LEFT_OUT = "rows", "pairs", "left out"


def export(
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
    check_new_folder(out, "remove it, or give --out another name")
    with recorded_run(folder) as (recipe, run), whole_folder(out) as partial:
        checked_role(recipe, role)
        if to == "verl":
            return out, _write_tasks(recipe, run, role, partial)
        where = "" if iteration is None else f" in iteration {iteration}"
        done = {step.iteration for step in recipe.steps() if run.is_finished(step)}
        if not (iterations := sorted(i for i in done if iteration in (None, i))):
            raise UserError(f"{folder} has no finished stage{where}", "continue the run")
        counts = _write_chats(_trained(recipe, run, iterations, role), to, partial)  # type: ignore[arg-type]
        if to == "jsonl":
            some = None if iteration is None else iterations
            jsonl.export(
                run.store, partial / "trajectories.jsonl", iterations=some, secrets=secrets
            )
        elif not counts[ROWS] + counts[PAIRS]:
            reason = f"{folder} has no selected training data{where}"
            if counts[LEFT_OUT]:
                reason = f"{to} can't represent any of the {counts[LEFT_OUT]} pairs of {folder}: their sides have the "
                reason += "same text or are whole dialogues"
            raise UserError(
                reason, "use --to jsonl, which has all trajectories, or continue the run"
            )
    return out, counts


def _write_chats(trained: Iterator[TrainedSelection], form: Form, out: Path) -> Counter[str]:
    """Write non-empty files of rows and pairs, and ``dataset_info.json`` for LLaMA-Factory."""
    counts, tools = Counter[str](), set[str]()
    with (out / "rows.jsonl").open("w") as rows, (out / "pairs.jsonl").open("w") as pairs:
        files = {ROWS: rows, PAIRS: pairs}
        for one in trained:
            pair = None if one.selection.rejected is None else export_pair(one, form)
            name = ROWS if one.selection.rejected is None else PAIRS
            items = export_rows(one, form) if name == ROWS else filter(None, [pair])
            counts[LEFT_OUT] += name == PAIRS and pair is None
            for item in items:
                files[name].write(json.dumps(item) + "\n")
                counts[name] += 1
                tools |= {name} if "tools" in item else set()
    for name in (ROWS, PAIRS):
        if not counts[name]:
            (out / f"{name}.jsonl").unlink()
    if form == "llamafactory":
        info = {
            f"coterie_{name}": _info(name, name in tools) for name in (ROWS, PAIRS) if counts[name]
        }
        (out / "dataset_info.json").write_text(json.dumps(info, indent=2) + "\n")
    return +counts


def _info(name: str, tools: bool) -> dict[str, Any]:
    """Return the entry of a file in LLaMA-Factory's ``dataset_info.json``."""
    columns = {"messages": "messages" if name == ROWS else "conversations"}
    columns |= {key: key for key in ("chosen", "rejected") if name == PAIRS}
    columns |= {"tools": "tools"} if tools else {}
    ranking = {"ranking": True} if name == PAIRS else {}
    return {"file_name": f"{name}.jsonl", **LLAMAFACTORY, **ranking, "columns": columns}


def _trained(
    recipe: Recipe, run: Run, iterations: list[int], only: str | None
) -> Iterator[TrainedSelection]:
    args = recipe.settings.engine.template_args
    renderers = {role.name: load_renderer(role.model, args)[0] for role in recipe.roles()}
    for iteration in iterations:
        for role, tree, one in recipe.trained_on(run, iteration):
            if only in (None, role):
                edit = None if one.context is None else recipe.edits[one.context]
                yield TrainedSelection(role, tree, one, renderers[role].render, edit)


def _write_tasks(recipe: Recipe, run: Run, role: str | None, out: Path) -> Counter[str]:
    """Write tasks as Parquet for verl: recorded tasks for training, and held-out tasks."""
    from pyarrow import Table
    from pyarrow.parquet import write_table

    players = recipe.players()
    agents = [agent for agent, one in players.items() if one == (role or recipe.main_role)]
    if not agents:
        raise UserError(f"{role} plays no agent of {recipe.settings.played}", "leave --role out")
    heldout = {task.id: task for task in recipe.heldout_tasks()}
    recorded = [id_ for id_ in run.store.task_ids() if id_ not in heldout]
    train = {id_: run.store.task(id_) for id_ in recorded}
    counts = Counter[str]()
    for split, tasks in (("train", train), ("heldout", heldout)):
        candidates = [_verl_row(recipe, task, agents[0], split) for task in tasks.values()]
        rows = [row for row in candidates if row is not None]
        counts += Counter({split: len(rows), LEFT_OUT: len(tasks) - len(rows)})
        if rows:
            write_table(Table.from_pylist(rows), out / f"{split}.parquet")
    if not counts["train"] + counts["heldout"]:
        raise UserError(
            f"no task of {recipe.settings.played} has a right answer that verl could compare with",
            "use --to jsonl",
        )
    return counts


def _verl_row(recipe: Recipe, task: Task, agent: str, split: str) -> dict[str, Any] | None:
    """Return a row of verl; ``None`` for a task without a right answer, or with tests that call a function."""
    answers = known_answers(task)
    truth = answers[0] if answers else _program_tests(task)
    if not truth:
        return None
    opening = first_prompts(recipe.environment, task)[agent]
    extra = {"index": task.id, "split": split, "question": question_of(task)}
    return {
        "data_source": recipe.settings.played,
        "prompt": begin_with_user(chat(opening.tree, opening.messages, agent)),
        "ability": "qa" if answers else "code",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {**extra, "answer": list(answers)},
    }


def _program_tests(task: Task) -> str:
    """Return inputs and expected outputs of a program for verl's ``prime_code``; empty for other tasks."""
    tests = json.loads(task.secrets[TESTS].reveal(GRADER)) if TESTS in task.secrets else []
    if not all(isinstance(one, dict) and one.get("kind") == "stdin" for one in tests):
        return ""
    columns = {key: [one[key[:-1]] for one in tests] for key in ("inputs", "outputs")}
    return json.dumps(columns) if tests else ""
