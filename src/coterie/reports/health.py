"""Health of a run: metrics of its steps and stages, compared with the limits in ``health.yaml``. Does not import torch.

Steps come from the record (reinforcement learning) or from ``metrics.jsonl`` (other trainings).
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal
from urllib.parse import quote, urlencode

from coterie.config.resolve import read_yaml
from coterie.record.store import Store
from coterie.record.tree import Metrics
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_record import (
    HELDOUT,
    TERM,
    groups_taken,
    is_distilled,
    step_records,
    step_stage,
    trained_roles,
)

Check = dict[str, Any]
"""JSON of a check: id, title, level (ok, warning), value, limit, agent (a role, ``None`` for all), detail and links."""
Step = Mapping[str, Any]
Series = list[float | None]
"""Value of a check at each step, ``None`` where it is not defined."""
FIRST, LINKS = 3, 3
"""Number of first steps that later ones are compared with, and maximum number of links of a check."""
HELDOUT_SCORE = "heldout_score"
"""Score on the held-out tasks after a step, which the record keeps apart from the step's metrics."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A value of each step, and its limits."""

    id: str
    title: str
    advice: str
    max: float = math.inf
    min: float = -math.inf
    where: str = ""
    over: Literal["recent", "worst", "last"] = "recent"
    """What is compared: the mean of the recent steps, the worst step, or the last value."""

    def breaks(self, value: float) -> bool:
        return not (math.isfinite(value) and self.min <= value <= self.max)


def each(value: Callable[[Step], float]) -> Callable[[Sequence[Step]], Series]:
    """Return the series of a value of single steps, which is not defined if a metric is missing or a divisor is 0."""

    def of_step(step: Step) -> float | None:
        try:
            return float(value(step))
        except (KeyError, ZeroDivisionError):
            return None

    return lambda steps: [of_step(step) for step in steps]


def metric(name: str) -> Callable[[Sequence[Step]], Series]:
    return each(lambda step: step[name])


def change(name: str) -> Callable[[Sequence[Step]], Series]:
    """Return the relative change of a metric since the mean of the first steps that have it."""

    def series(steps: Sequence[Step]) -> Series:
        values = metric(name)(steps)
        first = [n for n, value in enumerate(values) if value is not None][:FIRST]
        start = fmean(steps[n][name] for n in first) if first else 0.0
        return [
            None if value is None or n in first or not start else (value - start) / abs(start)
            for n, value in enumerate(values)
        ]

    return series


def after_first(name: str) -> Callable[[Sequence[Step]], Series]:
    """Return a metric that is 0 before the first update, after the first steps."""
    return lambda steps: [None] * len(steps[:FIRST]) + metric(name)(steps[FIRST:])


def norm_over_median(steps: Sequence[Step]) -> Series:
    norms = metric("grad_norm")(steps)
    middle = median([n for n in norms if n is not None and math.isfinite(n)] or [0.0])
    return [None if norm is None or not middle else norm / middle for norm in norms]


def term_fall(name: str) -> Callable[[Sequence[Step]], Series]:
    """Return the relative fall of a term of the reward at steps where the reward has risen."""

    def series(steps: Sequence[Step]) -> Series:
        pairs = zip(change(name)(steps), change("reward")(steps), strict=True)
        return [None if t is None or r is None else max(-t, 0.0) * (r > 0) for t, r in pairs]

    return series


def heldout_fall(steps: Sequence[Step]) -> Series:
    """Return how far the held-out score is below its best, at steps where the reward has risen since then."""
    result, best, best_reward = Series(), -math.inf, 0.0
    for n, score in enumerate(metric(HELDOUT_SCORE)(steps)):
        # The reward of a single step is noisy.
        reward = fmean(step.get("reward", 0.0) for step in steps[max(0, n + 1 - FIRST) : n + 1])
        if score is not None and score >= best:
            best, best_reward = score, reward
        result.append(None if score is None else (best - score) * (reward > best_reward))
    return result


def loss_rise(steps: Sequence[Step]) -> Series:
    """Return the relative rise of the held-out loss above its minimum so far."""
    losses = metric("heldout_loss")(steps)
    lowest = accumulate((math.inf if loss is None else loss for loss in losses), min)
    pairs = zip(losses, lowest, strict=True)
    return [None if loss is None or not low else (loss - low) / abs(low) for loss, low in pairs]


def equal_share(step: Step) -> float:
    # Roles, and methods without groups, count tasks instead.
    if step.get("groups"):
        return float(step["groups_equal"] / step["groups"])
    return float(1 - step["groups_informative"] / step["tasks"])


SERIES: Mapping[str, Callable[[Sequence[Step]], Series]] = {
    "stage/truncated": metric("truncated"),
    "stage/failed_share": metric("failed_share"),
    "rewarded": lambda steps: [
        *accumulate(float(step["paths_rewarded"]) for step in steps if "paths_rewarded" in step)
    ],
    "equal": each(equal_share),
    "reward_end": each(lambda step: max(step["reward_at_min"], step["reward_at_max"])),
    "heldout_fall": heldout_fall,
    "length": change("tokens"),
    "wrong_length": each(lambda step: step["tokens_wrong"] / step["tokens_right"]),
    "entropy": change("entropy"),
    "ratio": each(lambda step: max(step["ratio_max"], 1 / step["ratio_min"])),
    "stale": each(lambda step: step["paths_stale"] / (step["paths_stale"] + step["paths"])),
    "grad_norm": norm_over_median,
    "heldout_loss": loss_rise,
    "margin": after_first("margin"),
    "accuracy": after_first("accuracy"),
    "chosen": change("chosen_logprob"),
}
"""Values of rules whose value is not the metric of their name."""
TABLE = read_yaml(Path(__file__).with_suffix(".yaml"))
TERM_RULE = Rule("term", **TABLE.pop("term"))
STAGES, OF_REWARDS = ("truncated", "failed_share"), ("rewarded", "equal", "reward_end")
"""Rules for stages without steps, and rules about the signal of the rewards."""
RULES = [Rule(name, **fields) for name, fields in TABLE.items()]


def checks(
    steps: Sequence[Step],
    agent: str | None = None,
    stages: Sequence[Sequence[str]] = (),
    rules: Sequence[Rule] = RULES,
) -> Iterator[Check]:
    """Yield a check for each rule that is defined at some step; ``stages`` are stages or links of each step."""
    names = dict.fromkeys(name for step in steps for name in step if name.startswith(TERM))
    terms = [
        (replace(TERM_RULE, id=n, title=f"fall of {n} while it rises"), term_fall(n)) for n in names
    ]
    for rule, series in [*((r, SERIES.get(r.id, metric(r.id))) for r in rules), *terms]:
        values = [(v, n) for n, v in enumerate(series(steps)) if v is not None]
        count = {"worst": len(values), "last": 1}.get(rule.over, max(FIRST, len(steps) // 10))
        if not (compared := values[-count:] if values else []):
            continue
        broken = [pair for pair in compared if rule.breaks(pair[0])]
        # The farthest from the limits first; values that are not finite have no order.
        broken.sort(
            key=lambda pair: (math.isfinite(pair[0]), min(pair[0] - rule.min, rule.max - pair[0]))
        )
        is_worst = rule.over == "worst" and bool(broken)
        value = broken[0][0] if is_worst else fmean(value for value, _ in compared)
        stage_links = [stage for _, n in broken for stage in (stages[n] if stages else ())]
        query = {"where": rule.where} if rule.where else {}
        over = {"worst": f"worst of {len(compared)} values", "last": "last value"}.get(
            rule.over, f"mean of the last {len(compared)} values"
        )
        tasks = [f"#/tasks?{urlencode({'stage': stage, **query})}" for stage in stage_links[:LINKS]]
        links = [s if s[:1] == "#" else link for s, link in zip(stage_links, tasks, strict=False)]
        yield {
            "id": rule.id,
            "title": rule.title,
            "level": "warning" if rule.breaks(value) else "ok",
            "value": value,
            "limit": rule.min if value < rule.min or rule.max == math.inf else rule.max,
            "agent": agent,
            "detail": f"{over}: {rule.advice}" if rule.breaks(value) else over,
            "links": links if rule.breaks(value) else [],
        }


def step_checks(
    records: Mapping[int, Metrics],
    heldout: Mapping[int, Metrics],
    iteration: int = 0,
    rules: Sequence[Rule] = RULES,
) -> Iterator[Check]:
    """Yield the checks of steps of reinforcement learning; several roles have checks of their own.

    Args:
        records: Metrics by step, from 0.
        heldout: Held-out means by the number of steps before them.
        iteration: Iteration of the stage, for links.
        rules: Rules to check.
    """
    steps, stages = list[dict[str, Any]](), list[list[str]]()
    for n, record in sorted(records.items()):
        score = {HELDOUT_SCORE: heldout[n + 1]["score"]} if n + 1 in heldout else {}
        steps.append({**record, **score})
        # With asynchronous sampling a step takes groups of several draws.
        draws = sorted({draw for draw, _ in groups_taken(record)} or {n})
        stages.append([f"{iteration}/{step_stage(REINFORCE, draw)}" for draw in draws])
    # A teacher's signal does not depend on rewards.
    if is_distilled(list(records.values())):
        rules = [rule for rule in rules if rule.id not in OF_REWARDS]
    roles = dict.fromkeys(role for step in steps for role in trained_roles(step))
    if len(roles) > 1:
        yield from checks(steps, None, stages, rules)
    for role in roles:
        of_role = list[Step]()
        for step in steps:
            # A single role has only the metrics of its training under its name.
            shared = step if len(roles) == 1 else {"tasks": step["tasks"]}
            own = {
                name.removeprefix(f"{role}/"): n
                for name, n in step.items()
                if name.startswith(f"{role}/")
            }
            of_role.append({**shared, **own})
        yield from checks(of_role, role if len(roles) > 1 else None, stages, rules)


def step_warnings(
    records: Mapping[int, Metrics], heldout: Mapping[int, Metrics], brief: bool = False
) -> list[str]:
    """Return texts of the checks of steps that fire, or with ``brief`` those for the line of the last step."""
    # A single bad step is named in its own line only.
    rules = [replace(r, over="last") if r.over == "worst" and brief else r for r in RULES]
    texts = list[str]()
    for check in step_checks(records, heldout, rules=rules):
        if check["level"] == "warning":
            of = f" of {check['agent']}" if check["agent"] else ""
            text = f"{check['title']}{of} {check['value']:.3g} (limit {check['limit']:g})"
            texts.append(text if brief else f"{text}; {check['detail']}")
    return texts


def health(store: Store, folder: Path) -> list[Check]:
    """Return the checks of a run as JSON, with ``None`` for a value that is not finite.

    Args:
        store: The run's record; it is only read.
        folder: Folder of the run, with the ``metrics.jsonl`` of its trainings.
    """
    result, reinforced = list[Check](), store.iterations(REINFORCE)
    for iteration in reinforced:
        heldout = step_records(store, iteration, REINFORCE, HELDOUT)
        result += step_checks(step_records(store, iteration, REINFORCE), heldout, iteration)
    for file in sorted(folder.glob("training/*/iteration-*/metrics.jsonl")):
        iteration, role = int(file.parent.name.removeprefix("iteration-")), file.parts[-3]
        if iteration not in reinforced:
            # The last line of a run that goes on may be incomplete.
            lines = file.read_text(encoding="utf-8").split("\n")[:-1]
            steps, stage = [*map(json.loads, lines)], store.trained_stage(iteration, role)
            # Steps on a file have no rollouts, so that the first of their rows is shown.
            query = urlencode({"iteration": iteration, "stage": stage})
            rows = [[f"#/row/{quote(role)}/{s['step']}/0?{query}"] for s in steps if stage]
            result += checks(steps, role, rows)
    # Stages of rollouts outside of steps, as if they were steps; the worst counts.
    counts = [c for c in store.stage_counts() if not c["stage"].startswith(f"{REINFORCE}/")]
    places = [[f"{c['iteration']}/{c['stage']}"] for c in counts]
    rules = [replace(r, id=f"stage/{r.id}", over="worst") for r in RULES if r.id in STAGES]
    result += checks(counts, None, places, rules)
    return [c if math.isfinite(c["value"]) else {**c, "value": None} for c in result]
