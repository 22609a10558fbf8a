"""What a run's page shows of a reinforcement learning: its steps as a table, and the reward from step to step."""

from coterie.recipes.reinforcing import STAGE
from coterie.reports.sections import Level, Section
from coterie.runs.folder import Run
from coterie.runs.reinforce.loop import step_records
from coterie.trajectories.item import Metrics

ROWS, POINTS = 40, 100
"""At most so many steps are in the table, and in the chart: evenly spaced ones, the last one always."""
COLUMNS = (
    ("reward", "reward"),
    ("score", "score"),
    ("tokens", "tokens"),
    ("turns", "turns"),
    ("cut off", "truncated"),
    ("groups with an advantage", "groups_telling"),
    ("all rewards equal", "groups_flat"),
    ("failed", "samples_failed"),
    ("entropy", "/entropy"),
    ("KL", "/policy_kl"),
    ("clipped", "/clip_share"),
    ("ratio", "/ratio"),
    ("gradient", "/grad_norm"),
)
"""What the table shows, and the number that it is; ``/`` before one: of the first role that has it."""


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


def _of(record: Metrics, what: str) -> str:
    value = record.get(what)
    if what.startswith("/"):
        value = next((v for name, v in record.items() if name.endswith(what)), None)
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _spaced(numbers: list[int], most: int) -> list[int]:
    """At most so many of them, evenly spaced, the last one among them."""
    every = -(-len(numbers) // most)
    return sorted({*numbers[::-1][::every]})
