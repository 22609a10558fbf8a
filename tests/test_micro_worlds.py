"""Tasks of the micro-worlds: their splits, their seeds, and draws that go on."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from coterie.environments import encyclopedia, exchange, persona, problems
from coterie.environments.protocol import Environment
from coterie.environments.settings import split_of_key

Worlds = dict[str, tuple[Callable[..., list[Any]], Callable[[Any], str]]]
WORLDS: Worlds = {
    "exchange": (exchange.generate_tasks, exchange.canonical_key),
    "persona": (persona.generate_tasks, lambda task: persona.canonical_key(task.choices)),
    "problems": (problems.generate, problems.canonical_key),
    "problems far": (
        partial(problems.generate, parts=problems.FAR_PARTS, wording="far"),
        problems.canonical_key,
    ),
}
ENVIRONMENTS: list[type[Any]] = [
    exchange.Exchange, persona.Persona, problems.Problems, encyclopedia.EncyclopediaQuestions,
]  # fmt: skip


@pytest.mark.parametrize("name", WORLDS)
def test_splits_are_disjoint_by_construction(name: str) -> None:
    generate, key = WORLDS[name]
    keys = {split: {*map(key, generate(split, 200, 1))} for split in ("train", "heldout", "corpus")}
    assert all({split_of_key(one) for one in some} == {split} for split, some in keys.items())
    assert len(set().union(*keys.values())) == sum(map(len, keys.values()))
    assert generate("train", 30, 3)[:20] == generate("train", 20, 3) != generate("train", 20, 4)
    with pytest.raises(ValueError, match="unknown split 'test': choose one of train, heldout"):
        generate("test", 1, 0)


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_training_draws_go_on_and_held_out_ones_begin_anew(kind: type[Any]) -> None:
    environment: Environment = kind()
    train = environment.tasks("train", 20, 3)
    assert environment.tasks("train", 10, 3, after=[4, 6]) == train[10:]
    heldout = environment.tasks("heldout", 5, 3)
    assert environment.tasks("heldout", 5, 3, after=[4]) == heldout
    assert environment.tasks("heldout", 5, 4) != heldout
    ids = [task.id for task in (*train, *heldout)]
    assert len(set(ids)) == len(ids)
