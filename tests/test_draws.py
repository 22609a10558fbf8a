"""Which tasks an iteration draws: none comes again before all have come, whatever the counts."""

import pytest

from coterie.environments.registry import task_word
from coterie.environments.settings import draws
from coterie.recipes.optima import Optima
from coterie.recipes.plan import content_of
from coterie.recipes.registry import settings
from coterie.record.tree import Task
from tests.played import talk_in

METHODS = ("optima/isft", "optima/idpo", "optima/isft_dpo")


def test_draws_of_any_sizes_go_through_all_rows_before_one_comes_again() -> None:
    rows = list(range(20))
    first, second, third, fourth = draws(rows, [3, 9, 8, 20], seed=3)
    assert [len(first), len(second), len(third)] == [3, 9, 8]
    assert sorted(first + second + third) == rows == sorted(fourth)
    assert first + second + third != fourth, "shuffled anew"
    assert draws(rows, [20], seed=3) != draws(rows, [20], seed=4)


def test_a_draw_over_the_end_takes_no_row_twice_and_leaves_none_out() -> None:
    rows = list(range(10))
    for seed in range(20):
        found = draws(rows, [7, 7, 6, 99, 7, 3], seed)
        assert [len(one) for one in found] == [7, 7, 6, 10, 7, 3], "at most all of them"
        assert all(len(set(one)) == len(one) for one in found)
        assert sorted(found[0] + found[1][:3]) == rows
        assert sorted(found[1][3:] + found[2]) == rows
        assert sorted(found[4] + found[5]) == rows


def test_a_draw_depends_on_those_before_it_alone() -> None:
    rows = list(range(10))
    assert draws(rows, [4, 5, 6], 1)[:2] == draws(rows, [4, 5], 1)


@pytest.mark.parametrize("name", ["gsm8k", "hotpot_qa", "exchange", "persona", "colbench_code"])
def test_an_environment_goes_on_where_the_draws_before_ended(name: str) -> None:
    environment = talk_in(name)
    counts = (5, 2, 9, 4)
    parts = [environment.tasks("train", n, 1, counts[:place]) for place, n in enumerate(counts)]
    assert [len(part) for part in parts] == list(counts)
    assert ids([task for part in parts for task in part]) == ids(environment.tasks("train", 20, 1))
    contents = [content_of(task) for part in parts for task in part]
    assert len(set(contents)) == len(contents)
    assert ids(environment.tasks("heldout", 3, 1, counts)) == ids(
        environment.tasks("heldout", 3, 1)
    )


@pytest.mark.parametrize("dataset", ["gsm8k", "exchange"])
@pytest.mark.parametrize("method", METHODS)
def test_every_iteration_of_a_recipe_draws_new_tasks(method: str, dataset: str) -> None:
    source = ["dataset.source=sample"] * (dataset == "gsm8k")
    words = [task_word(dataset), *source, "iterations=4", "rollout.tasks=9"]
    words += [] if method == "optima/isft" else ["dpo.tasks=13"]
    recipe = Optima(settings(method, words))
    sizes = {"sft": 9, "dpo": 13}
    found = [recipe.train_tasks(i) for i in range(4)]
    assert [len(tasks) for tasks in found] == [sizes[recipe.settings.kinds()[i]] for i in range(4)]
    drawn = ids([task for tasks in found for task in tasks])
    assert len(set(drawn)) == len(drawn)
    assert not set(drawn) & set(ids(recipe.heldout_tasks()))


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]
