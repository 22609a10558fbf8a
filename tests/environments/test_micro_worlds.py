"""Tasks of the micro-worlds: splits, seeds, draws that continue, and the facts of an exchange."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from types import ModuleType
from typing import Any

import pytest

from coterie.environments import exchange, persona
from coterie.environments.exchange import AGENTS, generate_tasks, system_prompt
from coterie.environments.games import babyai
from coterie.environments.plans import problems, python_maths, shop
from coterie.environments.protocol import Environment
from coterie.environments.settings import split_of_key
from coterie.environments.workflow import encyclopedia
from coterie.models.loading import load_renderer
from scripts.tiny.world import load as load_world

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
    keys = {
        split: {*map(key, generate(split, 1)[:200])} for split in ("train", "heldout", "corpus")
    }
    assert all({split_of_key(one) for one in some} == {split} for split, some in keys.items())
    assert len(set().union(*keys.values())) == sum(map(len, keys.values()))
    assert generate("train", 3)[:20] != generate("train", 4)[:20]
    with pytest.raises(ValueError, match="unknown split 'test': choose one of train, heldout"):
        generate("test", 0)[:1]


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_training_draws_go_on_and_held_out_ones_begin_anew(kind: type[Any]) -> None:
    environment: Environment = kind()
    train = environment.tasks("train", 20, 3)
    assert environment.tasks("train", 10, 3, previous_counts=[4, 6]) == train[10:]
    heldout = environment.tasks("heldout", 5, 3)
    assert environment.tasks("heldout", 5, 3, previous_counts=[4]) == heldout
    assert environment.tasks("heldout", 5, 4) != heldout
    ids = [task.id for task in (*train, *heldout)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("kind", "module", "draw"),
    [
        (exchange.Exchange, exchange, "_draw"),
        (persona.Persona, persona, "_draw"),
        (problems.Problems, problems, "_draw"),
        (python_maths.Sums, python_maths, "_draw"),
        (encyclopedia.EncyclopediaQuestions, encyclopedia, "canonical_key"),
        (shop.ShopErrands, shop, "sample_wish"),
        (babyai.BabyAI, babyai, "content_key"),
    ],
)
def test_a_draw_generates_only_its_own_tasks(
    kind: type[Any], module: ModuleType, draw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = getattr(module, draw), Counter[int]()

    def counting(*args: Any) -> Any:
        calls[step] += 1
        return original(*args)

    monkeypatch.setattr(module, draw, counting)
    environment: Environment = kind()
    for step in range(20):
        assert len(environment.tasks("train", 5, 11, [5] * step)) == 5
    early, late = (sum(calls[step] for step in part) for part in (range(10), range(10, 20)))
    assert 50 <= late < 2 * early < 1000, "3 of 10 generated tasks are in the split"


def test_every_fact_of_an_exchange_has_one_holder_and_prompts_show_no_others():
    for task in generate_tasks("heldout", 2)[:400]:
        assert len(task.key) == task.level
        for holder, fact in task.key:
            assert [agent for agent in AGENTS if fact in task.facts[agent]] == [holder]
        subjects = [fact.subject for agent in AGENTS for fact in task.facts[agent]]
        assert len(set(subjects)) == len(subjects)
        values = [fact.value for agent in AGENTS for fact in task.facts[agent]]
        assert values.count(task.answer) == 1
    tasks = generate_tasks("train", 0, levels=(2,))[:200]
    orders = {tuple(holder for holder, _ in task.key) for task in tasks}
    assert orders == {("Alice", "Bob"), ("Bob", "Alice")}
    assert all(task.key[0][1].value == task.key[1][1].subject for task in tasks)
    task = tasks[0]
    parts = system_prompt("Alice", "Bob", task.question, task.facts["Alice"])
    text = "".join(part.text for part in parts)
    assert text.endswith(f"Question: {task.question}")
    assert all(fact.value in text for fact in task.facts["Alice"])
    bobs = "".join(part.text for part in parts if part.visible_to("Bob"))
    assert not any(fact.subject in bobs.replace(task.question, "") for fact in task.facts["Alice"])


ROWS = {
    "exchange": "f340eb5b1ea19645",
    "persona": "62e2f3d6d6a78e58",
    "problems": "4a6a5c73117cec1a",
    "acts": "98a9c5e12cf21d06",
    "encyclopedia": "417f1196caa31e3b",
}
"""Hashes of the first rows of the packaged models' pre-training."""


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_those_that_the_packaged_model_learned(name: str) -> None:
    world, tokenizer = load_world(name), load_renderer(f"tiny-{name}")[0].tokenizer
    drawn = sha256()
    for row in (
        *world.skill_rows(tokenizer, 12_000, 0),
        *world.habit_rows(tokenizer, 8_000, 50_000),
    ):
        assert 0 < row.targets[0].start < len(row.ids) <= 1024
        spans = [(target.start, target.stop) for target in row.targets]
        drawn.update(repr((row.ids, spans)).encode())
    assert drawn.hexdigest()[:16] == ROWS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_the_tokenizer_of_its_texts_is_the_packaged_one(name: str) -> None:
    packaged = load_renderer(f"tiny-{name}")[0].tokenizer
    built = load_world(name).build_tokenizer(1200, 0)
    assert built.backend_tokenizer.to_str() == packaged.backend_tokenizer.to_str()
