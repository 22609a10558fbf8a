"""The report page of a ``moat`` run: J by half-step, plans, rewards, the critic, examples."""

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.environments.plan_ground import GROUNDER, PLANNER
from coterie.recipes.moat import HALF, WHOLE, Moat
from coterie.recipes.moat_report import moat_report
from coterie.recipes.registry import run_report
from coterie.reports.page import write_page
from coterie.runs.folder import Run, Step, open_run
from tests.test_moat import made, rewards, trees, whole
from tests.test_report_page import Page


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Moat, Run]]:
    folder = tmp_path_factory.mktemp("moat-report") / "run"
    recipe = whole(folder)
    with open_run(folder, recipe.name, recipe.settings, write=False) as run:
        yield recipe, run
        recipe.close()


def section(recipe: Moat, run: Run, id_: str) -> list[dict[str, str]]:
    (found,) = [one for one in moat_report(recipe, run).sections if one.id == id_]
    return [dict(zip(found.heads, row, strict=True)) for row in found.rows]


def test_j_stands_there_before_and_after_each_half_with_what_it_changed_by(done):
    recipe, run = done
    steps = (Step(1, WHOLE), Step(1, HALF), Step(2, WHOLE))
    rows, metrics = section(recipe, run, "joint"), [run.metrics(step) for step in steps]
    assert [row["measurement"] for row in rows] == [
        "0: before iteration 1", "1: iteration 1, planner aligned", "2: after iteration 1"
    ]  # fmt: skip
    for row, one in zip(rows, metrics, strict=True):
        assert (row["J"], row["tasks"]) == (f"{one['j']:.4f}", "3")
        assert row["standard error"] == f"{one['standard_error']:.4f}"
        assert [row[PLANNER], row[GROUNDER]] == [f"{one[PLANNER]}", f"{one[GROUNDER]}"]
    values = [
        {key.task: one["loglikelihood"] for key, one in run.store.metrics(*at).items() if key.task}
        for at in ((1, HALF), (2, WHOLE))
    ]
    gaps = [values[1][task] - values[0][task] for task in sorted(values[0])]
    error = statistics.stdev(gaps) / len(gaps) ** 0.5
    assert rows[2]["change"] == f"{statistics.fmean(gaps):+.4f} ± {error:.4f}"
    assert rows[0]["change"] == ""
    (joint,) = [one for one in moat_report(recipe, run).sections if one.id == "joint"]
    (series,) = joint.charts[0].series
    assert [point.y for point in series.points] == [one["j"] for one in metrics]


def test_the_spread_of_a_task_is_the_difference_of_its_best_and_worst_plan(done):
    recipe, run = done
    (row,) = section(recipe, run, "spread")
    found = rewards(recipe, run)
    spreads = []
    for tree in trees(run):
        own = [found[one.id] for one in tree.children(tree.root) if one.id in found]
        spreads += [max(own) - min(own)] if own else []
    assert row["median"] == f"{statistics.median(spreads):.3f}"
    assert row["pairs"] == f"{run.metrics(Step(1, 'select'))['selected']}"


def test_plans_stand_side_by_side_with_rewards_and_the_pair_is_marked(done):
    recipe, run = done
    (shown,) = [one for one in moat_report(recipe, run).sections if one.id == "planner"]
    found = rewards(recipe, run)
    pairs = dict(run.store.selections(1, "select"))
    assert shown.examples and {one.task for one in shown.examples} <= {*pairs}
    for one in shown.examples:
        by_side = {sample.side: dict(sample.facts) for sample in one.samples}
        pair = pairs[one.task]
        assert by_side["chosen"]["reward"] == f"{found[pair.leaf]:.3f}"
        assert by_side["rejected"]["reward"] == f"{found[pair.rejected]:.3f}"
        assert [sample.side for sample in one.samples if sample.trained] == ["chosen", "rejected"]
        assert one.prompts[0].agent == PLANNER and ("answer" in dict(one.answers))


def test_the_page_is_whole_at_any_time_and_has_a_chart_of_j(done, tmp_path: Path):
    recipe, run = done
    write_page(run_report(recipe, run), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert not Page(page).open
    for id_ in ("joint", "stages", "spread", "joint-chart", "planner", "grounder"):
        assert f'id="{id_}"' in page
    begun = made()
    with open_run(tmp_path / "begun", begun.name, begun.settings) as other:
        write_page(run_report(begun, other), tmp_path / "report.html")
