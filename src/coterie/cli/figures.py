"""Output of ``coterie evaluate BENCHMARK``: a table, a page with examples, and one JSON object (the last line).

The object is {"benchmark", "metric", "rows"}, with a row for each policy, or for each policy and number of dialogues k.
"""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coterie.cli.execution import result_table, score_table
from coterie.config.resolve import flatten
from coterie.evaluation import Estimate
from coterie.runs.evaluation import Evaluation
from coterie.runs.loop import command_line
from coterie.terminal import results as results_console

if TYPE_CHECKING:
    from coterie.cli.evaluate import EvaluatedSettings

WIDTH = 120
"""Table width in columns. A narrow terminal wraps its lines instead of hiding columns."""


def show(settings: "EvaluatedSettings", results: Sequence[Evaluation]) -> None:
    """Print the table, the path of the page and, as the last line, the JSON object."""
    # Tables of a run's plan do not need the viewer.
    from coterie.cli.report import write_evaluation
    from coterie.reports.evaluation import BY, DIFFERENCES, evaluation_sections
    from coterie.reports.sections import all_settings, changes

    console, metric = results_console(WIDTH), settings.build_environment().metric
    title = f"{settings.benchmark}, held-out tasks, {metric}"
    title += "" if settings.method == "dialogue" else f", {settings.method}"
    if settings.samples == 1:
        console.print(score_table(title, results, failed=True))
    sections = evaluation_sections(settings, results, metric, settings.by)
    for section in sections:
        if section["charts"] or (section["rows"] and section["id"] in (BY, DIFFERENCES)):
            console.print(result_table(section["title"], [section["heads"], *section["rows"]]))
            console.print(section["intro"], soft_wrap=True)
    for result in results:
        if result.picked is not None:
            line = f"{result.label}: {_with_interval(result.picked)} best of {settings.samples}"
            line += f" by {settings.picker.model}"
            line += f"; {result.unreadable} tasks without a readable reply"
            console.print(line, soft_wrap=True)
        if (wins := result.wins) is not None:
            left_out = f" ({wins.left_out} left out)" * bool(wins.left_out)
            line = f"{result.label}: win rate {_with_interval(wins.win_rate)} against"
            line += (
                f" {wins.baseline} on {wins.n} tasks{left_out}; a win is a higher score, and each"
            )
            line += (
                f" of the {wins.ties} ties counts half (SWEET-RL does not say how it counts ties)"
            )
            console.print(line, soft_wrap=True)
    file = results[-1].store.with_suffix(".html")
    values = flatten(settings.model_dump(mode="json"))
    # Built without validation, because some settings have no default.
    defaults = flatten(type(settings).model_construct().model_dump(mode="json", warnings="none"))
    names = ("method", "temperature", "samples", "seed")
    write_evaluation(
        f"{', '.join(result.label for result in results)} on {settings.benchmark}",
        [("score", metric), *((name, f"{values[name]}") for name in names)],
        command_line(sys.argv),
        results,
        [*sections, changes(values, defaults, "defaults"), all_settings(values)],
        file,
    )
    console.print(f"page: {file}", soft_wrap=True)
    rows = [
        {"method": settings.method, **row}
        for result in results
        for row in _rows(settings, result, results[0])
    ]
    output = {"benchmark": settings.benchmark, "metric": metric, "rows": rows}
    usage = "; ".join(result.usage for result in results if result.usage)
    print(json.dumps(output | ({"usage": usage} if usage else {})))


def _rows(
    settings: "EvaluatedSettings", result: Evaluation, baseline: Evaluation
) -> list[dict[str, Any]]:
    common: dict[str, Any] = {"policy": result.label, "version": result.version}
    common |= {"n": result.n, "failed": result.failed}
    means = {name: round(value, 4) for name, value in result.means.items()}
    # All differences are from the first policy.
    if result is not baseline:
        comparison = result.compare(baseline)
        common |= _measure("difference", *comparison.difference)
        common |= {"difference_from": baseline.label, "difference_n": comparison.n}
    if result.columns:
        common["by"] = {
            value: {"n": n, **_measure("score", *score)}
            for value, (n, score) in result.by_value.items()
        }
    if wins := result.wins:
        common |= _measure("win_rate", *wins.win_rate)
        common |= {"ties": wins.ties, "against": wins.baseline, "compared": wins.n}
    if settings.samples == 1:
        score = {
            **_measure("score", result.score, result.interval),
            "tokens": round(result.tokens, 2),
            "tokens_per_score": _ratio(result.tokens, result.score),
            **_cost_of_pass(result.cost, result.score * result.n),
        }
        return [{**common, **score, **means}]
    rows = [
        {
            **common,
            "k": point.k,
            **_measure("coverage", *point.coverage),
            **_measure("majority", *point.majority),
            "average": round(point.average, 4),
            "spread": point.spread and round(point.spread, 4),
            "tokens": round(point.tokens, 2),
            "tokens_per_score": _ratio(point.tokens / point.k, point.average),
            **({} if point.fraction is None else {"fraction": round(point.fraction, 4)}),
            "of_all": means,
        }
        for point in result.points
    ]
    # Costs are known only of all rollouts together, which the last row has.
    last_point = result.points[-1]
    rows[-1] |= _cost_of_pass(result.cost, last_point.average * last_point.k * result.n)
    if result.picked is not None:
        rows[-1] |= _measure("picked", *result.picked)
        rows[-1] |= {"picked_by": settings.picker.model, "unreadable_picks": result.unreadable}
    return rows


def _measure(
    name: str, value: float, interval: tuple[float, float] | None
) -> dict[str, float | list[float] | None]:
    """Return a mean and its interval (``NAME_ci``), rounded."""
    ends = interval and [round(end, 4) for end in interval]
    return {name: round(value, 4), f"{name}_ci": ends}


def _ratio(cost: float, gain: float) -> float | None:
    """Return the cost per unit of gain; ``None`` without gain."""
    return round(cost / gain, 2) if gain > 0 else None


def _cost_of_pass(cost: float | None, passes: float) -> dict[str, float | None]:
    if cost is None:
        return {}
    each = round(cost / passes, 6) if passes > 0 else None
    return {"cost": round(cost, 6), "cost_of_pass": each}


def _with_interval(estimate: Estimate) -> str:
    return "{:.3f} ({:.3f} to {:.3f})".format(estimate.mean, *estimate.ends)
