"""``gap/tiny``: the encyclopedia as an environment, and the claims and the gate on a few questions."""

import asyncio
from pathlib import Path

import pytest

from coterie.environments.encyclopedia.environment import EncyclopediaQuestions
from coterie.environments.encyclopedia.tool import EncyclopediaSearch, EncyclopediaSearchSettings
from coterie.environments.gold import gold_answer
from coterie.evaluation.claims import HeldOut
from coterie.progress import Silent
from coterie.recipes.findings import ClaimResults
from coterie.recipes.gap.claims import _cut, reproduce
from coterie.recipes.gap.gate import gate
from coterie.tools.retrieval.tool import titles_in

FEW = [
    "traces.tasks=24", "evaluate.tasks=8", "train.epochs=1", "train.batch_rows=8", "rollout.max_tokens=96",
]  # fmt: skip


def test_a_task_is_a_question_whose_entries_are_found_by_the_tool() -> None:
    environment = EncyclopediaQuestions()
    tasks = environment.tasks("train", 6, 1)
    assert [task.public["type"] for task in tasks] == ["compare", "chain"] * 3
    source = EncyclopediaSearch(EncyclopediaSearchSettings())

    async def found(queries: list[str]) -> list[str]:
        async with source.open() as functions:
            search = functions["wiki_search"]
            return [await search({"query": query}) for query in queries]

    for task in tasks:
        trace = environment.trace(task)
        results = asyncio.run(found([one.text for level in trace.levels for one in level]))
        assert trace.answer == gold_answer(task)
        assert environment.grounded(task, results)
        assert not environment.grounded(task, results[:-1])
        assert all(len(titles_in(one)) == 2 for one in results)


def test_tasks_of_a_later_draw_go_on_and_splits_share_nothing() -> None:
    environment = EncyclopediaQuestions()
    first, second = environment.tasks("train", 4, 0), environment.tasks("train", 4, 0, [4])
    both = environment.tasks("train", 8, 0)
    assert [task.id for task in (*first, *second)] == [task.id for task in both]
    held_out = environment.tasks("heldout", 50, 0)
    asked = {str(task.public["question"]) for task in environment.tasks("train", 200, 0)}
    assert not asked & {str(task.public["question"]) for task in held_out}


def test_a_call_takes_its_delay() -> None:
    source = EncyclopediaSearch(EncyclopediaSearchSettings(delay=0.3))

    async def took() -> float:
        loop = asyncio.get_running_loop()
        async with source.open() as functions:
            began = loop.time()
            await asyncio.gather(*(functions["wiki_search"]({"query": "x"}) for _ in range(4)))
            return loop.time() - began

    assert asyncio.run(took()) >= 0.3


def test_a_cut_is_a_share_of_the_sequential_values() -> None:
    def values(parallel: float) -> dict[str, dict[int, dict[str, HeldOut]]]:
        both = {"parallel": parallel, "sequential": 10.0}
        return {
            form: {0: {f"q{n}": HeldOut(one, 0) for n in range(40)}} for form, one in both.items()
        }

    assert _cut("rounds", "", values(7.9), 0.8).holds
    assert not _cut("rounds", "", values(8.1), 0.8).holds


@pytest.mark.slow
def test_the_claims_are_tested_and_the_gate_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On so few questions they may fail; what is measured is there, and a second call only reads it."""
    monkeypatch.setattr("coterie.recipes.gap.claims.TIMED", 3)
    passed = gate(tmp_path / "gate", FEW, Silent())
    assert passed.values["sound_traces"] == 1.0 and passed.values["share_of_rounds"] < 0.8
    said: list[str] = []

    def test() -> ClaimResults:
        return reproduce(tmp_path / "claims", [0], FEW, said.append, Silent())

    found = test()
    assert [claim.id for claim in found.claims] == ["rounds", "seconds", "exact_match"]
    assert [row.method for row in found.found.rows] == ["base", "parallel", "sequential"]
    parallel, sequential = found.found.rows[1:]
    assert parallel.means["plans"] > 0 and (parallel.rows, parallel.steps) == (24, 3)
    assert (sequential.rows, sequential.steps) == (24, 3)
    assert test().claims == found.claims
