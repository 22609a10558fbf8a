"""Tasks of the micro-worlds: their splits, their seeds, draws that go on, and the facts of an exchange."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from coterie.environments import encyclopedia, exchange, persona, problems, python_maths
from coterie.environments.exchange import (
    AGENTS,
    generate_tasks,
    system_prompt,
)
from coterie.environments.protocol import Environment
from coterie.environments.settings import split_of_key
from coterie.models.loading import load
from scripts.tiny.exchange import words

Worlds = dict[str, tuple[Callable[..., list[Any]], Callable[[Any], str]]]
WORLDS: Worlds = {
    "exchange": (exchange.generate_tasks, exchange.canonical_key),
    "persona": (persona.generate_tasks, lambda task: persona.canonical_key(task.choices)),
    "problems": (problems.generate, problems.canonical_key),
    "sums": (python_maths.generate, python_maths.canonical_key),
    "problems far": (
        partial(problems.generate, parts=problems.FAR_PARTS, wording="far"),
        problems.canonical_key,
    ),
}
ENVIRONMENTS: list[type[Any]] = [
    exchange.Exchange, persona.Persona, problems.Problems, python_maths.Sums, encyclopedia.EncyclopediaQuestions,
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


@pytest.fixture(scope="module")
def tokenizer():
    return load("tiny-exchange").tokenizer


def test_every_needed_fact_is_held_by_its_holder_and_by_nobody_else():
    for task in generate_tasks("heldout", 400, 2):
        assert len(task.key) == task.level
        for holder, fact in task.key:
            assert [agent for agent in AGENTS if fact in task.facts[agent]] == [holder]
        subjects = [fact.subject for agent in AGENTS for fact in task.facts[agent]]
        assert len(set(subjects)) == len(subjects)
        values = [fact.value for agent in AGENTS for fact in task.facts[agent]]
        assert values.count(task.answer) == 1


def test_two_hops_are_split_between_the_agents_in_either_order():
    tasks = generate_tasks("train", 200, 0, levels=(2,))
    orders = {tuple(holder for holder, _ in task.key) for task in tasks}
    assert orders == {("Alice", "Bob"), ("Bob", "Alice")}
    assert all(task.key[0][1].value == task.key[1][1].subject for task in tasks)


def test_a_prompt_shows_an_agent_its_own_facts_only():
    task = generate_tasks("train", 1, 0)[0]
    parts = system_prompt("Alice", "Bob", task.question, task.facts["Alice"])
    text = "".join(part.text for part in parts)
    assert text.endswith(f"Question: {task.question}")
    assert all(fact.value in text for fact in task.facts["Alice"])
    bobs = "".join(part.text for part in parts if part.visible_to("Bob"))
    assert not any(fact.subject in bobs.replace(task.question, "") for fact in task.facts["Alice"])


def test_every_word_of_the_lexicon_is_one_piece_also_inside_the_answer_marks(tokenizer):
    for word in words():
        assert len(tokenizer.encode(f"{word} and", add_special_tokens=False)) == 2
        marked = tokenizer.encode(f"is <A>{word}</A>", add_special_tokens=False)
        assert marked[-3:] == tokenizer.convert_tokens_to_ids(["<A>", f"Ġ{word}", "</A>"])
