"""Pages of runs, evaluations and sweeps: which dialogues they hold, their tables, and a page in a real browser."""

import json
from pathlib import Path

import pytest

from coterie.cli import report as report_module
from coterie.cli.report import write_report, write_tables
from coterie.record.store import Store
from coterie.record.tree import Ending, ItemKey, Outcome, Secret, Selection, Task, Tree
from coterie.record.turn import Part, Speaker, make_turn
from coterie.reports.sections import chart, line, section, signed
from tests.conftest import Cli
from tests.helpers.read_page import read_page, sections_of

HOSTILE = "</p></noscript></script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\x1b\ud83d"


def finish(store: Store, key: ItemKey, score: float, turns: int = 1) -> str:
    """Write a dialogue with a score, and return its leaf."""
    tree = Tree(key.task, key.stage, key.iteration)
    leaf = tree.root
    for number in range(turns):
        turn = make_turn(leaf, Speaker("agent", "Alice"), [Part(f"{key.sample} {number}")])
        tree.add(turn)
        leaf = turn.id
    tree.end(Outcome(leaf, int(key.sample), Ending("agreed"), "yes", score))
    store.finish(key, tree=tree, metrics={"tokens": 1})
    return leaf


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two evaluations on 12 tasks, and rollouts of 12 tasks in two iterations."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("recipe: optima/isft\nmade: 2026-11-29\nmodel: gone\n")
    with Store.open(folder / "store.sqlite") as store:
        gold = Secret("heliotrope", name="gold", readers=frozenset({"critic"}))
        names = [f"{split}-{n:02d}" for split in ("test", "train") for n in range(12)]
        store.put_tasks([Task(name, {"question": HOSTILE[:-1]}, {"gold": gold}) for name in names])
        for n in range(12):
            # The score of task n changes by (n - 6) / 10.
            for iteration, score in enumerate((0.5, 0.5 + (n - 6) / 10)):
                finish(store, ItemKey(iteration, "evaluate", f"test-{n:02d}", "0000"), score)
        for iteration in range(2):
            chosen = []
            for n in range(12):
                for sample in range(2):
                    key = ItemKey(iteration, "rollout", f"train-{n:02d}", f"{sample:04d}")
                    # The rollouts of later tasks have scores that are farther apart.
                    leaf = finish(store, key, sample * n / 12, turns=400 if n == 11 else 1)
                if n % 2:
                    chosen.append(Selection(leaf, "Alice"))
            store.finish(ItemKey(iteration, "select", "train-01", ""), selections=chosen)
    return folder


def tasks_of(page: Path) -> dict[tuple[int, str], list[str]]:
    return {(t["iteration"], t["stage"]): t["tasks"] for t in read_page(page)["tasks"]}


def test_a_page_holds_the_tasks_that_tell_most(run: Path) -> None:
    page = write_report(run)
    held_out = [f"test-{n:02d}" for n in (0, 1, 6, 7, 8, 9, 10, 11)]
    # Half of the training tasks were selected. The largest one, of 800 turns, is left out.
    trained = ["train-07", "train-09", "train-08", "train-10"]
    stages = tasks_of(page)
    evaluated = [stages.get((iteration, "evaluate")) for iteration in range(2)]
    assert evaluated == [held_out] * 2, "improved, and the two worst"
    assert stages.keys() == {(i, stage) for i in range(2) for stage in ("evaluate", "rollout")}
    for iteration in range(2):
        assert set(stages[iteration, "rollout"]) <= {*trained, "train-06", "train-05"}
        assert "train-11" not in stages[iteration, "rollout"]
    (overview,) = read_page(page)["overview"]
    assert overview["excerpt"] == {"tasks": 8 + len(stages[0, "rollout"]), "of": 24}
    (compared,) = read_page(page)["compare"]
    assert compared["tasks"] == held_out and compared["b_score"][0] == pytest.approx(-0.1)
    assert "heliotrope" not in page.read_text()


def test_a_page_leaves_out_what_does_not_fit_and_is_written_over(run, monkeypatch) -> None:
    whole = len(write_report(run).read_text())
    monkeypatch.setattr(report_module, "MAX_SIZE", 8_000)
    page = write_report(run)
    (overview,) = read_page(page)["overview"]
    assert 0 < overview["excerpt"]["tasks"] < 10 and len(page.read_text()) < whole
    assert [file.name for file in run.glob("*report*")] == ["report.html"]
    assert not [*run.glob("store.sqlite-*")], "the run's log is emptied when its process ends"


def test_the_pages_of_a_run_and_an_evaluation_have_their_commands_scores_and_settings(
    cli: Cli,
) -> None:
    words = ("run", "rl/grpo", "evaluate.tasks=2", "rollout.tasks=2", "rollout.rollouts_per_task=3", "steps.count=1",
             "engine.device=cpu", "rollout.max_tokens=24", "--folder", "run")  # fmt: skip
    assert cli(*words).code == 0
    Path("run/report.html").unlink()
    assert cli("report", "run").code == 0
    answers, sections = read_page(Path("run/report.html")), sections_of(Path("run/report.html"))
    (overview,) = answers["overview"]
    assert overview["commands"] == [f"coterie {' '.join(words)}"]
    assert {"steps.count", "rollout.max_tokens"} <= {row[0] for row in sections["changes"]["rows"]}
    evaluation = cli(
        "evaluate", "exchange", "policy=tiny-exchange", "policy=run", "tasks=3", "max_tokens=24"
    )
    assert evaluation.code == 0, evaluation.err
    *lines, result = evaluation.out.splitlines()
    (text,) = [text for text in lines if text.startswith("page: ")]
    page = Path(text.removeprefix("page: "))
    base, trained = json.loads(result)["rows"]
    answers, sections = read_page(page), sections_of(page)
    low, high = base["score_ci"]
    assert f"{low:.3f}–{high:.3f}" in sections["scores"]["rows"][0]
    assert sections["differences"]["rows"][0][1] == signed(trained["difference"], 3)
    shown = answers["overview"][0]["evaluations"]
    assert [(e["run"], round(e["score"], 4)) for e in shown] == [
        (n, row["score"]) for n, row in enumerate((base, trained))
    ]
    # Both policies' dialogues have their tokens, decoded by the tokenizer of each model.
    sampled = {0: 0, 1: 0}
    for path in answers["path"]:
        turns = [turn["tokens"] for turn in path["turns"] if turn["tokens"]]
        sampled[int(path["params"].get("run", 0))] += len(turns)
        assert all(tokens["text"] for tokens in turns)
    assert all(sampled.values())
    (compared,) = answers["compare"]
    assert (compared["a"]["run"], compared["b"]["run"], len(compared["tasks"])) == (0, 1, 3)


def test_differences_have_a_sign_and_sections_the_meanings_of_their_heads() -> None:
    assert [signed(0.32, 2), signed(-0.32, 2), signed(0.0, 1), signed(-0.001, 2)] == [
        "+0.32",
        "-0.32",
        "0.0",
        "0.00",
    ]
    assert section("a", "A", heads=("tokens", "x"))["words"].keys() == {"tokens"}
    assert line("a", [(1.0, 0.5, 2.0), None]) == {
        "name": "a", "values": [1.0, None], "low": [0.5, None], "high": [2.0, None]
    }  # fmt: skip
    assert line("a", [1.0, None]) == {"name": "a", "values": [1.0, None]}


def test_the_page_asks_for_nothing_and_texts_stay_texts(browser, tmp_path: Path) -> None:
    """With scripts the page shows the tables, and without scripts their summary."""
    file, messages = tmp_path / "sweep.html", list[str]()
    series = [line(HOSTILE, [(0.5, 0.4, 0.6), (0.7, 0.6, 0.8)]), line("b", [0.1, 0.2])]
    link = {"text": HOSTILE, "href": "a/report.html"}
    table = section("s", HOSTILE, HOSTILE, (HOSTILE, "n"), [(HOSTILE, 1), (link, 2)],
                    [chart(HOSTILE, HOSTILE, [HOSTILE, "b"], series)])  # fmt: skip
    write_tables(HOSTILE, HOSTILE, [table], file)
    for width, scripts in ((390, True), (1280, True), (1280, False)):
        page = browser.new_context(
            viewport={"width": width, "height": 900}, java_script_enabled=scripts
        ).new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("request", lambda request: messages.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("td >> text=window.hacked" if scripts else "h1")
        shown = page.inner_text("body")
        assert "window.hacked" in shown and "\x1b" not in shown and "\ud83d" not in shown
        assert page.locator("img, main script, noscript img").count() == 0
        if scripts:
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate("window.hacked") is None
            assert page.locator("canvas").count() == 1
            links = page.locator("main a").evaluate_all(
                "all => all.map(a => a.getAttribute('href'))"
            )
            assert links == ["a/report.html"]
    assert {text for text in messages if not text.startswith("data:")} == {file.as_uri()}
