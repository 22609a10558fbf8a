"""The page of training on a file: loss curve, held-out measures, replies before and after."""

import json
from dataclasses import replace
from pathlib import Path

from coterie.recipes.base import Recipe
from coterie.recipes.file_training import MEASURE
from coterie.recipes.plain_report import plain_report
from coterie.reports.data import RunReport
from coterie.reports.sections import Level, Section
from coterie.runs.folder import Run, Step

POINTS = 100


def training_report(recipe: Recipe, run: Run) -> RunReport:
    """Return all that the page shows of a run, finished or not."""
    report = plain_report(recipe, run)
    sections = (_held_out(run), *_curve(run.training_folder(0) / "metrics.jsonl"))
    return replace(report, sections=(*report.sections, *(one for one in sections if one.rows)))


def _held_out(run: Run) -> Section:
    found = {
        ("base", "trained")[version]: run.metrics(Step(version, MEASURE))
        for version in (0, 1)
        if run.is_finished(Step(version, MEASURE))
    }
    names = [name for name in next(iter(found.values()), {}) if name not in ("seconds", "settings")]
    rows = [
        (name, *(f"{float(metrics[name]):.4g}" for metrics in found.values())) for name in names
    ]
    return Section(
        "held-out",
        "Held-out rows",
        "Measured on rows that are not trained on.",
        ("measure", *found),
        tuple(rows),
    )


def _curve(file: Path) -> list[Section]:
    """Return the training loss by step, at evenly spaced steps."""
    if not file.is_file():
        return []
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    shown = steps[:: -(-len(steps) // POINTS)]
    levels = tuple(Level(str(one["step"]), one["loss"], 0.0) for one in shown)
    rows = tuple((f"{one['step']}", f"{one['loss']:.4f}") for one in (steps[0], steps[-1]))
    return [
        Section(
            "training-loss",
            "Training loss",
            "Mean loss of each optimizer step.",
            ("step", "loss"),
            rows,
            "loss",
            levels,
        )
    ]
