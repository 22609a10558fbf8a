"""Sections on reinforcement learning: its steps, and groups with rewards and advantages."""

from collections.abc import Mapping, Sequence

from coterie.environments.protocol import agents_of
from coterie.recipes.base import Recipe
from coterie.recipes.plain_report import decoder
from coterie.recipes.trainings import STAGE
from coterie.record.tree import Metrics
from coterie.reports.charts import Chart, Point, Series
from coterie.reports.examples import Example, Shown, described, example
from coterie.reports.page import Section
from coterie.rewards.advantages import group_advantages
from coterie.rewards.path_reward import PathReward
from coterie.runs.folder import Run
from coterie.runs.reinforce.loop import step_records
from coterie.runs.reinforce.sampling import AgentPath, paths_of, step_stage
from coterie.runs.reinforce.settings import ReinforceSettings

ROWS, POINTS = 40, 100
"""Maximum number of steps in the table and in the chart. Steps are evenly spaced and include the last one."""
COLUMNS = (
    ("reward", "reward"),
    ("score", "score"),
    ("tokens", "tokens"),
    ("turns", "turns"),
    ("limit reached", "truncated"),
    ("groups with an advantage", "groups_telling"),
    ("all rewards equal", "groups_flat"),
    ("failed", "samples_failed"),
    ("without a reward", "paths_failed"),
    ("older weights", "paths_stale"),
    ("rows too long", "rows_too_long"),
    ("entropy", "/entropy"),
    ("KL", "/policy_kl"),
    ("clipped", "/clip_share"),
    ("ratio", "/ratio"),
    ("gradient", "/grad_norm"),
)
"""Headings of the table with their metrics. ``/`` starts a metric of the first role that has it."""
RULES = {
    "mean": "reward - mean of the group",
    "mean_std": "(reward - mean of the group) / standard deviation of the group",
    "leave_one_out": "reward - mean of the other rewards of the group",
}


def step_sections(
    recipe: Recipe, s: ReinforceSettings, run: Run, iteration: int
) -> tuple[Section, ...]:
    """Return sections on the steps of an iteration and their groups; none before the first step is finished."""
    records = step_records(run.store, iteration, STAGE)
    if not records:
        return ()
    numbers = sorted(records)
    columns = [
        (head, name)
        for head, name in COLUMNS
        if head in ("reward", "score") or any(_of(records[n], name) not in ("", "0") for n in numbers)
    ]  # fmt: skip
    points = tuple(
        Point(
            n + 1,
            reward := float(records[n]["reward"]),
            f"step {n + 1}: reward {reward:.3f}, standard error {(error := float(records[n]['reward_error'])):.3f}",
            reward - error,
            reward + error,
        )
        for n in _spaced(numbers, POINTS)
    )
    steps = Section(
        f"reinforce-{iteration}",
        "Steps of reinforcement learning",
        "Each step samples from the newest policy. Reward and score are means over all rollouts of a step; the band is "
        "one standard error of the reward.",
        ("step", *(head for head, _ in columns)),
        tuple(
            (f"{n + 1}", *(_of(records[n], name) for _, name in columns))
            for n in _spaced(numbers, ROWS)
        ),
        (Chart(f"reward-{iteration}", "Reward by step", "step", "reward", (Series("reward", points),)),),
    )  # fmt: skip
    rule = RULES.get(s.advantage.baseline, "estimated for each token by the critic (not recorded)")
    groups = Section(
        f"groups-{iteration}",
        "Groups: which rollouts were made more likely",
        f"All rollouts of a task, by reward. Marked tokens are trained, weighted by the advantage: {rule}. A positive "
        "advantage makes tokens more likely, a negative one less likely, 0 teaches nothing. The reward is the sum of "
        "its terms.",
        examples=tuple(_groups(recipe, s, run, iteration, numbers)),
    )
    return steps, groups


def _groups(
    recipe: Recipe, s: ReinforceSettings, run: Run, iteration: int, numbers: Sequence[int]
) -> list[Example]:
    """Return groups with advantages of the first, the middle and the last step, and one group without."""
    informative, flat = list[Example](), list[Example]()
    middle, last = numbers[len(numbers) // 2], numbers[-1]
    counts = {numbers[0]: 2, middle: 2, last: 2}
    for number, most in counts.items():
        at, count = step_stage(STAGE, number), 0
        for task in run.store.tree_tasks(iteration, at):
            paths = paths_of(
                *(run.store, iteration, at, [task], agents_of(recipe.environment)),
                PathReward(s.reward),
            )
            by_agent: dict[str, list[AgentPath]] = {}
            for path in paths:
                by_agent.setdefault(path.agent, []).append(path)
            for own in by_agent.values():
                totals = {path.sampled.total for path in own}
                if len(totals) > 1 and count < most:
                    informative.append(_group(recipe, s, run, number, own))
                    count += 1
                elif len(totals) == 1 and not flat and len(own) > 1:
                    flat.append(_group(recipe, s, run, number, own))
            if count == most:
                break
    return informative + flat


def _group(
    recipe: Recipe, s: ReinforceSettings, run: Run, number: int, paths: Sequence[AgentPath]
) -> Example:
    known: Sequence[float | None] = [None] * len(paths)
    rewards = [total for path in paths if (total := path.sampled.total) is not None]
    if s.advantage.baseline != "values":
        known = group_advantages([path.sampled for path in paths], s.advantage.baseline).values
    ranked = sorted(
        zip(paths, known, strict=True),
        key=lambda one: -(one[0].sampled.total if one[0].sampled.total is not None else -1e9),
    )
    samples = []
    for path, advantage in ranked:
        left_out = s.advantage.truncated == "mask" and path.outcome.ending.truncated
        facts = _facts(path, advantage)
        learns = bool(advantage) or s.has_critic
        samples.append(
            Shown(
                f"rollout {path.outcome.sample}",
                described(path.outcome, facts),
                tuple((path.agent, row) for row in path.rows),
                trained=learns and not left_out,
                side=""
                if left_out or not advantage
                else f"{'more' if advantage > 0 else 'less'} likely",
            )
        )
    several = f", {paths[0].agent}" if len(agents_of(recipe.environment)) > 1 else ""
    why = f"Step {number + 1}{several}: {len(rewards)} of {len(paths)} rollouts have a reward"
    if len(set(rewards)) > 1:
        why += f", from {min(rewards):.3f} to {max(rewards):.3f}, mean {sum(rewards) / len(rewards):.3f}."
    elif rewards:
        why += (
            f", all {rewards[0]:.3f}: every advantage is 0, and nothing is learned from this group."
        )
    else:
        why += ": nothing is learned from this group."
    if s.reward.kl:
        why += " The divergence from the reference is also taken off for each token."
    return example(run.store.task(paths[0].task), samples, decoder(recipe), why)


def _facts(path: AgentPath, advantage: float | None) -> dict[str, float | str]:
    total = path.sampled.total
    facts: dict[str, float | str] = {"reward": "none" if total is None else total}
    acts = sum(reward for _, reward in path.sampled.steps)
    terms: Mapping[str, float] = {**path.terms, "acts": acts}
    facts |= {f"= {name}": f"{value:+.3f}" for name, value in terms.items() if value}
    if advantage is not None:
        facts["advantage"] = f"{advantage:+.3f}"
    return facts


def _of(record: Metrics, name: str) -> str:
    value = record.get(name)
    if name.startswith("/"):
        value = next((v for key, v in record.items() if key.endswith(name)), None)
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _spaced(numbers: Sequence[int], most: int) -> list[int]:
    every = -(-len(numbers) // most)
    return sorted({*numbers[::-1][::every]})
