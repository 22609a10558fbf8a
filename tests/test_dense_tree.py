"""The recipe dense_tree through whole small runs: trees, pairs, controls, what is trained on, what is shown."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.errors import UserError
from coterie.progress import Silent
from coterie.recipes.dense_tree import GROWN, DenseTree, histogram
from coterie.recipes.plan import content_of
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.recipes.report import run_report
from coterie.reports.page import write_page
from coterie.runs.folder import Run, Step, open_run
from coterie.runs.items import rollouts
from coterie.runs.loop import fork, run_steps
from coterie.runs.roles import load_selections
from experiments.dense_tree import SPARSE

SMALL = (
    "rollout.tasks=6", "search.runs=30", "search.window=6", "search.pairs=12", "pairs.margin=0.2",
    "budget.pairs=8", "evaluate.tasks=4", "train.batch_rows=8",
)  # fmt: skip


def dense(*words: str) -> DenseTree:
    recipe = recipe_of(settings("dense_tree/tiny", [*SMALL, *words]))
    assert isinstance(recipe, DenseTree)
    return recipe


def played(recipe: DenseTree, folder: Path, *stages: str) -> None:
    steps = [Step(0, stage) for stage in stages] or None
    with open_run(folder, recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent(), steps)
    recipe.close()


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose trees have grown, and whose pairs are selected."""
    folder = tmp_path_factory.mktemp("dense") / "run"
    played(dense(), folder, "rollout", "reward", "select")
    return folder


@pytest.fixture
def run(grown: Path) -> Iterator[Run]:
    recipe = dense()
    with open_run(grown, recipe.name, recipe.settings, write=False) as found:
        yield found


def test_each_task_has_a_tree_with_values_and_no_held_out_task_has_one(run: Run) -> None:
    recipe = dense()
    tasks = recipe.train_tasks(0)
    assert sorted(run.store.tree_tasks(0, "rollout")) == sorted(task.id for task in tasks)
    held_out = set(map(content_of, recipe.heldout_tasks()))
    assert not held_out & set(map(content_of, tasks))
    assert {task for task, _ in run.store.finished_keys(0, GROWN)} == {t.id for t in tasks}
    for tree in run.store.trees(0, "rollout"):
        values, root = recipe.values(run, tree), tree.root
        scores = [one.score for one in tree.outcomes.values()]
        assert values[root].visits <= len(rollouts(run.store, 0)[tree.task])
        assert min(scores) <= values[root].mean <= max(scores)
        said = {turn.id for turn in tree.turns.values() if turn.speaker.kind == "agent"}
        assert set(values) == {root, *said}


def test_selected_pairs_are_siblings_that_differ_by_the_margin(run: Run) -> None:
    recipe, s = dense(), dense().settings
    found = list(load_selections(run, 0))
    assert len(found) == 8 == run.metrics(Step(0, "select"))["selected"]
    for tree, one in found:
        assert one.rejected is not None
        better, worse = tree.turns[one.leaf], tree.turns[one.rejected]
        values = recipe.values(run, tree)
        assert better.parent == worse.parent and better.text != worse.text
        assert values[better.id].mean - values[worse.id].mean >= s.pairs.margin
    for tree in run.store.trees(0, "rollout"):
        pairs = recipe.tree_pairs(run, tree)
        assert all(pair.difference >= s.pairs.margin for pair in pairs)


def controlled(grown: Path, folder: Path, learns: str) -> list[tuple[str, str | None]]:
    """What a control selects from the same trees: leaves and rejected turns."""
    recipe = dense(f"learns={learns}")
    fork(recipe, grown, folder, recipe.settings)
    played(recipe, folder, "select")
    with open_run(folder, recipe.name, recipe.settings, write=False) as control:
        return [(one.leaf, one.rejected) for _, one in load_selections(control, 0)]


def test_random_sides_are_the_same_pairs_some_of_them_turned(
    grown: Path, run: Run, tmp_path: Path
) -> None:
    ours = [(one.leaf, one.rejected) for _, one in load_selections(run, 0)]
    found = controlled(grown, tmp_path / "run", "random_sides")
    assert [set(one) for one in found] == [set(one) for one in ours]
    assert 0 < sum(one != other for one, other in zip(found, ours, strict=True)) < len(ours)


def test_as_many_successes_are_imitated_as_there_are_pairs(
    grown: Path, run: Run, tmp_path: Path
) -> None:
    found = controlled(grown, tmp_path / "run", "successes")
    assert len(found) == 8
    leaves = {leaf: o for t in run.store.trees(0, "rollout") for leaf, o in t.outcomes.items()}
    assert all(rejected is None and leaves[leaf].score == 1.0 for leaf, rejected in found)
    assert len({leaf for leaf, _ in found}) == min(8, sum(o.score == 1 for o in leaves.values()))


def test_sparse_pairs_are_of_whole_runs_with_different_outcomes(tmp_path: Path) -> None:
    words = [*SPARSE, "rollout.tasks=8", "pairs.margin=0.5"]
    played(dense(*words), tmp_path / "run", "rollout", "reward", "select")
    recipe = dense(*words)
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as run:
        assert {len(some) for some in rollouts(run.store, 0).values()} == {8}
        pairs = list(load_selections(run, 0))
        assert pairs
        for tree, one in pairs:
            scores = {leaf: outcome.score for leaf, outcome in tree.outcomes.items()}
            through = {
                node: {scores[leaf] for leaf in scores if node in {t.id for t in tree.path(leaf)}}
                for node in (one.leaf, one.rejected or "")
            }
            assert 1.0 in through[one.leaf] and 0.0 in through[one.rejected or ""]


def test_a_run_that_is_cut_off_goes_on_to_the_same_trees(
    grown: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.runs import items

    recorded, whole = 0, items.TreeWriter.record

    def until(self: items.TreeWriter, *given: object) -> None:
        nonlocal recorded
        whole(self, *given)  # type: ignore[arg-type]
        recorded += 1
        if recorded == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(items.TreeWriter, "record", until)
    with pytest.raises(KeyboardInterrupt):
        played(dense(), tmp_path / "run", "rollout")
    monkeypatch.undo()
    played(dense(), tmp_path / "run", "rollout", "reward", "select")
    recipe = dense()
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as again:
        assert rollouts(again.store, 0) == rollouts(run.store, 0)
        assert list(again.store.trees(0, "rollout")) == list(run.store.trees(0, "rollout"))
        assert again.store.selections(0) == run.store.selections(0)


def test_a_whole_run_trains_and_its_page_shows_trees_and_density(
    grown: Path, tmp_path: Path
) -> None:
    recipe = dense()
    fork(recipe, grown, tmp_path / "run", recipe.settings)
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent())
        assert run.metrics(Step(0, "train"))["rows"] == 8
        assert run.metrics(Step(1, "evaluate"))["n"] == 4
        report = run_report(recipe, run)
        write_page(report, tmp_path / "page.html")
    recipe.close()
    sections = {one.id: one for one in report.sections}
    assert sum(int(count) for _, count in sections["density"].rows) == 6
    for one in sections["selected"].examples:
        values = [float(dict(sample.facts)["value"]) for sample in one.samples]
        assert values == sorted(values, reverse=True)
        assert {sample.side for sample in one.samples if sample.trained} == {"chosen", "rejected"}
    page = (tmp_path / "page.html").read_text()
    assert "Selected pairs of a task" in page and "density-chart" in page
    assert "right answer" not in page, "a game has none"


def test_a_part_without_tasks_is_refused_before_anything_is_done() -> None:
    with pytest.raises(UserError, match=r"rollout.shard=\[6,7\] has no tasks"):
        dense("rollout.shard=[6,7]").plan()


def test_bins_of_a_histogram_hold_every_count() -> None:
    assert histogram([0, 0, 1, 2, 8]) == [
        ("0", 2), ("1", 1), ("2", 1), ("3", 0), ("4", 0), ("5", 0), ("6", 0), ("7", 0), ("8", 1),
    ]  # fmt: skip
    assert sum(count for _, count in histogram(list(range(100)))) == 100
    assert histogram([]) == [("0", 0)]
