"""Rows kept by how often a policy solves them: what a store says, what is written, and that it can be played again."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from coterie.cli.data_filter import RateRule, pass_rates
from coterie.datasets.load import load_rows
from coterie.environments.answers import gold_answer
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.record.store import Store
from coterie.record.turn import Part, Speaker, make_turn
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.runs.benchmark import BenchmarkSettings, benchmark_settings, evaluate
from tests.conftest import Cli

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
