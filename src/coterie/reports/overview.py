"""First page of the viewer: scores, stages, curves and tables of a run, read from its folder without models."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from coterie.config.resolve import flatten, read_yaml
from coterie.engines.protocol import LEFT_OUT
from coterie.evaluation import mean_interval
from coterie.record.browse import Browser, Fields
from coterie.record.lineage import OF_UPDATE
from coterie.record.rows import DTYPES, unpacked
from coterie.record.tables import whole
from coterie.reports.sections import (
    Marks,
    all_settings,
    changes,
    chart,
    line,
    run_sections,
    section,
)
from coterie.runs.loop import EVALUATION
from coterie.runs.reinforce_record import HELDOUT, STEP
from coterie.runs.run import COMMANDS, CREATED, FINISHED, read_config

Preset = Callable[[str, Mapping[str, object]], Mapping[str, object] | None]
"""Function that returns the flat settings of a recipe's preset for stored settings, if there is one."""


def overview(browser: Browser, folder: Path) -> Fields:
    """Return the facts of a run, finished or not, or of a single store; a question for :meth:`Browser.answer`."""
    is_run = folder.is_dir()
    recipe, stored = read_config(folder) if is_run else ("", {})
    settings, commands = flatten(dict(stored)), folder / COMMANDS
    stages = _stages(browser, _marks(browser))
    names = [settings.get(f"{group}.name") for group in ("dataset", "environment")]
    return {
        "name": folder.absolute().name, "folder": str(folder), "recipe": recipe, "settings": settings,
        "metric": next((s["metrics"].get("metric") for s in stages if s["stage"] == EVALUATION), None),
        "facts": [
            ("recipe", recipe), ("benchmark", " in ".join(map(str, filter(None, names)))),
            *((name, settings[name]) for name in ("method", "model", "seed") if name in settings),
            ("created", str(read_yaml(folder / "config.yaml").get(CREATED, "")) if is_run else ""),
            ("folder", str(folder)),
        ],
        "commands": commands.read_text("utf-8").splitlines() if commands.is_file() else [],
        "evaluations": [
            _evaluation(browser, stage["iteration"])
            for stage in stages if stage["stage"] == EVALUATION and stage["has_trees"]
        ],
        "stages": stages,
        "roles": sorted(path.name for path in folder.glob("training/*") if path.is_dir()),
        "trained": bool(updates := _last_updates(browser)), "last_updates": updates,
    }  # fmt: skip


def sections(browser: Browser, folder: Path, preset: Preset) -> Fields:
    """Return the tables and charts of a run, or of a single store; a question for :meth:`Browser.answer`."""
    marks = _marks(browser)
    curves = [*_step_curves(marks, HELDOUT), *_step_curves(marks, STEP), *_training_curves(folder)]
    # The first curves tell whether the run learns; single trainings may be many.
    for curve in curves[2:]:
        curve["folded"] = True
    of_run = [*curves, *run_sections(browser, marks)]
    if folder.is_dir():
        recipe, stored = read_config(folder)
        settings = flatten(dict(stored))
        of_run = [
            changes(settings, preset(recipe, stored), "preset"),
            *of_run,
            all_settings(settings),
        ]
    return {"sections": [s for s in of_run if s["rows"] or s["charts"]]}


def _marks(browser: Browser) -> Marks:
    marks = dict[tuple[int, str], dict[str, dict[str, Any]]]()
    find = f"SELECT sample, iteration, stage, metrics, {whole('item')} AS whole FROM item WHERE task = ''"
    for item in browser.records(f"{find} ORDER BY key", (), "item"):
        of_stage = marks.setdefault((item["iteration"], item["stage"]), {})
        of_stage[item["sample"]] = json.loads(item["metrics"])
    return marks


def _stages(browser: Browser, marks: Marks) -> list[Fields]:
    """Return the stages in the order in which they started."""
    find = (
        "SELECT i.iteration, i.stage, count(DISTINCT nullif(i.task, '')) AS tasks, sum(i.task != '') AS rollouts, "
        "count(i.failure) AS failed, "
        "EXISTS (SELECT 1 FROM tree t WHERE (t.iteration, t.stage) = (i.iteration, i.stage)) AS has_trees "
        "FROM item i GROUP BY i.iteration, i.stage ORDER BY min(i.key)"
    )
    left_out = Counter[tuple[int, str]]()
    for tree in (
        "turn n ON n.id = lower(hex(l.node)) JOIN tree r ON r.key = n.tree",
        "tree r ON r.root = lower(hex(l.node))",
    ):
        count = f"SELECT r.iteration, r.stage, count(*) FROM left_out l JOIN {tree} GROUP BY 1, 2"
        left_out.update({(row[0], row[1]): row[2] for row in browser.fetch(count)})
    stages = browser.records(find, ())
    for stage in stages:
        metrics = marks.get((stage["iteration"], stage["stage"]), {}).get(FINISHED)
        # The samples of a step (`reinforce/00000`) have no mark of their own.
        parent = stage["stage"].partition("/")[0]
        is_finished = FINISHED in marks.get((stage["iteration"], parent), {})
        stage |= {"finished": is_finished, "metrics": metrics or {}}
        stage["left_out"] = left_out[stage["iteration"], stage["stage"]]
        stage["seconds"] = stage["metrics"].get("seconds")
    return stages


def _last_updates(browser: Browser) -> list[Fields]:
    """Return the last optimizer step of each role with its number of training rows, and the row that it raised most."""
    key = "iteration, stage, role"
    last = f"SELECT {key}, max(updates) AS updates FROM optimizer_step GROUP BY {key}"
    find = (
        f"SELECT {key}, updates, count(*) AS rows FROM ({last}) JOIN optimizer_step s USING ({key}, updates) "
        "JOIN trained ON optimizer_step = s.key"
    )
    rows = browser.records(f"{find} GROUP BY {key} ORDER BY {key}", ())
    updates = {row["role"]: row for row in rows}.values()
    return [{**update, "position": _raised(browser, update)} for update in updates]


def _raised(browser: Browser, update: Fields) -> int:
    """Return the position of the row with the token that an optimizer step raised most.

    A step raises the logit of a token by its advantage times the probability that it lacks. Without numbers of tokens,
    the row or the chosen side with the largest loss counts.
    """

    def rise(row: Fields) -> float:
        if row["advantage"] and row["logprob"]:
            arrays = unpacked([row.get(name) for name in DTYPES], row["tokens"])
            return float((arrays["advantage"] * -np.expm1(arrays["logprob"])).max(initial=-np.inf))
        return -np.inf if row["side"] == "rejected" else json.loads(row["metrics"]).get("loss", 0.0)

    columns = "position, side, tokens, metrics, advantage, logprob"
    rows = browser.records(f"SELECT {columns} {OF_UPDATE}", update)
    return int(max(rows, key=rise)["position"])


def _evaluation(browser: Browser, iteration: int) -> Fields:
    """Return score and tokens of a policy as in the report: the first dialogue of each task, 0 for a failed one."""
    columns = browser.tasks(iteration, EVALUATION)
    scores, tokens = dict[int, float | None](), dict[int, float]()
    counts = columns["metrics"].get("tokens", columns["score"])
    for task, score, count, failure in zip(
        columns["task"], columns["score"], counts, columns["failure"], strict=True
    ):
        # Tasks that can't be graded, whatever an agent does, are left out.
        if not (failure or "").startswith(LEFT_OUT) and task not in scores:
            scores[task] = score
            tokens[task] = 0.0 if score is None else count or 0.0
    values = [score or 0.0 for score in scores.values()]
    low, high = mean_interval(values, seed=0) if values else (None, None)
    return {
        "iteration": iteration, "stage": EVALUATION, "label": f"after iteration {iteration}" if iteration else "base",
        "tasks": len(values), "failed": [*scores.values()].count(None), "low": low, "high": high,
        "score": fmean(values) if values else None, "tokens": fmean(tokens.values()) if values else None,
    }  # fmt: skip


def _step_curves(marks: Marks, prefix: str) -> Iterator[Fields]:
    """Yield a section of the metrics of items whose names are ``prefix`` and the number of a step, by iteration."""
    for (iteration, stage), items in marks.items():
        steps = {
            int(name.removeprefix(prefix)): metrics
            for name, metrics in items.items() if name.startswith(prefix)
        }  # fmt: skip
        if steps and prefix == HELDOUT:
            # Step 0 is the starting policy, which the run evaluated before.
            start = marks.get((iteration, EVALUATION), {}).get(FINISHED, {})
            names = set[str]().union(*steps.values())
            steps = {0: {name: start[name] for name in start if name in names}, **steps}
        of = "Held-out scores" if prefix == HELDOUT else "Steps"
        yield from _curves(f"{of} of {stage}, iteration {iteration}", "step", steps)


def _training_curves(folder: Path) -> Iterator[Fields]:
    """Yield a section of the metrics of optimizer steps by role and training."""
    for file in sorted(folder.glob("training/*/iteration-*/metrics.jsonl")):
        # The last line may be incomplete while the run goes on.
        lines = [line for line in file.read_text("utf-8").splitlines() if line.endswith("}")]
        steps = {line["step"]: line for line in map(json.loads, lines)}
        iteration = int(file.parent.name.removeprefix("iteration-"))
        yield from _curves(f"Updates of {file.parts[-3]}, iteration {iteration}", "update", steps)


FIRST = (
    "score", "reward", "heldout_loss", "loss", "tokens", "entropy", "clip_share", "policy_kl", "reference_kl"
)  # fmt: skip
"""Curves that tell whether a run learns, which are shown first."""


def _curves(title: str, x: str, steps: Mapping[int, Mapping[str, Any]]) -> Iterator[Fields]:
    """Yield a section with a chart of each metric, if there are several steps."""

    def rank(name: str) -> int:
        short = name.rpartition("/")[2]
        return FIRST.index(short) if short in FIRST else len(FIRST)

    names = dict.fromkeys(
        name
        for metrics in steps.values()
        for name, value in metrics.items()
        if isinstance(value, int | float) and name != "step"
    )
    charts = [
        chart(name, x, (), [line(name, [metrics.get(name) for metrics in steps.values()])])
        for name in sorted(names, key=rank)
    ]
    if len(steps) > 1:
        yield section(title, title, charts=charts) | {"steps": [*steps]}
