"""Sections of the viewer's first page: tables and charts of runs, evaluations and sweeps, as data.

A section is ``{id, title, intro, heads, words, rows, charts, folded}``; ``words`` are the meanings of heads, and a
section without rows and charts is not shown. A cell is a text, a number, or ``{text, href}``. A chart is ``{title, x,
steps, series}``: its series have a ``name``, and ``values`` for the steps, or ``None`` for a step without a value,
and may have the ends ``low`` and ``high``. Charts without ``steps`` have the steps of their section.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from coterie.record.browse import Browser, Fields
from coterie.record.tables import whole
from coterie.runs.evaluation import Evaluation, grade_means
from coterie.runs.loop import EVALUATION
from coterie.runs.run import FINISHED

Marks = Mapping[tuple[int, str], Mapping[str, dict[str, Any]]]
"""Metrics of the items of a whole stage, by iteration and stage and by name (``finished``, ``step-00001``)."""
UNLISTED = ("seconds", "settings", "weights")
"""Metrics of a stage that are neither counts nor means."""
GLOSSARY: Mapping[str, str] = {
    "coverage": "best score among the first k rollouts of a task",
    "cut off": "share of replies that ran to max_tokens",
    "failed": "rollouts that ended in an error, or that could not be graded; each counts with a score of 0",
    "fraction": "share of tests that an answer passes",
    "leaks": "replies of the simulated user that quote 25 characters, or half, of a secret",
    "majority": "score of the answer that most of the first k rollouts give",
    "no page": "share of dialogues in which the agent shows no page",
    "not rendered": "share of dialogues whose last page does not render",
    "raw": "similarity before it is rescaled",
    "rollouts": "attempts at a task, each sampled to its end",
    "shortened": "results whose middle was left out before the model saw them",
    "spoke for another": "replies that contain words of another agent",
    "tokens": "sampled tokens of a rollout, of all agents",
    "well formed": "share of answers in the form that the prompt asks for",
}
"""Meanings of headings in tables, the same on all pages."""


def section(
    id_: str,
    title: str,
    intro: str = "",
    heads: Sequence[str] = (),
    rows: Iterable[Sequence[object]] = (),
    charts: Iterable[Fields] = (),
    *,
    folded: bool = False,
) -> Fields:
    """Return a section."""
    return {
        "id": id_, "title": title, "intro": intro, "heads": [*heads], "rows": [*map(list, rows)],
        "words": {head: GLOSSARY[head] for head in heads if head in GLOSSARY}, "charts": [*charts], "folded": folded,
    }  # fmt: skip


def chart(title: str, x: str, steps: Sequence[object], series: Iterable[Fields]) -> Fields:
    """Return a chart over numbers, or over names, which have equal distances."""
    return {"title": title, "x": x, "series": [*series], **({"steps": [*steps]} if steps else {})}


def line(name: str, values: Iterable[tuple[float, float, float] | float | None]) -> Fields:
    """Return a series of a chart, from values or from values with their ends."""
    triples = [v if isinstance(v, tuple) else (v, None, None) for v in values]
    points, low, high = map(list, zip(*triples, strict=True))
    has_ends = any(end is not None for end in low)
    return {"name": name, "values": points, **({"low": low, "high": high} if has_ends else {})}


def words(name: str) -> str:
    return name.replace("_", " ")


def signed(value: float, digits: int) -> str:
    """Return a difference with its sign, and 0 without one."""
    text = f"{value:+.{digits}f}"
    return text if text.strip("+-0.") else text[1:]


# -- runs ---------------------------------------------------------------------------------------------


def run_sections(browser: Browser, marks: Marks) -> list[Fields]:
    """Return the sections that the store of a run has data for."""
    return [
        _metrics(marks),
        _measures(browser),
        _credit(browser),
        _selected(browser),
        tools(browser),
        _failures(browser),
    ]


def changes(
    settings: Mapping[str, object], preset: Mapping[str, object] | None, base: str
) -> Fields:
    """Return the settings that differ from a preset or from the defaults, named by ``base``."""
    rows = [
        (name, f"{preset.get(name, '')}", f"{value}")
        for name, value in settings.items()
        if preset is not None and (name not in preset or preset[name] != value)
    ]
    return section(
        "changes", f"Settings that differ from the {base}", "", ("setting", base, "here"), rows
    )


def all_settings(settings: Mapping[str, object]) -> Fields:
    rows = [(name, f"{value}") for name, value in settings.items()]
    return section("settings", "All settings", "", ("setting", "value"), rows, folded=True)


def _metrics(marks: Marks) -> Fields:
    """Return a chart of each number that stages return in several iterations."""
    numbers: dict[str, dict[str, dict[int, tuple[float, float, float] | float]]] = {}
    for (iteration, stage), items in marks.items():
        metrics = items.get(FINISHED, {})
        for name, number in _with_ends(metrics):
            numbers.setdefault(name, {}).setdefault(stage, {})[iteration] = number
    charts = list[Fields]()
    for name, stages in numbers.items():
        steps = sorted({iteration for of_stage in stages.values() for iteration in of_stage})
        # A number that never changes, such as the tasks of an iteration, needs no chart.
        if (
            len({value for of_stage in stages.values() for value in of_stage.values()})
            > 1
            < len(steps)
        ):
            lines = [line(stage, (of.get(step) for step in steps)) for stage, of in stages.items()]
            charts.append(chart(words(name), "iteration", steps, lines))
    # Means with intervals are what a claim rests on.
    charts.sort(key=lambda c: not any("low" in series for series in c["series"]))
    intro = "Numbers that stages report. Bands are 95% intervals, or a standard error where that is reported."
    return section("metrics", "Stages by iteration", intro, charts=charts)


def _with_ends(
    metrics: Mapping[str, Any],
) -> Iterator[tuple[str, tuple[float, float, float] | float]]:
    """Yield the numbers of a stage with the ends of their intervals, or one standard error around them."""
    names = [
        name
        for name, value in metrics.items()
        if isinstance(value, int | float) and name not in UNLISTED
    ]
    for name, following in pairwise([*names, ""]):
        value = metrics[name]
        # The standard error follows the number that it belongs to.
        error = metrics[following] if following == "standard_error" else None
        if f"{name}_low" in metrics:
            yield name, (value, metrics[f"{name}_low"], metrics[f"{name}_high"])
        elif error is not None:
            yield name, (value, value - error, value + error)
        elif name != "standard_error" and not name.endswith(("_low", "_high")):
            yield name, value


def _measures(browser: Browser) -> Fields:
    """Return the means of what the environment measured, by stage."""
    # The steps of reinforcement learning have curves.
    find = (
        "SELECT iteration, stage, count(*) - count(failure) FROM item "
        "WHERE task != '' AND instr(stage, '/') = 0 GROUP BY 1, 2 ORDER BY min(key)"
    )
    measured = list[tuple[str, int, dict[str, float]]]()
    for iteration, stage, n in browser.fetch(find):
        # Evaluations count the first rollout of each task.
        samples = 1 if stage == EVALUATION else None
        if n and (means := grade_means(browser.store, iteration, stage, samples)):
            measured.append((f"{stage}, iteration {iteration}", n, means))
    names = dict.fromkeys(name for *_, means in measured for name in means)
    rows = ((label, n, *(means.get(name) for name in names)) for label, n, means in measured)
    intro = "Means over the items of a stage (rollouts, tasks or pairs) that did not fail."
    heads = ("stage", "items", *map(words, names))
    return section("measures", "Measures", intro, heads, rows)


def _credit(browser: Browser) -> Fields:
    """Return the means of credit over all nodes that have it, and over chosen and rejected nodes."""
    find = (
        "SELECT r.iteration, r.stage, k.name, count(*), avg(c.value), "
        "avg(c.value) FILTER (WHERE c.node IN (SELECT leaf FROM selection)), "
        "avg(c.value) FILTER (WHERE c.node IN (SELECT rejected FROM selection WHERE rejected NOTNULL)) "
        "FROM credit_kind k CROSS JOIN credit c ON c.kind = k.key JOIN tree r ON r.key = c.tree "
        "WHERE instr(r.stage, '/') = 0 GROUP BY k.key, r.iteration, r.stage ORDER BY r.iteration, k.key"
    )
    # Of credit under several settings, the last counts.
    rows = {tuple(row[:3]): row for row in browser.fetch(find)}
    lines: dict[str, dict[int, list[float | None]]] = {}
    for iteration, _, name, _, *means in rows.values():
        lines.setdefault(name, {})[iteration] = means
    charts = list[Fields]()
    for name, of_name in lines.items():
        # Means over all, and where there are selections over those.
        columns = zip(
            ("all", "chosen", "rejected"), zip(*of_name.values(), strict=True), strict=True
        )
        series = [line(side, means) for side, means in columns if any(m is not None for m in means)]
        if len(of_name) > 1:
            charts.append(chart(name, "iteration", [*of_name], series))
    intro = "Means over the rollouts or turns that have a value, and over those that were chosen or rejected."
    heads = ("iteration", "stage", "credit", "values", "mean", "chosen", "rejected")
    return section("credit", "Rewards and credit", intro, heads, rows.values(), charts)


def _selected(browser: Browser) -> Fields:
    """Return how selections are spread over tasks."""
    of_task = (
        "SELECT i.iteration, i.stage, s.agent, t.tree, count(*) AS n FROM selection s "
        "JOIN item i ON i.key = s.item JOIN turn t ON t.id = s.leaf GROUP BY 1, 2, 3, 4"
    )
    find = f"SELECT iteration, stage, agent, count(*), sum(n), avg(n), max(n) FROM ({of_task}) GROUP BY 1, 2, 3"
    heads = ("iteration", "stage", "agent", "tasks", "selected", "mean of a task", "most of a task")
    intro = (
        "Rollouts, turns or pairs that the rule selected for training, in the tasks that have some."
    )
    return section("selected", "Selected for training", intro, heads, browser.fetch(find))


def tools(browser: Browser) -> Fields:
    """Return the calls by tool."""
    find = (
        "SELECT json_extract(c.value, '$.name'), json_extract(r.value, '$.error'), "
        "json_extract(r.value, '$.left_out') > 0, json_extract(r.value, '$.seconds') "
        "FROM turn t JOIN turn p ON p.id = t.parent, json_each(t.results) r, json_each(p.calls) c "
        "WHERE t.results != '[]' AND p.calls != '[]' AND json_valid(t.results) AND json_valid(p.calls) "
        "AND json_extract(c.value, '$.id') = json_extract(r.value, '$.call_id')"
    )
    by_name: dict[str, list[tuple[bool, bool, float]]] = {}
    for name, *facts in browser.fetch(find):
        by_name.setdefault(name, []).append(tuple(facts))
    rows = []
    for name, calls in sorted(by_name.items()):
        errors, shortened, seconds = zip(*calls, strict=True)
        run = sorted(filter(None, seconds))
        times: tuple[float | None, ...] = (None, None)
        if run:
            times = statistics.median(run), run[min(len(run) - 1, int(0.95 * len(run)))]
        rows.append((name, len(calls), sum(map(bool, errors)), sum(map(bool, shortened)), *times))
    intro = "Calls of all rollouts. The model sees errors. Times are in seconds, of calls that were run."
    heads = ("tool", "calls", "errors", "shortened", "median", "95% within")
    return section("tools", "Tools", intro, heads, rows)


def _failures(browser: Browser) -> Fields:
    """Return the failures that are final, by reason."""
    find = (
        "SELECT failure, count(*), stage, iteration, min(task || '/' || sample) FROM item "
        f"WHERE failure NOTNULL AND {whole('item')} GROUP BY failure, stage, iteration ORDER BY min(key)"
    )
    heads = ("reason", "items", "stage", "iteration", "for example")
    intro = "Items that failed for good."
    return section("failures", "Failures", intro, heads, browser.fetch(find))


# -- evaluations ------------------------------------------------------------------------------------


def scores(results: Sequence[Evaluation], metric: str) -> Fields:
    """Return the scores of policies on held-out tasks, with their intervals and other measures, as texts."""
    names = list(dict.fromkeys(name for result in results for name in result.means))
    rows = [
        (
            result.label,
            f"{result.n:,}",
            f"{result.score:.3f}",
            interval_text(result),
            f"{result.tokens:,.1f}",
            f"{result.failed:,}",
            *(f"{result.means[name]:.3f}" if name in result.means else "" for name in names),
        )
        for result in results
    ]
    intro = (
        f"{metric}, with its 95% interval over tasks; the other columns are means over rollouts."
    )
    heads = ("policy", "tasks", "score", "95% interval", "tokens", "failed", *map(words, names))
    return section("scores", "Scores on held-out tasks", intro, heads, rows)


def interval_text(evaluation: Evaluation) -> str:
    return "{:.3f}–{:.3f}".format(*evaluation.interval)
