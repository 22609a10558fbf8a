"""Report of a ``gap`` run: traces, reasons for leaving traces out, and reinforcement learning."""

from coterie.recipes.gap.recipe import LEFT_OUT, WITHOUT, GapData
from coterie.recipes.plain_report import plain_report, selected_examples
from coterie.recipes.reinforce_report import step_sections
from coterie.reports.examples import Example
from coterie.reports.page import Report, Section
from coterie.runs.folder import Run, Step


def gap_report(recipe: GapData, run: Run) -> Report:
    """Return the report of a run, finished or not."""
    own = [_traces(recipe, run)]
    if recipe.settings.reinforces:
        for iteration in (0, 1):
            own += step_sections(recipe, recipe.settings.rl, run, iteration)
    return plain_report(recipe, run, own)


def _traces(recipe: GapData, run: Run) -> Section:
    stages = [
        run.metrics(step)
        for step in (Step(0, "rollout"), Step(0, "select"), Step(0, "train"))
        if run.is_finished(step)
    ]
    rows = [("written", f"{stages[0].get('n', 0)}")] if stages else []
    for metrics in stages:
        rows += [
            (name, f"{value}")
            for name, value in metrics.items()
            if name.startswith((WITHOUT, LEFT_OUT)) or name in ("selected", "dropped")
        ]
    s, examples = recipe.settings.traces, tuple[Example, ...]()
    if run.is_finished(Step(0, "select")):
        rule = "the answer is right" if s.form == "closed" else (
            f"it has {s.min_calls} calls or more, its results have the supporting facts, and its answer is right"
        )  # fmt: skip
        reason = f"Selected: {rule} (a file of traces has no right answers)."
        examples = selected_examples(recipe, run, 0, reason=reason)
    return Section(
        "traces",
        "Traces",
        "Trajectories that the policy learns from by imitation: the marked tokens are trained, results of tools are "
        "not. Those that are dropped are too long.",
        ("what", "traces"),
        tuple(rows),
        examples=examples,
    )
