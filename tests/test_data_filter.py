"""Rows kept by how often a policy solves them, by `coterie data filter` on an evaluation or a run."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.data_rows import RateRule, pass_rates, step_rates
from coterie.datasets.load import load_rows
from coterie.environments.answers import gold_answer
from coterie.environments.protocol import Grade
from coterie.environments.workflow.environment import Mhqa
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.record.store import Store
from coterie.record.tree import ItemKey
from coterie.record.turn import Part, Speaker, make_turn
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.runs.benchmark import BenchmarkSettings, benchmark_settings, evaluate
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

CLOSED = ["dataset=2wiki", "dataset.source=sample", "environment.prompt=closed", "tools=[]"]
SAMPLES = 4


class Graduated:
    """Is right on the task at place n of a list in n of its dialogues."""

    def __init__(self, tasks: list[str]) -> None:
        self.left = Counter({task: place for place, task in enumerate(tasks)})

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        assert prompt.task is not None
        right = self.left[prompt.task.id] > 0
        self.left[prompt.task.id] -= 1
        text = f"<answer>{gold_answer(prompt.task) if right else 'no idea'}</answer>"
        speaker = Speaker("agent", prompt.agent)
        return Response(
            make_turn(prompt.parent, speaker, [Part(text)], author="test", draw=prompt.draw),
            None,
            3,
        )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five training questions, solved in 0, 1, 2, 3 and 4 of 4 dialogues."""
    file = tmp_path_factory.mktemp("store") / "evaluation.sqlite"
    words = [*CLOSED, "tasks=5", f"samples={SAMPLES}", "temperature=1"]
    settings = benchmark_settings(BenchmarkSettings, "mhqa", words)
    tasks = [task.id for task in settings.build_environment().tasks("train", 5, 0)]
    played = evaluate(
        settings, {"agent": Graduated(tasks)}, file, Silent(), lambda: 0, split="train"
    )
    asyncio.run(played)
    return file


def questions(file: Path) -> list[str]:
    return [json.loads(line)["question"] for line in file.read_text().splitlines()]


def played_questions() -> list[str]:
    settings = benchmark_settings(BenchmarkSettings, "mhqa", CLOSED)
    return [
        str(task.public["question"]) for task in settings.build_environment().tasks("train", 5, 0)
    ]


def test_a_rate_is_the_share_of_graded_dialogues_that_pass(store: Path) -> None:
    rows = {row.question: row for row in load_rows("2wiki", "train", "sample")}
    with Store.open(store, read_only=True) as opened:
        assert opened.iterations("evaluate") == [0] and opened.iterations("rollout") == []
        rates = pass_rates(opened, 0, ["evaluate"], passing=1.0)
        all_pass = pass_rates(opened, 0, ["evaluate"], passing=0.0)
    found = [rates.of("2wiki", rows[question]) for question in played_questions()]
    assert [one and one.rate for one in found] == [0, 0.25, 0.5, 0.75, 1]
    assert [rates.of("another", rows[one]) for one in played_questions()] == found, "by question"
    others = [row for question, row in rows.items() if question not in played_questions()]
    assert others and rates.of("2wiki", others[0]) is None
    assert {one.rate for one in all_pass.by_task.values()} == {1.0}


def test_both_ends_are_kept_and_a_row_that_was_not_played_is_nowhere() -> None:
    rule = RateRule(0.25, 0.75)
    places = [rule.place(rate) for rate in (0.0, 0.25, 0.5, 0.75, 1.0, None)]
    assert places == ["too_hard", "kept", "kept", "kept", "too_easy", "not_played"]
    with pytest.raises(UserError, match="no rate is"):
        RateRule(0.8, 0.2)


def test_rows_are_divided_and_can_be_played_again(cli: Cli, store: Path) -> None:
    words = ["mhqa", *CLOSED[:2], "--store", store, "--out", "worth", "--most", "0.5"]
    said = cli("data", "filter", *words)
    assert said.code == 0, said.err
    assert "kept: 2 rows" in said.err and "too easy: 2 rows" in said.err
    assert "too hard: 1 rows" in said.err and "not played: " in said.err
    assert "passed: 0/4 of 1, 1/4 of 1, 2/4 of 1, 3/4 of 1, 4/4 of 1" in said.err
    asked, folder = played_questions(), Path("worth")
    order = [row.question for row in load_rows("2wiki", "train", "sample")]
    assert questions(folder / "train.jsonl") == sorted(asked[1:3], key=order.index)
    assert questions(folder / "too_hard.jsonl") == asked[:1]
    assert set(questions(folder / "too_easy.jsonl")) == set(asked[3:])
    heldout = load_rows("2wiki", "heldout", "sample")
    assert load_rows("2wiki", "heldout", "worth") == heldout, "the other split is whole"
    assert {row.question for row in load_rows("2wiki", "train", "worth")} == set(asked[1:3])
    again = cli("data", "filter", *words)
    assert again.code == 2 and "worth already exists" in again.err


def test_a_policy_is_played_on_training_rows_and_what_was_played_is_read(cli: Cli) -> None:
    words = [
        "mhqa",
        *CLOSED,
        "policy=tiny-exchange",
        "tasks=3",
        "max_tokens=8",
        "engine.device=cpu",
    ]
    said = cli("data", "filter", *words, "--out", "hard", "--least", "0", "--most", "0")
    assert said.code == 0, said.err
    assert "kept: 3 rows" in said.err and "passed: 0/8 of 3" in said.err
    assert set(questions(Path("hard/train.jsonl"))) <= set(played_questions())
    file, *others = Path("runs/evaluations").glob("*.sqlite")
    assert file.name.endswith("-train.sqlite") and not others
    assert cli("evaluate", *words).code == 0
    assert len(list(Path("runs/evaluations").glob("*.sqlite"))) == 2, "splits do not share a store"
    again = cli("data", "filter", *words, "--out", "b", "--least", "0")
    assert "already evaluated" in again.err + again.out
    from_store = ["mhqa", *CLOSED[:2], "--store", file, "--least", "0", "--out", "c"]
    assert cli("data", "filter", *from_store).code == 0
    assert Path("b/train.jsonl").read_text() == Path("c/train.jsonl").read_text()


def test_what_cannot_be_filtered_is_refused(cli: Cli, store: Path) -> None:
    known = ["--store", store, "--out", "x"]
    for words, wrong in (
        (["mhqa", *CLOSED[:2], "--store", "no.sqlite", "--out", "x"], "there is no file no.sqlite"),
        (["mhqa", *CLOSED[:2], *known, "--split", "heldout"], "no heldout row of this data set"),
        (
            ["mhqa", *CLOSED[:2], *known, "--least", "0.3", "--most", "0.4"],
            "no row is kept: 0 kept",
        ),
        (["exchange", *known], "makes its own tasks"),
    ):
        said = cli("data", "filter", *words)
        assert said.code == 2 and wrong in said.err, (words, said.err)
    assert not Path("x").exists()


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
