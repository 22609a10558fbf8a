"""Which tasks an iteration draws: none comes again before all have come, whatever the counts."""

import pytest

from coterie.environments.registry import task_pair
from coterie.environments.settings import last_draw
from coterie.recipes.optima import Optima
from coterie.recipes.plan import content_of
from coterie.recipes.registry import settings
from coterie.record.tree import Task
from tests.helpers.packaged_environments import packaged_dialogue


def test_draws_of_any_sizes_go_through_all_rows_before_one_comes_again() -> None:
    rows = list(range(10))
    for seed in range(20):
        counts = [7, 7, 6, 99, 7, 3]
        parts = [last_draw(rows, counts[: n + 1], seed) for n in range(len(counts))]
        assert [len(one) for one in parts] == [7, 7, 6, 10, 7, 3], "at most all of them"
        assert all(len(set(one)) == len(one) for one in parts)
        assert sorted(parts[0] + parts[1][:3]) == rows
        assert sorted(parts[1][3:] + parts[2]) == rows
        assert sorted(parts[4] + parts[5]) == rows
        assert parts[0] + parts[1][:3] != parts[3], "shuffled anew"
    assert last_draw(rows, [10], seed=3) != last_draw(rows, [10], seed=4)


@pytest.mark.parametrize("name", ["gsm8k", "hotpot_qa", "exchange", "persona", "colbench_code"])
def test_an_environment_goes_on_where_the_draws_before_ended(name: str) -> None:
    environment = packaged_dialogue(name)
    counts = (5, 2, 9, 4)
    parts = [environment.tasks("train", n, 1, counts[:place]) for place, n in enumerate(counts)]
    assert [len(part) for part in parts] == list(counts)
    assert ids([task for part in parts for task in part]) == ids(environment.tasks("train", 20, 1))
    contents = [content_of(task, environment) for part in parts for task in part]
    assert len(set(contents)) == len(contents)
    assert ids(environment.tasks("heldout", 3, 1, counts)) == ids(
        environment.tasks("heldout", 3, 1)
    )


@pytest.mark.parametrize("method", ["optima/isft", "optima/isft_dpo"])
def test_every_iteration_of_a_recipe_draws_new_tasks(method: str) -> None:
    overrides = [task_pair("gsm8k"), "dataset.source=sample", "iterations=4", "rollout.tasks=9"]
    overrides += ["dpo.tasks=13"] * (method == "optima/isft_dpo")
    recipe = Optima(settings(method, overrides))
    sizes = {"sft": 9, "dpo": 13}
    parts = [recipe.train_tasks(i) for i in range(4)]
    assert [len(tasks) for tasks in parts] == [sizes[recipe.settings.kinds()[i]] for i in range(4)]
    drawn = ids([task for tasks in parts for task in tasks])
    assert len(set(drawn)) == len(drawn)
    assert not set(drawn) & set(ids(recipe.heldout_tasks()))


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]
