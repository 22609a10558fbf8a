"""More dialogues a task: a judge's choice among them, rounds and their spread, what a right answer costs, and dialogues
as rows. A scripted service stands for paid models.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from coterie.environments.qa_metrics import gold_answer, question_of
from coterie.evaluation import Draw, Estimate, scaling
from coterie.progress import Silent
from coterie.record.store import Store
from coterie.runs.benchmark import (
    BenchmarkSettings,
    benchmark_settings,
    evaluate,
)
from coterie.runs.evaluation import held_out_draws
from coterie.runs.picker import PickerSettings, pick_best, read_pick
from tests.cli.test_data_filter import CLOSED, SAMPLES, Graduated
from tests.conftest import Cli
from tests.engines.test_endpoint import Answer, Service, says, service

TASKS = 5
N = 20
"""Tasks that the paid policy plays."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store of five held-out questions with 0, 1, 2, 3 and 4 right answers of 4."""
    file = tmp_path_factory.mktemp("store") / "evaluation.sqlite"
    overrides = [*CLOSED, f"tasks={TASKS}", f"samples={SAMPLES}", "temperature=1"]
    settings = benchmark_settings(BenchmarkSettings, "mhqa", overrides)
    tasks = [task.id for task in settings.build_environment().tasks("heldout", TASKS, 0)]

    for fresh in (True, False):
        work = evaluate(settings, {"agent": Graduated(tasks)}, file, Silent(), lambda: 0)
        result = asyncio.run(work)
        assert len(result.points) == SAMPLES and result.fresh == fresh
    return file


@pytest.mark.parametrize(("reply", "best"), [
    ('{"reason": "it rests on the page", "best": 2}', 2),
    ('Sure.\n```json\n{"best": "3"}\n```', 3),
    ("2.", 2),
    ('{"best": 1} or rather {"best": 3}', 3),
    ('{"best": 4}', None),
    ('{"best": 0}', None),
    ('{"best": [1]}', None),
    ("the second one", None),
])  # fmt: skip
def test_a_choice_is_read_from_json_or_a_number_alone(reply: str, best: int | None) -> None:
    assert read_pick(reply, 3) == best


def judge(choose: Callable[[list[str]], str]) -> Answer:
    """Return a server that replies by the students' answers."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        server = handler.server
        assert isinstance(server, Service)
        shown = server.bodies[-1]["messages"][-1]["content"]
        reply = choose(re.findall(r"^Answer: (.*)$", shown, re.MULTILINE))
        says(200, {"choices": [{"message": {"content": reply}, "finish_reason": "stop"}]})(handler)

    return answer


def by_judge(
    store: Path, file: Path, choose: Callable[[list[str]], str], times: int = 1
) -> tuple[Estimate, int, list[dict[str, Any]]]:
    async def work(url: str) -> tuple[Estimate, int]:
        settings = PickerSettings(model="paid", url=url, concurrency=1)
        with Store.open(store, read_only=True) as opened:
            draws = held_out_draws(opened, 0, SAMPLES)
            questions = {task: question_of(opened.task(task)) for task in draws}
        return await pick_best(questions, draws, settings, file)

    with service(judge(choose)) as server:
        *_, (score, unreadable) = [asyncio.run(work(server.url)) for _ in range(times)]
    return score, unreadable, server.bodies


def test_a_judge_picks_one_of_several_dialogues(store: Path, tmp_path: Path) -> None:
    def first_idea(answers: list[str]) -> str:
        place = next((place for place, one in enumerate(answers, 1) if one != "no idea"), 1)
        return json.dumps({"best": place})

    score, unreadable, bodies = by_judge(store, tmp_path / "picks.jsonl", first_idea)
    assert score.mean == 4 / 5 and unreadable == 0
    assert len(bodies) == 3, "equal answers need no judge"
    assert score.interval is not None
    low, high = score.interval
    assert low < score.mean <= high
    texts = [body["messages"][-1]["content"] for body in bodies]
    assert all(text.count("Student ") == SAMPLES and "Task: " in text for text in texts)
    *_, bodies = by_judge(store, tmp_path / "picks.jsonl", first_idea)
    assert len(bodies) == 3, "another server is another judge"

    def wrong(answers: list[str]) -> str:
        return str(answers.index("no idea") + 1)

    score, _, bodies = by_judge(store, tmp_path / "wrong.jsonl", wrong, times=2)
    assert score.mean == 1 / 5 and len(bodies) == 3
    assert len((tmp_path / "wrong.jsonl").read_text().splitlines()) == 3, "picks are kept"
    score, unreadable, bodies = by_judge(store, tmp_path / "none.jsonl", lambda _: "hard to say")
    assert unreadable == 3 and len(bodies) == 6, "an unreadable reply is asked for twice"
    assert 1 / 5 <= score.mean <= 4 / 5


def test_the_spread_is_that_of_the_rounds() -> None:
    tasks = {
        "a": [Draw("x", 1.0, 5), Draw("y", 0.0, 5), Draw("x", 1.0, 5)],
        "b": [Draw("x", 1.0, 5), Draw("y", 0.0, 5), Draw("y", 0.0, 5)],
    }
    one, two, three = scaling(tasks, lambda a, b: float(a == b))
    assert one.spread is None
    assert two.spread == pytest.approx(stdev([1.0, 0.0]))
    assert three.spread == pytest.approx(stdev([1.0, 0.0, 0.5])) and three.average == 0.5


def test_the_cost_of_a_right_answer_and_the_dialogues_as_rows(cli: Cli) -> None:
    settings = benchmark_settings(BenchmarkSettings, "mhqa", CLOSED)
    answers = [gold_answer(one) for one in settings.build_environment().tasks("heldout", N, 0)]
    ((first, right),) = Counter(answers).most_common(1)
    assert right > 1
    usage = {"prompt_tokens": 1000, "completion_tokens": 100}
    choice = {"message": {"content": f"<answer>{first}</answer>"}, "finish_reason": "stop"}
    with service(says(200, {"choices": [{**choice, "index": 0}], "usage": usage})) as server:
        words = ["evaluate", "mhqa", *CLOSED, f"policy={server.url}", "endpoint.model=paid", f"tasks={N}",
                 "endpoint.prompt_price=1", "endpoint.completion_price=10", "dump=said"]  # fmt: skip
        result, again = cli(*words), cli(*words)
    assert result.code == 0, result.err
    (row,) = json.loads(result.out.splitlines()[-1])["rows"]
    assert row["cost"] == pytest.approx(N * (1000 * 1 + 100 * 10) / 1e6)
    assert row["cost_of_pass"] == pytest.approx(row["cost"] / right)
    assert row["tokens_per_score"] == pytest.approx(100 / row["score"])
    rows = [json.loads(line) for line in Path("said_step_0.jsonl").read_text().splitlines()]
    assert len(rows) == N and sum(one["score"] for one in rows) == right
    for one in rows:
        assert list(one) == ["step", "data_source", "ground_truth", "input", "output", "score"]
        assert one["step"] == 0 and one["data_source"] == "2wiki"
        assert one["output"] == f"<answer>{first}</answer>" and "Question: " in one["input"]
        assert (first in one["ground_truth"]) == bool(one["score"])
    assert again.code == 2 and "said_step_0.jsonl" in again.err, "nothing is asked"
