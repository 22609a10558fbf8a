"""Report of training on a file: loss curve, held-out measures, and training rows with their trained tokens."""

import json
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from coterie.engines.protocol import POLICY
from coterie.errors import UserError
from coterie.recipes.file_training import MEASURE, FileTraining
from coterie.recipes.plain_report import EXAMPLES, decoder, plain_report
from coterie.record.rows import Pair, Row
from coterie.reports.charts import Chart, Point, Series
from coterie.reports.examples import Example, Shown, example
from coterie.reports.page import Report, Section
from coterie.runs.folder import Run, Step

POINTS = 100
UNMEASURED = ("seconds", "settings")


def training_report(recipe: FileTraining, run: Run) -> Report:
    """Return the report of a run, finished or not."""
    return plain_report(recipe, run, [_held_out(recipe, run), *_curve(run), _rows(recipe)])


def _held_out(recipe: FileTraining, run: Run) -> Section:
    measures = {
        ("base", "trained")[version]: run.metrics(Step(version, MEASURE))
        for version in (0, 1)
        if run.is_finished(Step(version, MEASURE))
    }
    names = [name for name in next(iter(measures.values()), {}) if name not in UNMEASURED]
    rows = [(name, *(f"{float(one[name]):.4g}" for one in measures.values())) for name in names]
    return Section(
        "held-out",
        "Measures on held-out rows",
        "Rows that are not trained on.",
        ("measure", *measures),
        tuple(rows),
        examples=_margins(recipe, run),
    )


def _margins(recipe: FileTraining, run: Run) -> tuple[Example, ...]:
    """Return the held-out pairs with the largest and the smallest margins, with their implicit rewards."""
    items = run.store.metrics(1, MEASURE)
    rewards = {key.task: one for key, one in items.items() if key.task and "chosen" in one}
    if not rewards:
        return ()
    pairs = {pair.name: pair for pair in recipe.heldout_items}
    margins = {
        name: float(one["chosen"]) - float(one["rejected"])
        for name, one in rewards.items()
        if name in pairs
    }
    ranked = sorted(margins, key=margins.__getitem__)
    half = EXAMPLES // 4
    names = dict.fromkeys([*ranked[::-1][:half], *ranked[:half]])
    return tuple(
        _pair(recipe, pairs[name], margins[name], rewards[name], "Held-out pair, not trained on.")
        for name in names
    )


def _curve(run: Run) -> list[Section]:
    """Return the training loss at evenly spaced steps, and the held-out loss where it was measured."""
    file: Path = run.training_folder(0) / "metrics.jsonl"
    if not file.is_file():
        return []
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    if not steps:
        return []
    points = steps[:: -(-len(steps) // POINTS)]
    series = [Series("training", _points(points, "loss"))]
    if measured := [one for one in steps if "heldout_loss" in one]:
        series.append(Series("held out", _points(measured, "heldout_loss"), "grey"))
    rows = tuple((f"{one['step']}", f"{one['loss']:.4f}") for one in (steps[0], steps[-1]))
    chart = Chart("training-loss-chart", "Loss by step", "step", "loss", tuple(series))
    intro = "Mean loss of each optimizer step, and of held-out rows after some (evaluate.every)."
    return [Section("training-loss", "Training loss", intro, ("step", "loss"), rows, (chart,))]


def _points(steps: Sequence[dict[str, float]], name: str) -> tuple[Point, ...]:
    return tuple(
        Point(one["step"], one[name], f"step {one['step']}: loss {one[name]:.4f}") for one in steps
    )


def _rows(recipe: FileTraining) -> Section:
    """Return the first training rows, with their trained tokens marked."""
    try:
        items = list(islice(recipe.training_items, EXAMPLES))
    except UserError:  # the file has changed since the run
        items = []
    show = partial(_pair, recipe) if items and isinstance(items[0], Pair) else partial(_row, recipe)
    return Section(
        "training-rows",
        "Training rows",
        "The first rows of the file as the model is trained on them. Marked tokens are trained; for a pair, the chosen "
        "reply is made more likely than the rejected one.",
        examples=tuple(show(item) for item in items),
    )


def _row(recipe: FileTraining, row: Row) -> Example:
    sample = Shown("row", (("tokens", f"{len(row.ids):,}"),), ((POLICY, row),), trained=True)
    return example(None, [sample], decoder(recipe), title=row.origin)


def _pair(
    recipe: FileTraining,
    pair: Pair,
    margin: float | None = None,
    rewards: object = None,
    reason: str = "",
) -> Example:
    sides: Sequence[tuple[str, tuple[Row, ...]]] = (
        ("chosen", pair.chosen),
        ("rejected", pair.rejected),
    )
    samples = []
    for side, rows in sides:
        facts = {"tokens": f"{sum(row.target_count for row in rows):,}"}
        if isinstance(rewards, dict):
            facts["implicit reward"] = f"{float(rewards[side]):+.3f}"
        own = tuple((POLICY, row) for row in rows)
        samples.append(Shown("reply", tuple(facts.items()), own, trained=not reason, side=side))
    if margin is not None:
        reason += f" After training: beta * log(p / p_base) of chosen minus rejected is {margin:+.3f}; before, it is 0."
    title = " over ".join(dict.fromkeys(rows[0].origin for _, rows in sides))
    return example(None, samples, decoder(recipe), reason, title=title)
