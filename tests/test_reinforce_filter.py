"""Tasks that reinforcement learning found too easy or too hard, divided by `coterie data filter --from RUN`."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.data_filter import step_rates
from coterie.datasets.load import load_rows
from coterie.environments.protocol import Grade
from coterie.environments.workflow import Mhqa
from coterie.record.store import Store
from coterie.record.tree import ItemKey
from coterie.runs.folder import open_run
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce import STEP
from tests.conftest import Cli, refused
from tests.reinforcing import Killed, Killing, made, run_whole

WORDS = (
    "dataset=2wiki", "environment=mhqa", "environment.prompt=closed", "tools=[]",
    "model=tiny-exchange", "engine.device=cpu", "evaluate.tasks=1", "rollout.tasks=4",
    "rollout.samples=4", "rollout.max_tokens=4", "steps.save_every=1", "update.max_length=1024",
)  # fmt: skip
HARD, EASY, MIXED, LEARNED = range(4)


class Graded:
    """Gives scores in the place of the environment's: three tasks stay, one is learned by the second step."""

    def __init__(self) -> None:
        rows = load_rows("2wiki", "train", "sample")[:4]
        self.places = {f"2wiki-{row.id}": place for place, row in enumerate(rows)}
        self.asked: Counter[str] = Counter()

    async def grade(self, environment: Any, state: Any, live: Any) -> Grade:
        task = state.task.id
        self.asked[task] += 1
        right = {
            HARD: False,
            EASY: True,
            MIXED: self.asked[task] % 2 == 0,
            LEARNED: self.asked[task] > 4,
        }
        return Grade(
            float(right.get(self.places.get(task, HARD), False)),
            {"well_formed": 1.0, "violations": 0.0},
        )


@pytest.fixture
def graded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Graded:
    """And a data set of four training rows, so that each step plays all of them."""
    found = Graded()

    async def grade(self: Any, state: Any, live: Any) -> Grade:
        return await found.grade(self, state, live)

    monkeypatch.setattr(Mhqa, "grade", grade)
    monkeypatch.chdir(tmp_path)
    write(Path("rows"), 4)
    return found


def write(folder: Path, count: int) -> None:
    """So many training rows of the sample, and its held-out rows."""
    folder.mkdir(exist_ok=True)
    for split, most in (("train", count), ("heldout", None)):
        rows = load_rows("2wiki", split, "sample")[:most]  # type: ignore[arg-type]
        text = "".join(f"{row.model_dump_json()}\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text)


def ids(file: Path) -> set[str]:
    return {json.loads(line)["id"] for line in file.read_text().splitlines()}


def of_row(graded: Graded, place: int) -> str:
    return next(task for task, at in graded.places.items() if at == place).removeprefix("2wiki-")


@pytest.mark.slow
def test_a_next_run_leaves_out_what_this_one_found_too_easy_or_too_hard(
    cli: Cli, graded: Graded
) -> None:
    folder, words = Path("run"), [*WORDS, "dataset.source=rows", "steps.count=2"]
    with pytest.raises(Killed):
        run_whole(made("rl/grpo", words), folder, Killing(1, sampled=3))
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        early = step_rates(store, 0, REINFORCE, 1.0)
        assert sorted(one.graded for one in early.by_task.values()) == [4] * 4, "whole steps alone"
        assert early.by_task[f"2wiki-{of_row(graded, LEARNED)}"].rate == 0
    run_whole(made("rl/grpo", words), folder)
    write(Path("rows"), 6)
    own = made("rl/grpo", words)
    with open_run(folder, own.name, own.settings):  # as while it goes on
        said = cli("data", "filter", "--from", folder, "--out", "next")
    assert said.code == 0, said.err
    assert "kept: 3 rows" in said.err
    assert ids(Path("next/too_hard.jsonl")) == {of_row(graded, HARD)}
    assert ids(Path("next/too_easy.jsonl")) == {of_row(graded, EASY), of_row(graded, LEARNED)}
    kept = ids(Path("next/train.jsonl"))
    assert of_row(graded, MIXED) in kept and len(kept) == 3
    assert load_rows("2wiki", "heldout", "next") == load_rows("2wiki", "heldout", "sample")
    again = made("rl/grpo", [*WORDS, "dataset.source=next"])
    assert {task.id for task in again.environment.tasks("train", 9, 0)} == {
        f"2wiki-{row}" for row in kept
    }


@pytest.mark.slow
def test_scores_decide_and_not_what_a_run_adds_to_them(cli: Cli, graded: Graded) -> None:
    Path("own.py").write_text("def short(dialogue):\n    return -dialogue.tokens / 100\n")
    words = [*WORDS, "dataset.source=rows", "steps.count=1", "reward.terms={own.py:short: 1}"]
    run_whole(made("rl/grpo", words), Path("run"))
    said = cli("data", "filter", "--from", "run", "--out", "next", "--passing", "0.5")
    assert said.code == 0, said.err
    assert "kept: 1 rows" in said.err
    assert ids(Path("next/too_easy.jsonl")) == {of_row(graded, EASY)}
    assert ids(Path("next/too_hard.jsonl")) == {of_row(graded, HARD), of_row(graded, LEARNED)}


def test_what_cannot_be_read_is_refused(cli: Cli, run: Path) -> None:
    said = refused(cli, "data", "filter", "--from", run, "--out", "next")
    assert "a run with reinforcement learning as --from" in said
    with Store.open(run / "store.sqlite") as store:
        store.finish(ItemKey(0, REINFORCE, "", f"{STEP}00000"), metrics={})
    said = refused(cli, "data", "filter", "--from", run, "--out", "next")
    assert "exchange makes its own tasks" in said
    said = refused(cli, "data", "filter", "mhqa", "--from", run, "--out", "next")
    assert "does not accept a benchmark" in said
    said = refused(cli, "data", "filter", "--out", "next")
    assert "no benchmark is given" in said
    said = refused(cli, "data", "filter", "--from", "nowhere", "--out", "next")
    assert "nowhere is not a run folder" in said
