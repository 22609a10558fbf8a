"""The page ``report.html`` of a run, and the pages of evaluations and sweeps: exports of the viewer.

A page is read from stores alone, without models, environments or servers, so it can be written at any time of a run.
It has the whole first page of the viewer, and the dialogues of the tasks that tell most.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from coterie.cli.view import (
    Answer,
    Fields,
    TaskKey,
    Viewer,
    block,
    bundle,
    page_files,
    run_answers,
    task_answers,
    tokenizers_of,
)
from coterie.errors import CONTROL_CHARACTERS
from coterie.record.browse import Browser
from coterie.reports.sections import tools
from coterie.runs.evaluation import Evaluation
from coterie.runs.loop import EVALUATION

HELD_OUT, WORST, TRAINING, COMPARED = 8, 2, 8, 12
"""Numbers of held-out tasks on the page of a run, of those among them that became worst, of training tasks, and of
tasks on the page of an evaluation."""
MAX_TURNS, MAX_SIZE = 200, 5 * 2**20
"""Maximum numbers of turns and of characters of the dialogues on a page, which take a second to read."""
MEASURES = (EVALUATION, "measure", "probe")
"""Stages whose dialogues are not for training."""
EMPTY: Mapping[str, Any] = {
    "facts": [], "commands": [], "evaluations": [], "stages": [], "last_updates": [], "sides": [], "folder": "",
}  # fmt: skip
"""Overview of a page without a store."""


def write_report(folder: Path) -> Path:
    """Write the page of a run, finished or not, and return its path. Secrets are left out."""
    file = folder / "report.html"
    # An open connection would keep the run from emptying its write-ahead log.
    with closing(Viewer([folder], show_secrets=False)) as viewer:
        _write_run(viewer, file)
    return file


def _write_run(viewer: Viewer, file: Path) -> None:
    overview = viewer.answer("overview", {})
    browser, stages = viewer.browsers[0], [s for s in overview["stages"] if s["has_trees"]]
    trained = [stage for stage in stages if stage["stage"].partition("/")[0] not in MEASURES]
    training = [
        (TaskKey(stage["iteration"], stage["stage"], task),)
        for stage in trained[:1] + trained[1:][-1:]
        for task in _training_tasks(browser, stage, TRAINING // min(2, len(trained)))
    ]
    held_out = _held_out(browser, overview["evaluations"])
    # By turns, so that a limit of size leaves out some of both.
    both = chain(*zip_longest(held_out, training, fillvalue=()))
    _write(viewer, filter(None, both), file, overview)


def _held_out(browser: Browser, evaluations: Sequence[Fields]) -> list[tuple[TaskKey, ...]]:
    """Return the tasks whose scores changed most from the first to the last evaluation, improvements first."""
    ends = [e["iteration"] for e in (*evaluations[:1], *evaluations[1:][-1:])]
    scores = [browser.scores(iteration, EVALUATION)["tasks"] for iteration in ends]

    def fall(task: str) -> tuple[float, str]:
        # A failed rollout counts as 0, as in the score of the policy.
        first, last = (of_task.get(task, (0.0, ""))[0] for of_task in (scores[0], scores[-1]))
        return first - last, task

    tasks = sorted(set[str]().union(*scores), key=fall)
    chosen = tasks[: HELD_OUT - WORST] + tasks[HELD_OUT - WORST :][-WORST:]
    return [tuple(TaskKey(iteration, EVALUATION, task) for iteration in ends) for task in chosen]


def _training_tasks(browser: Browser, stage: Fields, count: int) -> list[str]:
    """Return tasks with selected or trained rollouts and tasks without, those with unequal rewards first."""
    columns = browser.tasks(stage["iteration"], stage["stage"])
    rewards, used, unused = dict[str, list[float]](), set[str](), set[str]()
    names = ("task", "reward", "score", "selected", "trained", "left_out")
    for index, reward, score, *uses, left_out in zip(*map(columns.get, names), strict=True):
        task = columns["tasks"][index]
        rewards.setdefault(task, []).append((score or 0.0) if reward is None else reward)
        used |= {task} if any(uses) else set()
        unused |= {task} if left_out else set()
    ranked = sorted(rewards, key=lambda task: (min(rewards[task]) - max(rewards[task]), task))
    half = [task for task in ranked if task in used][: count // 2]
    chosen = half + [task for task in ranked if task in unused - used][: count - len(half)]
    return (chosen + [task for task in ranked if task not in chosen])[:count]


def write_evaluation(
    title: str,
    facts: Sequence[tuple[str, str]],
    command: str,
    results: Sequence[Evaluation],
    sections: Sequence[Fields],
    file: Path,
) -> None:
    """Write the page of an evaluation: the sections, and the rollouts of all policies on some tasks.

    Args:
        title: Heading of the page.
        facts: Names and values below it.
        command: Command to show.
        results: Results of each policy.
        sections: Tables and charts.
        file: The page.
    """
    stores = [result.store for result in results]
    tokenizers = {result.store: [*chain(*map(tokenizers_of, result.models))] for result in results}
    with closing(Viewer(stores, show_secrets=False, tokenizers=tokenizers)) as viewer:
        find = "SELECT max(iteration) FROM item WHERE stage = ?"
        attempts = [browser.fetch(find, (EVALUATION,))[0][0] for browser in viewer.browsers]
        scores = dict[str, list[float]]()
        for browser, attempt in zip(viewer.browsers, attempts, strict=True):
            scope = {"iteration": attempt, "stage": EVALUATION, "task": None}
            for outcome in browser.outcomes(scope):
                scores.setdefault(outcome["task"], []).append(outcome["score"] or 0.0)
        groups = [
            tuple(TaskKey(attempt, EVALUATION, task, run) for run, attempt in enumerate(attempts))
            for task in _picked_tasks(scores)
        ]
        numbered = [*zip(results, attempts, range(len(results)), strict=True)]
        overview = {
            **viewer.answer("overview", {}),
            "name": title,
            "folder": "",
            "facts": [*facts],
            "commands": [command] if command else [],
            "evaluations": [
                {
                    "iteration": attempt, "stage": EVALUATION, "run": run, "label": result.label, "tasks": result.n,
                    "score": result.score, "low": result.interval[0], "high": result.interval[1],
                    "tokens": result.tokens, "failed": result.failed,
                }
                for result, attempt, run in numbered
            ],
            "sides": [(f"{run}/{attempt}/{EVALUATION}", result.label) for result, attempt, run in numbered],
        }  # fmt: skip
        _write(viewer, groups, file, overview, sections)


def _picked_tasks(scores: Mapping[str, Sequence[float]]) -> list[str]:
    """Choose tasks to show: differing scores first, then wrong, then right."""
    ends = {task: (min(of_task), max(of_task)) for task, of_task in scores.items() if of_task}
    differing = [task for task, (low, high) in ends.items() if low < high]
    wrong = [task for task, (low, high) in ends.items() if low == high < 0.5]
    right = [task for task, (low, high) in ends.items() if low == high >= 0.5]
    # A third of each kind, and more of the others where one kind has too few tasks.
    third = COMPARED // 3
    chosen = [*differing[:third], *wrong[:third], *right[:third]]
    remaining = [task for task in (*differing, *wrong, *right) if task not in chosen]
    return chosen + remaining[: COMPARED - len(chosen)]


def write_tables(title: str, command: str, sections: Sequence[Fields], file: Path) -> None:
    """Write a page without dialogues."""
    overview = {**EMPTY, "name": title, "commands": [command] if command else []}
    answers: list[Answer] = [
        ("overview", {}, overview),
        ("sections", {}, {"sections": [*sections]}),
    ]
    _write_file(answers, _summary(overview, sections[0]), file)


def _write(
    viewer: Viewer,
    groups: Iterable[Sequence[TaskKey]],
    file: Path,
    overview: Fields,
    sections: Sequence[Fields] = (),
) -> None:
    """Write a page with the dialogues of groups of keys, as many as fit."""
    chosen, blocks, turns, size = list[TaskKey](), list[str](), 0, 0
    for group in groups:
        counts = {task_key: _turns(viewer.browsers[task_key.run], task_key) for task_key in group}
        task_keys = [task_key for task_key, count in counts.items() if count is not None]
        in_group = sum(filter(None, counts.values()))
        # A smaller task may still fit.
        if not task_keys or turns + in_group > MAX_TURNS:
            continue
        of_group = [block(*answer) for answer in task_answers(viewer, task_keys, brief=True)]
        if size + sum(map(len, of_group)) <= MAX_SIZE:
            chosen += task_keys
            blocks += of_group
            turns += in_group
            size += sum(map(len, of_group))
    tasks = {task for b in viewer.browsers for (task,) in b.fetch("SELECT DISTINCT task FROM tree")}
    excerpt = {"tasks": len({task_key.task for task_key in chosen}), "of": len(tasks)}
    answers = {"overview": {**overview, "excerpt": excerpt}}
    if sections:
        of_page = (*sections, tools(viewer.browsers[-1]))
        answers["sections"] = {"sections": [s for s in of_page if s["rows"] or s["charts"]]}
    _write_file(run_answers(viewer, chosen, answers), _summary(overview), file, blocks)


def _turns(browser: Browser, task_key: TaskKey) -> int | None:
    """Return the number of turns of a task's dialogues in a stage; ``None`` if the stage has not played the task."""
    find = (
        "SELECT (SELECT count(*) FROM tree r JOIN turn t ON t.tree = r.key WHERE (r.iteration, r.stage, r.task) = "
        "(i.iteration, i.stage, i.task)) FROM item i WHERE (i.iteration, i.stage, i.task) = (?, ?, ?) LIMIT 1"
    )
    return next((count for (count,) in browser.fetch(find, task_key[:3])), None)


def _write_file(
    answers: Iterable[Answer], summary: str, file: Path, blocks: Sequence[str] = ()
) -> None:
    """Write a page, over an earlier one."""
    text = bundle(
        page_files(), "".join([*(block(*answer) for answer in answers), *blocks]), summary
    )
    # The page is renamed at the end, so that a browser never loads half of it.
    partial = file.with_name(f".{file.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _summary(overview: Fields, table: Fields | None = None) -> str:
    """Return the result of a page as HTML, for readers without scripts."""
    heads: Sequence[object] = ("policy", "score", "95% interval", "tokens", "tasks")
    rows: list[Sequence[object]] = [
        (e["label"], f"{e['score']:.3f}", f"{e['low']:.3f} to {e['high']:.3f}", f"{e['tokens']:.1f}", e["tasks"])
        for e in overview["evaluations"] if e["tasks"]
    ]  # fmt: skip
    if table is not None:
        heads, rows = table["heads"], table["rows"]
    lines = [f"<h1>{_text(overview['name'])}</h1>"]
    lines += [f"<p>{_text(name)}: {_text(value)}</p>" for name, value in overview["facts"]]
    cells = (
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in (heads, *rows)
    )
    lines += [f"<table>{''.join(cells)}</table>"] if rows else []
    lines += [f"<pre>{_text(command)}</pre>" for command in overview["commands"]]
    return "\n".join([*lines, "<p>This page needs JavaScript for the dialogues.</p>"])


def _text(value: object) -> str:
    """Return a value as ASCII, in which nothing is a tag or a command for a terminal."""
    text = value["text"] if isinstance(value, dict) else "" if value is None else f"{value}"
    escaped = html.escape(text.translate(CONTROL_CHARACTERS))
    return escaped.encode("ascii", "xmlcharrefreplace").decode()
