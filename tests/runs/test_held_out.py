"""What held-out dialogues come to: those that could not be graded count as failed ones do, or are left out."""

from pathlib import Path

from coterie.environments.protocol import SUCCESS_OF
from coterie.record.store import Store
from coterie.record.tree import LENGTH, Ending, ItemKey, Outcome, Tree
from coterie.record.turn import Part, Speaker, make_turn
from coterie.runs.evaluation import evaluation, grade_means, held_out_draws
from coterie.runs.work_items import summary

SCORES = {"a": 1.0, "b": 0.5, "c": None}


def played(path: Path) -> Store:
    """Dialogues on three tasks, of which one could not be graded, one that failed, and a task that is left out."""
    store = Store.open(path)
    for task, score in SCORES.items():
        tree = Tree(task, "evaluate", 0)
        tree.add(turn := make_turn(tree.root, Speaker("agent", "Alice"), [Part(task)]))
        ending = LENGTH if task == "b" else Ending("agreed")
        tree.end(Outcome(turn.id, 0, ending, task, score))
        store.finish(ItemKey(0, "evaluate", task, "0000"), tree=tree, metrics={"tokens": 8})
    store.finish(ItemKey(0, "evaluate", "d", "0000"), failure="the server is gone")
    store.finish(ItemKey(0, "evaluate", "e", "0000"), failure="left out: the page does not render")
    return store


def test_what_could_not_be_graded_counts_as_failed(tmp_path: Path) -> None:
    with played(tmp_path / "s.db") as store:
        found = evaluation(store, 0)
        assert (found.n, found.failed, found.score) == (4, 2, 1.5 / 4)
        said = summary(store, 0, "evaluate")
        assert (said["n"], said["failed"], said["score"]) == (4, 2, 1.5 / 4)
        assert found.means["left_out"] == said["left_out"] == 1


def test_success_by_type_has_an_unweighted_mean(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        for task, kind, success in (("a", "put", 1.0), ("b", "put", 0.0), ("c", "heat", 1.0)):
            metrics = {"steps": 2, f"{SUCCESS_OF}{kind}": success}
            store.finish(ItemKey(0, "evaluate", task, "0000"), metrics=metrics)
        means = grade_means(store, 0, "evaluate")
    own = {"success/heat": 1.0, "success/put": 0.5, "type_mean": 0.75}
    assert means == {"steps": 2, **own} and [*means][-3:] == [*own]


def test_only_graded_dialogues_that_were_not_cut_off_have_a_vote(tmp_path: Path) -> None:
    with played(tmp_path / "s.db") as store:
        draws = {task: draw for task, (draw,) in held_out_draws(store, 0, 1).items()}
    assert {task: draw.answer for task, draw in draws.items()} == dict.fromkeys("bcd") | {"a": "a"}
    assert [task for task, draw in sorted(draws.items()) if draw.failed] == ["c", "d"]
