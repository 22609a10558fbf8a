"""``gap/tiny``: the encyclopedia as an environment, and the claims and the gate on a few questions."""

import asyncio
from pathlib import Path

import pytest

from coterie.environments.answers import gold_answer
from coterie.environments.encyclopedia import (
    EncyclopediaQuestions,
    EncyclopediaSearch,
    EncyclopediaSearchSettings,
)
from coterie.progress import Silent
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.recipes.report import run_report
from coterie.runs.folder import open_run
from coterie.runs.loop import REINFORCE, run_steps
from coterie.runs.reinforce import step_records
from coterie.tools.search import titles_in


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


@pytest.mark.slow
def test_reinforcement_learning_goes_on_from_what_was_fine_tuned(tmp_path: Path) -> None:
    words = ["traces.tasks=16", "train.epochs=1", "train.batch_rows=8", "evaluate.tasks=2", "method=sft_rl",
             "steps.count=1", "rollout.tasks=2", "rollout.samples=4", "loss.entropy=0.01"]  # fmt: skip
    recipe = recipe_of(settings("gap/tiny", words))
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent())
        assert recipe.versions(run) == [0, 1, 2]
        (record,) = step_records(run.store, 1, REINFORCE).values()
        turns = [
            t for tree in run.store.trees(1, f"{REINFORCE}/00000") for t in tree.turns.values()
        ]
        assert {turn.writer for turn in turns if turn.sample} == {"policy@1"}
        assert record["samples"] >= 8 and record["policy/updates"] == 1
        titles = [section.title for section in run_report(recipe, run).sections]
        groups = "Groups: which rollouts were made more likely"
        assert {"Traces", "Steps of reinforcement learning", groups} <= set(titles)
    recipe.close()
