"""What a run's page shows of a reinforcement learning: its steps as a table, and the reward from step to step."""

from dataclasses import replace

from coterie.recipes.reinforcement import STAGE
from coterie.reports.data import RunReport
from coterie.reports.sections import Level, Section
from coterie.runs.folder import Run
from coterie.runs.reinforce.loop import step_records
from coterie.trajectories.item import Metrics
from coterie.trajectories.tree import Tree

ROWS, POINTS = 40, 100
"""At most so many steps are in the table, and in the chart: evenly spaced ones, the last one always."""
SHOWN = 1500
"""Characters of a path that are shown."""
COLUMNS = (
    ("reward", "reward"),
    ("score", "score"),
    ("tokens", "tokens"),
    ("turns", "turns"),
    ("cut off", "truncated"),
    ("groups with an advantage", "groups_telling"),
    ("all rewards equal", "groups_flat"),
    ("failed", "samples_failed"),
    ("without a reward", "paths_failed"),
    ("of other weights", "paths_stale"),
    ("rows too long", "rows_too_long"),
    ("entropy", "/entropy"),
    ("KL", "/policy_kl"),
    ("clipped", "/clip_share"),
    ("ratio", "/ratio"),
    ("gradient", "/grad_norm"),
)
"""What the table shows, and the number that it is; ``/`` before one: of the first role that has it."""


def with_steps(report: RunReport, run: Run, iteration: int) -> RunReport:
    records = step_records(run.store, iteration, STAGE).values()
    found = (steps_section(run, iteration), rollouts_section(run, iteration))
    counts = replace(
        report.counts,
        tasks=report.counts.tasks + sum(int(one["tasks"]) for one in records),
        samples=report.counts.samples + sum(int(one["samples"]) for one in records),
    )
    sections = (*report.sections, *(section for section in found if section is not None))
    return replace(report, counts=counts, sections=sections)


def steps_section(run: Run, iteration: int) -> Section | None:
    """The steps of an iteration; ``None`` if none was taken."""
    records = step_records(run.store, iteration, STAGE)
    if not records:
        return None
    numbers = sorted(records)
    shown = [(name, what) for name, what in COLUMNS if any(_of(records[n], what) for n in numbers)]
    return Section(
        f"reinforce-{iteration}",
        "Reinforcement learning",
        "Each step samples from the newest policy. Reward and score are means over all paths of a step.",
        ("step", *(name for name, _ in shown)),
        tuple(
            (str(n + 1), *(_of(records[n], what) for _, what in shown))
            for n in _spaced(numbers, ROWS)
        ),
        quantity="reward",
        levels=tuple(
            Level(f"step {n + 1}", float(records[n]["reward"]), float(records[n]["reward_error"]))
            for n in _spaced(numbers, POINTS)
        ),
    )


def rollouts_section(run: Run, iteration: int) -> Section | None:
    """The best and the worst path of a task of the first, the middle and the last step; ``None`` if there are none."""
    numbers = sorted(step_records(run.store, iteration, STAGE))
    rows: list[tuple[str, ...]] = []
    for number in dict.fromkeys(numbers[place] for place in (0, len(numbers) // 2, -1) if numbers):
        tree = _telling(run, iteration, f"{STAGE}/{number:05d}")
        if tree is not None:
            graded = sorted(tree.graded(), key=lambda one: one[0].score or 0.0)
            for outcome, path in (graded[-1], graded[0]):
                text = "\n".join(f"{turn.speaker.name}: {turn.text}" for turn in path)
                shown = text if len(text) <= SHOWN else f"{text[:SHOWN]} …"
                rows.append((str(number + 1), tree.task, f"{outcome.score:g}", shown))
    if not rows:
        return None
    intro = "The best and the worst path of one task, in the first, the middle and the last step."
    heads = ("step", "task", "score", "what was said")
    return Section(f"rollouts-{iteration}", "Rollouts", intro, heads, tuple(rows))


def _telling(run: Run, iteration: int, stage: str) -> Tree | None:
    """The first task of a step whose paths have different scores; else any that was graded."""
    found = None
    for task in run.store.tree_tasks(iteration, stage):
        tree = run.store.tree(iteration, stage, task)
        scores = {outcome.score for outcome, _ in tree.graded()}
        if len(scores) > 1:
            return tree
        found = found or (tree if scores else None)
    return found


def _of(record: Metrics, what: str) -> str:
    value = record.get(what)
    if what.startswith("/"):
        value = next((v for name, v in record.items() if name.endswith(what)), None)
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _spaced(numbers: list[int], most: int) -> list[int]:
    every = -(-len(numbers) // most)
    return sorted({*numbers[::-1][::every]})
