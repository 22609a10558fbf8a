"""Dense trees: whole small runs, their pairs and controls, outside preference sets, and the report."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.cli.report import write_report
from coterie.progress import Silent
from coterie.recipes.dense_tree import DenseTree
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.runs.loop import fork, load_selections, run_stages
from coterie.runs.run import Run, StageKey, open_run
from coterie.runs.search_items import rollouts
from experiments.dense_tree import RandomSides, Successes
from tests.datasets.test_conversations import ours
from tests.helpers.read_page import read_page, sections_of

SMALL = (
    "rollout.tasks=6", "search.rollouts_per_task=30", "search.rollouts_per_search=6", "search.pairs=12",
    "pairs.margin=0.2",
    "budget.pairs=8", "evaluate.tasks=4", "train.batch_size=8",
)  # fmt: skip


SUMS = ("dataset.source=sample", "environment.shots=0", "train.max_length=1024")


def dense(*overrides: str) -> DenseTree:
    recipe = recipe_of(settings("dense_tree/tiny", [*SMALL, *overrides]))
    assert isinstance(recipe, DenseTree)
    return recipe


def play(recipe: DenseTree, folder: Path, *stages: str) -> None:
    steps = [StageKey(0, stage) for stage in stages] or None
    with open_run(folder, recipe.name, recipe.settings) as run:
        run_stages(recipe, run, Silent(), steps)
    recipe.close()


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose trees have grown, and whose pairs are selected."""
    folder = tmp_path_factory.mktemp("dense") / "run"
    play(dense(), folder, "rollout", "reward", "select")
    return folder


@pytest.fixture
def run(grown: Path) -> Iterator[Run]:
    recipe = dense()
    with open_run(grown, recipe.name, recipe.settings, write=False) as found:
        yield found


def test_a_turn_with_siblings_is_in_a_pair_or_left_out_with_a_reason(run: Run) -> None:
    recipe, s = dense(), dense().settings.pairs
    left_out = {entry.node: entry for _, entry in run.store.left_out(0, "select")}
    chosen = [selection for _, selection in run.store.selections(0, "select")]
    selected = {node for one in chosen for node in (one.leaf, one.rejected)}
    assert not selected & left_out.keys()
    for tree in run.store.trees(0, "rollout"):
        values = recipe.values(run, tree)
        for parent in (tree.root, *tree.turns):
            siblings = [turn.id for turn in tree.children(parent) if turn.id in values]
            for node in siblings if len(siblings) > 1 else ():
                assert node in selected or node in left_out
                means = [abs(values[node].mean - values[other].mean) for other in siblings]
                if node in left_out and left_out[node].reason == "small_margin":
                    assert left_out[node].number == max(means) < s.margin
                elif node in left_out:
                    assert left_out[node].reason in ("few_visits", "equal_text", "outside_budget")
    assert "small_margin" in {entry.reason for entry in left_out.values()}


def test_selected_pairs_are_siblings_that_differ_by_the_margin(run: Run) -> None:
    recipe, s = dense(), dense().settings
    found = list(load_selections(run, 0))
    assert len(found) == 8 == run.metrics(StageKey(0, "select"))["selected"]
    for tree, one in found:
        assert one.rejected is not None
        better, worse = tree.turns[one.leaf], tree.turns[one.rejected]
        values = recipe.values(run, tree)
        assert better.parent == worse.parent and better.text != worse.text
        assert values[better.id].mean - values[worse.id].mean >= s.pairs.margin
    for tree in run.store.trees(0, "rollout"):
        pairs = recipe.tree_pairs(run, tree)
        assert all(pair.difference >= s.pairs.margin for pair in pairs)


def test_controls_turn_some_pairs_or_imitate_an_equal_number_of_successes(
    grown: Path, run: Run, tmp_path: Path
) -> None:
    selections = {}
    for kind in (RandomSides, Successes):
        recipe, folder = kind(dense().settings), tmp_path / kind.__name__
        fork(recipe, grown, folder, recipe.settings)
        play(recipe, folder, "select")
        with open_run(folder, recipe.name, recipe.settings, write=False) as control:
            selections[kind] = [(one.leaf, one.rejected) for _, one in load_selections(control, 0)]
    pairs = [(one.leaf, one.rejected) for _, one in load_selections(run, 0)]
    turned = selections[RandomSides]
    assert [set(one) for one in turned] == [set(one) for one in pairs]
    assert 0 < sum(one != other for one, other in zip(turned, pairs, strict=True)) < len(pairs)
    successes = selections[Successes]
    assert len(successes) == 8
    leaves = {leaf: o for t in run.store.trees(0, "rollout") for leaf, o in t.outcomes.items()}
    assert all(rejected is None and leaves[leaf].score == 1.0 for leaf, rejected in successes)
    expected = min(8, sum(o.score == 1 for o in leaves.values()))
    assert len({leaf for leaf, _ in successes}) == expected


def test_a_run_that_is_cut_off_goes_on_to_the_same_trees(
    grown: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.runs import search_items

    recorded, whole = 0, search_items.TreeWriter.record

    def until(self: search_items.TreeWriter, *given: object) -> None:
        nonlocal recorded
        whole(self, *given)  # type: ignore[arg-type]
        recorded += 1
        if recorded == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(search_items.TreeWriter, "record", until)
    with pytest.raises(KeyboardInterrupt):
        play(dense(), tmp_path / "run", "rollout")
    monkeypatch.undo()
    play(dense(), tmp_path / "run", "rollout", "reward", "select")
    recipe = dense()
    with open_run(tmp_path / "run", recipe.name, recipe.settings, write=False) as again:
        assert rollouts(again.store, 0) == rollouts(run.store, 0)
        assert list(again.store.trees(0, "rollout")) == list(run.store.trees(0, "rollout"))
        assert again.store.selections(0) == run.store.selections(0)


def test_a_whole_run_trains_and_its_page_shows_trees_and_pairs(grown: Path, tmp_path: Path) -> None:
    recipe = dense()
    fork(recipe, grown, tmp_path / "run", recipe.settings)
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        run_stages(recipe, run, Silent())
        assert run.metrics(StageKey(0, "train"))["rows"] == 8
        assert run.metrics(StageKey(1, "evaluate"))["n"] == 4
        page = write_report(run.folder)
    recipe.close()
    answers, sections = read_page(page), sections_of(page)
    assert sections["selected"]["rows"][0][4] == 8, "pairs"
    credit = {row[2]: row for row in sections["credit"]["rows"]}
    assert credit["value"][5] > credit["value"][6], "chosen over rejected"
    grown_tasks = [task for task in answers["task"] if task["stage"] == "rollout"]
    assert any(task["is_tree"] for task in grown_tasks) and any(t["pairs"] for t in grown_tasks)
    (words,) = answers["words"]
    margin = f"differ by {recipe.settings.pairs.margin:g} or more"
    assert margin in words["words"]["selected"] and "visits" in words["words"]


# -- outside preference sets ------------------------------------------------------------------


def on_sums(*overrides: str) -> DenseTree:
    recipe = recipe_of(settings("dense_tree/gsm8k", ["model=tiny-problems", *SUMS, *overrides]))
    assert isinstance(recipe, DenseTree)
    return recipe


@pytest.mark.usefixtures("own_home")
def test_outside_pairs_that_ask_held_out_questions_are_left_out(tmp_path: Path) -> None:
    question = str(on_sums().environment.tasks("heldout", 1, 0)[0].public["question"])
    own = ours(tmp_path / "own.jsonl", 4)
    other = ours(tmp_path / "other.jsonl", 2, question=f"Step by step!\n{question}")
    recipe = on_sums(f"mix={{{own}: 2, {other}: 2}}")
    pairs, counts = recipe.mixed_pairs(0, Silent())
    assert counts == {"mixed_own.jsonl": 2, "mixed_other.jsonl": 0, "held_out_other.jsonl": 2}
    drawn = {one.name for one in pairs}
    assert len(drawn) == 2
    others = [{one.name for one in recipe.mixed_pairs(i, Silent())[0]} for i in range(8)]
    assert others[0] == drawn and any(names != drawn for names in others), "each iteration draws"


def test_training_depends_on_the_sets_and_their_content(tmp_path: Path) -> None:
    own = ours(tmp_path / "own.jsonl", 4)
    plain = on_sums().fingerprint(StageKey(0, "train"))
    mixed = on_sums(f"mix={{{own}: 2}}").fingerprint(StageKey(0, "train"))
    assert len({plain, mixed, on_sums(f"mix={{{own}: 3}}").fingerprint(StageKey(0, "train"))}) == 3
    moved = tmp_path / "elsewhere" / "own.jsonl"
    moved.parent.mkdir()
    own.rename(moved)
    assert on_sums(f"mix={{{moved}: 2}}").fingerprint(StageKey(0, "train")) == mixed, (
        "wherever it lies"
    )
    ours(moved, 5)
    assert on_sums(f"mix={{{moved}: 2}}").fingerprint(StageKey(0, "train")) != mixed
    assert on_sums(f"mix={{{moved}: 2}}").fingerprint(
        StageKey(0, "select")
    ) == on_sums().fingerprint(StageKey(0, "select"))
