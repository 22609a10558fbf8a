"""Preference pairs in the original's files: in, out, and what is refused."""

import re
from pathlib import Path
from typing import Any

import pytest

from coterie.models.loading import load
from coterie.progress import Silent
from coterie.recipes.optima.files.exporting import export_run
from coterie.recipes.optima.files.pairs import import_pairs, imported, imported_pairs, pair_lines
from coterie.recipes.optima.files.records import Lines, PairsLine
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.runs.folder import open_run
from coterie.runs.loop import run_steps
from coterie.training.dpo import DPO, DPOSettings
from coterie.training.loop import train
from coterie.training.reference import with_reference
from coterie.training.settings import TrainingSettings
from coterie.trajectories.store import Store
from tests.conftest import SMALL, Cli
from tests.test_original_files import wrote

PAIRS_LINE = {
    "task_id": 2,
    "dpo_results": [
        {"chosen": ["Facts: a. Begin with Alice:", "Alice: one"],
         "rejected": ["Facts: a. Begin with Alice:", "Alice: two"],
         "chosen_value": 1.25, "distance": 0.5},
        {"chosen": ["Facts: b.", "Alice: one", "Bob: three"],
         "rejected": ["Facts: b.", "Alice: one", "Bob: four"],
         "chosen_value": 1.5, "distance": 1.0},
        {"chosen": ["Facts: a. Begin with Alice:", "Alice: one", "Bob: five", "Alice: six"],
         "rejected": ["Facts: a. Begin with Alice:", "Alice: one", "Bob: five", "Alice: seven"],
         "chosen_value": 0.75, "distance": 0.25},
    ],
}  # fmt: skip


def test_pairs_become_siblings_with_values_and_train(cli: Cli, tmp_path: Path) -> None:
    wrote(tmp_path / "theirs_dpo_format.jsonl", {"task_id": 1, "dpo_results": []}, PAIRS_LINE)
    said = cli(
        "import", "optima", "theirs_dpo_format.jsonl", "--folder", "run", "environment=exchange"
    )
    assert said.code == 0 and "pairs: 3" in said.err, said.err
    base = load("tiny-exchange")
    with Store.open(tmp_path / "run/store.sqlite", read_only=True) as store:
        (tree,) = store.trees(0, "pairs")
        values = store.credit("theirs_dpo_format.jsonl", "value")
        assert {tree.turns[node].text: value for node, value in values.items()} == {
            "one": 1.25, "two": 0.75, "three": 1.5, "four": 0.5, "six": 0.75, "seven": 0.5,
        }  # fmt: skip
        assert [turn.text for turn in tree.children(tree.root)] == ["one", "two"]
        pairs = list(imported_pairs(store))
        lines = list(pair_lines(imported(store)))
    shown = [base.tokenizer.decode(pair.chosen[0].ids) for pair in pairs]
    assert "Facts: b." in shown[1] and "Facts: a." not in shown[1]
    for pair, (chosen, rejected) in zip(
        pairs, (("one", "two"), ("three", "four"), ("six", "seven")), strict=True
    ):
        for side, text in ((pair.chosen, chosen), (pair.rejected, rejected)):
            (row,) = side
            (target,) = row.targets
            assert base.tokenizer.decode(row.ids[target.start : target.stop - 1]) == text
            assert target.writer == "import:theirs_dpo_format.jsonl"
    own = TrainingSettings(epochs=1, batch_rows=3, learning_rate=1e-4)
    ready = with_reference(base.model, pairs, own, tmp_path / "reference", normalise="none")
    report = train(base.model, ready, own, tmp_path / "trained", objective=DPO(DPOSettings()))
    assert report.steps == 1 and report.last_loss == pytest.approx(0.6931, abs=1e-3), "log 2"
    assert lines == [PairsLine.model_validate({**PAIRS_LINE, "task_id": 0})]


def test_pairs_of_a_tree_search_go_out_and_come_back(tmp_path: Path) -> None:
    words = (
        *SMALL, "iterations=2", "rollout.tasks=2", "dpo.tasks=2", "dpo.probe=2",
        "dpo.search.searches=2", "dpo.select.theta_filter=-100", "dpo.select.theta_diff=0",
    )  # fmt: skip
    own = recipe_of(settings("optima/idpo", words))
    with open_run(tmp_path / "run", own.name, own.settings) as run:
        steps = [step for step in own.steps() if step.stage != "evaluate"]
        run_steps(own, run, Silent(), steps[:-1])
        files = export_run(own, run, tmp_path / "files", 1)
        selected = run.store.selections(1, "select")
        trees = {tree.task: tree for tree in run.store.trees(1, "rollout")}
        texts = {s.leaf: trees[task].turns[s.leaf].text for task, s in selected}
    assert [path.name for path in files][-1] == "iteration_1_dpo_format.jsonl"
    import_pairs(Lines(files[-1]), own, tmp_path / "back", Silent())
    with Store.open(tmp_path / "back/store.sqlite", read_only=True) as store:
        found = [pair.tree.turns[pair.chosen].text for pair in imported(store)]
    assert sorted(found) == sorted(texts[s.leaf] for _, s in selected) != []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rejected": ["Facts: b.", "Alice: x"]}, "no common beginning"),
        ({"rejected": ["Facts: a. Begin with Alice:", "Alice: one"]}, "chosen and rejected are equal"),
        ({"chosen": ["Alice: one"]}, "dpo_results.0.chosen: .*at least 2"),
        ({"chosen": "Alice: one"}, "dpo_results.0.chosen: .*list"),
        ({"chosen_value": "1"}, "dpo_results.0.chosen_value: .*number"),
        ({"chosen_value": float("nan")}, "dpo_results.0.chosen_value"),
        ({"distance": 0.0}, "dpo_results.0.distance: .*must be more than 0"),
        ({"rejected": ["Facts: a. Begin with Alice:", "error"]}, "marker 'error'"),
        ({"chosen_value": 1.25, "distance": 0.25}, "two values, 1.0 and 0.75"),
    ],
)  # fmt: skip
def test_a_broken_pair_is_named_and_nothing_is_made(
    cli: Cli, tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    pairs = PAIRS_LINE["dpo_results"]
    assert isinstance(pairs, list)
    line = {"task_id": 3, "dpo_results": [{**pairs[0], **fields}, pairs[0]]}
    wrote(tmp_path / "theirs.jsonl", PAIRS_LINE, line)
    said = cli("import", "optima", "theirs.jsonl", "--folder", "run", "environment=exchange")
    assert said.code == 2 and "line 2" in said.err
    assert re.search(reason, said.err)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.jsonl"]
