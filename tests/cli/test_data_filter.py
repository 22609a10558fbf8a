"""Rows kept by how often a policy solves them, by `coterie data filter` on an evaluation or a run."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.data_rows import pass_rates, rate_of, step_rates
from coterie.datasets.load import load_rows
from coterie.environments.protocol import Grade
from coterie.environments.qa_metrics import gold_answer
from coterie.environments.workflow.agent import Mhqa
from coterie.progress import Silent
from coterie.record.store import Store
from coterie.record.turn import Part, Speaker, make_turn
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.runs.benchmark import BenchmarkSettings, benchmark_settings, evaluate
from coterie.runs.loop import REINFORCE
from coterie.runs.run import open_run
from tests.conftest import Cli
from tests.helpers.run_rl import Killed, Killing, make_recipe, run_to_end

WORDS = (
    "dataset=2wiki", "environment=mhqa", "environment.prompt=closed", "tools=[]",
    "model=tiny-exchange", "engine.device=cpu", "evaluate.tasks=1", "rollout.tasks=4",
    "rollout.rollouts_per_task=4", "rollout.max_tokens=4", "steps.save_every=1", "train.max_length=1024",
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
    overrides = [*CLOSED, "tasks=5", f"samples={SAMPLES}", "temperature=1"]
    settings = benchmark_settings(BenchmarkSettings, "mhqa", overrides)
    tasks = [task.id for task in settings.build_environment().tasks("train", 5, 0)]
    dialogues = evaluate(
        settings, {"agent": Graduated(tasks)}, file, Silent(), lambda: 0, split="train"
    )
    asyncio.run(dialogues)
    return file


def questions(file: Path) -> list[str]:
    return [json.loads(line)["question"] for line in file.read_text().splitlines()]


def played_questions() -> list[str]:
    settings = benchmark_settings(BenchmarkSettings, "mhqa", CLOSED)
    return [
        str(task.public["question"]) for task in settings.build_environment().tasks("train", 5, 0)
    ]


def test_rates_count_scores_that_pass_and_are_found_by_id_or_question(store: Path) -> None:
    rows = {row.question: row for row in load_rows("2wiki", "sample").rows["train"]}
    with Store.open(store, read_only=True) as opened:
        rates = pass_rates(opened, 0, ["evaluate"], passing=1.0)
        all_pass = pass_rates(opened, 0, ["evaluate"], passing=0.0)
    for name in ("2wiki", "another"):
        expected = [0, 0.25, 0.5, 0.75, 1]
        assert [rate_of(rates, name, rows[one]).rate for one in played_questions()] == expected
    assert {one.rate for one in all_pass.values()} == {1.0}


def test_rows_are_divided_and_can_be_played_again(cli: Cli, store: Path) -> None:
    words = [
        "mhqa",
        *CLOSED[:2],
        "--store",
        store,
        "--out",
        "worth",
        "--least",
        "0.25",
        "--most",
        "0.5",
    ]
    result = cli("data", "filter", *words)
    assert result.code == 0, result.err
    assert "kept: 2 rows" in result.err and "too easy: 2 rows" in result.err
    assert "too hard: 1 rows" in result.err and "not played: " in result.err
    assert "passed: 0/4 of 1, 1/4 of 1, 2/4 of 1, 3/4 of 1, 4/4 of 1" in result.err
    order_played, folder = played_questions(), Path("worth")
    order = [row.question for row in load_rows("2wiki", "sample").rows["train"]]
    assert questions(folder / "train.jsonl") == sorted(order_played[1:3], key=order.index)
    assert questions(folder / "too_hard.jsonl") == order_played[:1]
    assert set(questions(folder / "too_easy.jsonl")) == set(order_played[3:])
    heldout = load_rows("2wiki", "sample").rows["heldout"]
    assert load_rows("2wiki", "worth").rows["heldout"] == heldout, "the other split is whole"
    assert {row.question for row in load_rows("2wiki", "worth").rows["train"]} == set(
        order_played[1:3]
    )
    lenient = cli("data", "filter", *words, "--out", "all", "--most", "1", "--passing", "0")
    assert "kept: 5 rows" in lenient.err, "every score passes"
    repeated = cli("data", "filter", *words)
    assert repeated.code == 2 and "worth already exists" in repeated.err


def test_a_policy_is_played_on_training_rows_and_what_was_played_is_read(cli: Cli) -> None:
    own = ["policy=tiny-exchange", "tasks=1", "max_tokens=8", "engine.device=cpu"]
    words = ["mhqa", *CLOSED, *own]
    result = cli("data", "filter", *words, "--out", "hard", "--least", "0", "--most", "0")
    assert result.code == 0, result.err
    assert "kept: 1 rows" in result.err and "passed: 0/8 of 1" in result.err
    assert set(questions(Path("hard/train.jsonl"))) <= set(played_questions())
    [file] = Path("runs/evaluations").glob("*.sqlite")
    assert file.name.endswith("-train.sqlite"), "splits do not share a store"
    result = cli("data", "filter", *words, "--out", "b", "--least", "0")
    assert "already evaluated" in result.err + result.out
    from_store = ["mhqa", *CLOSED[:2], "--store", file, "--least", "0", "--out", "c"]
    assert cli("data", "filter", *from_store).code == 0
    assert Path("b/train.jsonl").read_text() == Path("c/train.jsonl").read_text()


@pytest.fixture
def task_ids(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Ids of four training rows: three keep their scores, and the last is learned by the second step."""
    ids, counts = [row.id for row in load_rows("2wiki", "sample").rows["train"][:4]], Counter[str]()

    async def grade(self: Any, state: Any, session: Any) -> Grade:
        task = state.task.id.removeprefix("2wiki-")
        counts[task] += 1
        right = [False, True, counts[task] % 2 == 0, counts[task] > 4]
        is_right = task in ids and right[ids.index(task)]
        return Grade(float(is_right), {"well_formed": 1.0, "violations": 0.0})

    monkeypatch.setattr(Mhqa, "grade", grade)
    monkeypatch.chdir(tmp_path)
    write(Path("rows"), 4)
    return ids


def write(folder: Path, count: int) -> None:
    """So many training rows of the sample, and its held-out rows."""
    folder.mkdir(exist_ok=True)
    for split, most in (("train", count), ("heldout", None)):
        rows = load_rows("2wiki", "sample").rows[split][:most]  # type: ignore[arg-type]
        text = "".join(f"{row.model_dump_json()}\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text)


def ids(file: Path) -> set[str]:
    return {json.loads(line)["id"] for line in file.read_text().splitlines()}


@pytest.mark.slow
def test_a_next_run_leaves_out_what_this_one_found_too_easy_or_too_hard(
    cli: Cli, task_ids: list[str]
) -> None:
    """The scores of finished steps decide, and not the rewards that a run makes of them."""
    Path("own.py").write_text("def short(dialogue):\n    return -dialogue.tokens / 100\n")
    terms = "reward.terms={own.py:short: 1}"
    folder, overrides = Path("run"), [*WORDS, "dataset.source=rows", "steps.count=2", terms]
    hard, easy, mixed, learned = task_ids
    with pytest.raises(Killed):
        run_to_end(make_recipe("rl/grpo", overrides), folder, Killing(1, sampled=3))
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        early = step_rates(store, 0, REINFORCE, 1.0)
        assert sorted(one.graded for one in early.values()) == [4] * 8, "whole steps alone"
        assert early[f"2wiki-{learned}"].rate == 0
    run_to_end(make_recipe("rl/grpo", overrides), folder)
    write(Path("rows"), 6)
    own = make_recipe("rl/grpo", overrides)
    with open_run(folder, own.name, own.settings):  # as while it goes on
        result = cli("data", "filter", "--from", folder, "--out", "next")
    assert result.code == 0, result.err
    assert "kept: 3 rows" in result.err
    assert ids(Path("next/too_hard.jsonl")) == {hard}
    assert ids(Path("next/too_easy.jsonl")) == {easy, learned}
    kept = ids(Path("next/train.jsonl"))
    assert mixed in kept and len(kept) == 3
    assert (
        load_rows("2wiki", "next").rows["heldout"] == load_rows("2wiki", "sample").rows["heldout"]
    )
    tasks = make_recipe("rl/grpo", [*WORDS, "dataset.source=next"]).environment.tasks("train", 9, 0)
    assert {task.id for task in tasks} == {f"2wiki-{row}" for row in kept}
