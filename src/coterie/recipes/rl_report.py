"""Report of the steps of reinforcement learning and of their groups."""

from collections.abc import Mapping, Sequence

from coterie.environments.protocol import agents_of
from coterie.recipes.base import Recipe
from coterie.record.tree import Metrics
from coterie.reports.charts import Chart, Point, Series
from coterie.reports.examples import Example, ExampleSample, described, example
from coterie.reports.health import step_warnings
from coterie.reports.page import Section
from coterie.rewards.advantages import turn_ends
from coterie.runs.group_queue import groups_taken
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_batch import AgentPath, step_stage
from coterie.runs.reinforce_record import (
    OF_ROLES,
    TERM,
    heldout_means,
    sampling_warnings,
    step_records,
    trained_roles,
)
from coterie.runs.reinforce_settings import ReinforceSettings
from coterie.runs.reinforce_trees import group_samples
from coterie.runs.run import Run, StageKey

ROWS, POINTS, GROUPS = 40, 100, 2
"""Maximum number of steps in the table and in the chart, evenly spaced with the last one, and of groups of a step."""
COLUMNS = (
    ("reward", "reward"),
    ("score", "score"),
    ("tokens", "tokens"),
    ("turns", "turns"),
    ("limit reached", "truncated"),
    ("groups with an advantage", "groups_informative"),
    ("all rewards equal", "groups_equal"),
    ("failed", "samples_failed"),
    ("without a reward", "paths_failed"),
    ("staleness", "staleness"),
    ("older weights", "paths_stale"),
    ("rows too long", "rows_too_long"),
)
LEARNED = (
    ("entropy", "entropy"),
    ("KL to the reference", "reference_kl"),
    ("KL to the sampler", "policy_kl"),
    ("clipped", "clip_share"),
    ("ratio", "ratio"),
    ("gradient", "grad_norm"),
)
"""Headings of the tables with their metrics: what was sampled, and what a role learned."""
RULES = {
    "mean": "{return} - mean of the group",
    "mean_std": "({return} - mean of the group) / standard deviation of the group",
    "leave_one_out": "{return} - mean of the others of the group",
}
COMPARED = {
    "path": ("reward", "All rollouts of a task, by reward."),
    "turn": (
        "return to go of a turn",
        "All rollouts of a task, by reward; the same turn of each is compared.",
    ),
    "state": (
        "reward, plus the same of the returns to go of turns after equal observations,",
        "All rollouts of a task, by reward.",
    ),
    "sibling": (
        "return of the turn",
        "Alternatives of one turn, sampled from the same state, by return.",
    ),
    "role": (
        "reward",
        "All rollouts of a task, by reward. The group is all earlier rollouts of the agent.",
    ),
}
"""What the advantage is computed from, and what a group shows, by ``advantage.group``."""


def step_sections(
    recipe: Recipe, s: ReinforceSettings, run: Run, iteration: int
) -> tuple[Section, ...]:
    """Return warnings, and sections on the steps of an iteration and their groups, by role if there are several.

    The table is empty before the first step is finished.
    """
    records = step_records(run.store, iteration, REINFORCE)
    if not records:
        return ()
    greedy = not recipe.settings.evaluate.temperature
    means = heldout_means(run, iteration)
    texts = [*sampling_warnings(run, iteration, greedy=greedy), *step_warnings(records, means)]
    rows = tuple((text,) for text in texts)
    sections = [Section(f"warnings-{iteration}", "Warnings", "", ("warning",), rows)]
    charts = list[Chart]()
    if len(means) > 1:
        scores = {n: float(means[n]["score"]) for n in sorted(means)}
        points = [Point(n, scores[n], f"step {n}: held-out score {scores[n]:.3f}") for n in scores]
        charts.append(_chart(f"score-{iteration}", "Held-out score by step", "score", points))
    roles = trained_roles(records[max(records)])
    several, id_ = len(roles) > 1, f"reinforce-{iteration}"
    # With several roles, the whole step has one section, and each role another.
    if several:
        sections.append(_steps(records, id_, COLUMNS, charts))
        charts = []
    names = dict.fromkeys(name for record in records.values() for name in record)
    rule = RULES.get(s.advantage.baseline, "estimated for each token by the critic")
    value, shown = COMPARED[s.advantage.group]
    rule, kind = (
        rule.replace("{return}", value),
        "rollouts" if s.rollout.tree == "none" else "turns",
    )
    for role in roles:
        ending, prefix, of = (f"-{role}", f"{role}/", f" of {role}") if several else ("", "", "")
        columns = [
            (f"tokens{of}" if name == "tokens" else head, f"{prefix}{name}")
            for head, name in COLUMNS
            if not several or name in OF_ROLES
        ]
        start = f"{prefix}{TERM}"
        columns += [(f"= {n.removeprefix(start)}", n) for n in names if n.startswith(start)]
        columns += [(head, f"{role}/{name}") for head, name in LEARNED]
        groups = Section(
            f"groups-{iteration}{ending}",
            f"Groups{of}: which {kind} were made more likely",
            f"{shown} Marked tokens are trained, weighted by the advantage: {rule}. A positive advantage makes tokens "
            "more likely, a negative one less likely, 0 teaches nothing.",
            examples=tuple(_groups(recipe, s, run, iteration, sorted(records), role)),
        )
        sections += [_steps(records, f"{id_}{ending}", columns, charts, prefix, of), groups]
    return tuple(sections)


def _steps(
    records: Mapping[int, Metrics],
    id_: str,
    columns: Sequence[tuple[str, str]],
    charts: Sequence[Chart],
    prefix: str = "",
    of: str = "",
) -> Section:
    """Return the rewards by step, and a table of the columns in which anything happened."""
    numbers, points = sorted(records), []
    # Columns in which nothing happened are left out.
    columns = [
        (head, name)
        for head, name in columns
        if head in ("reward", "score") or {_text(records[n], name) for n in numbers} - {"", "0"}
    ]
    for n in _spaced(numbers, POINTS):
        names = (f"{prefix}reward", f"{prefix}reward_error")
        reward, error = (float(records[n].get(name, 0.0)) for name in names)
        title = f"step {n + 1}: reward{of} {reward:.3f}, standard error {error:.3f}"
        points.append(Point(n + 1, reward, title, reward - error, reward + error))
    return Section(
        id_,
        f"Steps of reinforcement learning{of}",
        "Each step samples from the newest policy. Reward and score are means over all rollouts of a step; the band is "
        "one standard error of the reward.",
        ("step", *(head for head, _ in columns)),
        tuple(
            (f"{n + 1}", *(_text(records[n], name) for _, name in columns))
            for n in _spaced(numbers, ROWS)
        ),
        (_chart(f"reward-{id_}", f"Reward{of} by step", "reward", points), *charts),
    )


def _chart(id_: str, title: str, name: str, points: Sequence[Point]) -> Chart:
    return Chart(id_, title, "step", name, (Series(name, tuple(points)),))


def _groups(
    recipe: Recipe,
    s: ReinforceSettings,
    run: Run,
    iteration: int,
    numbers: Sequence[int],
    role: str,
) -> list[Example]:
    """Return groups of a role with advantages of the first, middle and last step, and one group without."""
    informative, flat = list[Example](), list[Example]()
    agents = [agent for agent, player in recipe.players().items() if player == role]
    records = step_records(run.store, iteration, REINFORCE)
    for number in dict.fromkeys((numbers[0], numbers[len(numbers) // 2], numbers[-1])):
        count, stage = 0, step_stage(REINFORCE, number)
        # A step may train on groups that an earlier draw sampled, so its record names the draws.
        groups = [
            (step_stage(REINFORCE, draw), task) for draw, task in groups_taken(records[number])
        ]
        groups = groups or [(stage, task) for task in run.store.tree_tasks(iteration, stage)]
        for drawn, task in groups:
            paths = group_samples(run.store, iteration, drawn, [task], agents, s)
            # Several groups of one task: of its agents, or of the states of its tree.
            by_group: dict[tuple[str, str], list[AgentPath]] = {}
            for path in paths:
                by_group.setdefault((path.sampled.group, path.agent), []).append(path)
            for group in by_group.values():
                # Only groups with different rewards have advantages that are not 0.
                totals = {path.sampled.total for path in group}
                if len(totals) > 1 and count < GROUPS:
                    informative.append(_group(recipe, s, run, iteration, number, group))
                    count += 1
                elif len(totals) == 1 and not flat and len(group) > 1:
                    flat.append(_group(recipe, s, run, iteration, number, group))
            if count == GROUPS:
                break
    return informative + flat


def _group(
    recipe: Recipe,
    s: ReinforceSettings,
    run: Run,
    iteration: int,
    number: int,
    paths: Sequence[AgentPath],
) -> Example:
    rewards = [total for path in paths if (total := path.sampled.total) is not None]
    # Advantages are on the leaf of a path, or on each of its turns.
    nodes = {path.node for path in paths} | {
        turn for path in paths for turn in turn_ends(path.rows)
    }
    fingerprint = run.start_fingerprint(StageKey(iteration, REINFORCE)) or ""
    credit = run.store.credit(fingerprint, f"advantage:{paths[0].agent}", nodes)
    # Rollouts without a reward come last.
    order = [-1e9 if path.sampled.total is None else path.sampled.total for path in paths]
    samples, of_tree = [], s.rollout.tree != "none"
    for n in sorted(range(len(paths)), key=lambda n: -order[n]):
        path = paths[n]
        of_path = [path.node] if path.node in credit else turn_ends(path.rows)
        values = [credit[node] for node in of_path if node in credit and not s.has_critic]
        left_out = s.advantage.truncated == "mask" and path.outcome.ending.truncated
        total = sum(values)
        side = "" if left_out or not total else "more likely" if total > 0 else "less likely"
        facts = described(path.outcome, _facts(path, values, of_tree))
        rows = tuple((path.agent, row) for row in path.rows)
        # With a critic, each token has its own advantage, and all rollouts are trained on.
        is_trained = (any(values) or s.has_critic) and not left_out
        name = f"turn {path.sampled.path}" if of_tree else f"rollout {path.outcome.sample}"
        samples.append(ExampleSample(name, facts, rows, trained=is_trained, side=side))
    several = f", {paths[0].agent}" if len(agents_of(recipe.environment)) > 1 else ""
    kind = "turns have a return" if of_tree else "rollouts have a reward"
    intro = f"Step {number + 1}{several}: {len(rewards)} of {len(paths)} {kind}"
    if len(set(rewards)) > 1:
        intro += f", from {min(rewards):.3f} to {max(rewards):.3f}, mean {sum(rewards) / len(rewards):.3f}."
    else:
        same = f", all {rewards[0]:.3f}: every advantage is 0, and" if rewards else ":"
        intro += f"{same} nothing is learned from this group."
    if s.reward.kl_coef:
        intro += " The divergence from the reference is also taken off for each token."
    return example(run.store.task(paths[0].task), samples, recipe.renderer, intro)


def _facts(path: AgentPath, advantages: Sequence[float], of_tree: bool) -> dict[str, float | str]:
    total = path.sampled.total
    name = "return of the turn" if of_tree else "reward"
    facts: dict[str, float | str] = {name: "none" if total is None else total}
    if not of_tree:
        terms = path.all_terms.items()
        facts |= {f"= {name}": f"{value:+.3f}" for name, value in terms if value}
    if advantages:
        # One number if all turns have the same advantage.
        shown = advantages[:1] if len(set(advantages)) == 1 else advantages
        facts["advantage"] = ", ".join(f"{value:+.3f}" for value in shown)
    return facts


def _text(record: Metrics, name: str) -> str:
    value = record.get(name)
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _spaced(numbers: Sequence[int], limit: int) -> list[int]:
    # Counted from the end, so that the last step is always included.
    every = -(-len(numbers) // limit)
    return sorted({*numbers[::-1][::every]})
