"""The report of a recipe that has none of its own: policies on held-out tasks, dialogues, grades, times, failures."""

from coterie.environments.gold import known_answers, question_of
from coterie.recipes.base import Recipe
from coterie.reports.common import (
    EXAMPLES,
    failures,
    first_and_last,
    policy_point,
    shown_settings,
    stage_grades,
    tasks_of,
    timings,
)
from coterie.reports.data import Counts, Example, RunReport
from coterie.runs.folder import Run

PLAYED = ("rollout", "evaluate")
"""Stages whose items are dialogues, whatever the recipe."""


def plain_report(recipe: Recipe, run: Run) -> RunReport:
    """All that the page shows of a run, finished or not."""
    done = [step for step in recipe.steps() if run.is_finished(step)]
    measured = [run.metrics(step) for step in done]
    rollouts = [step for step in done if step.stage == "rollout"]
    versions = [step.iteration for step in done if step.stage == "evaluate"]
    return RunReport(
        title=f"{recipe.title} on {recipe.settings.played}",
        command=f"coterie run {recipe.name} --folder {run.folder}",
        model=recipe.settings.model,
        seed=recipe.settings.seed,
        metric=recipe.environment.metric,
        planned=recipe.settings.rounds,
        counts=Counts(
            tasks=sum(tasks_of(run, step) for step in rollouts),
            samples=sum(int(run.metrics(step).get("n", 0)) for step in rollouts),
            selected_rows=sum(int(metrics.get("rows", 0)) for metrics in measured),
            trained_tokens=sum(int(metrics.get("trained_tokens", 0)) for metrics in measured),
        ),
        settings=shown_settings(recipe.settings),
        iterations=tuple(policy_point(run, version) for version in versions),
        grades=tuple(
            stage_grades(run, step)
            for step in done
            if step.stage in PLAYED and run.metrics(step).get("n") and "score" in run.metrics(step)
        ),
        examples=_examples(recipe, run, versions),
        failures=failures(run),
        timings=timings(run, done),
    )


def _examples(recipe: Recipe, run: Run, versions: list[int]) -> tuple[Example, ...]:
    """Held-out tasks with the first and the last policy's dialogue."""
    if not versions:
        return ()
    model, found = recipe.load_policy(run, 0), []
    for task in recipe.heldout_tasks()[:EXAMPLES]:
        sides = first_and_last(run, versions, task, model)
        found.append(Example(task.id, question_of(task), known_answers(task), (), *sides))
    return tuple(found)
