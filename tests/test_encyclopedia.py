"""The ``encyclopedia`` micro-world: its entries, questions, experts and search, and the rows of its tiny model."""

import asyncio
import json
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.encyclopedia import (
    BY_NAME,
    ENTRIES,
    NAMES,
    SPLITS,
    Encyclopedia,
    Fact,
    Question,
    canonical_key,
    expert_trace,
    generate,
    make_encyclopedia,
)
from coterie.environments.settings import split_of_key
from coterie.environments.workflow.plan import parse_plan
from coterie.environments.workflow.trace import scan, violations
from coterie.models.loading import load, load_renderer
from coterie.record.rows import Row
from coterie.tools.retrieval import Retriever, build_index
from scripts.tiny.encyclopedia import FORMS, TAGS, Block, trace_row

YEARS = (
    Fact("Ada Vell", "birth", "1931"),
    Fact("Olga Quist", "birth", "1925"),
    Fact("Rolf Birk", "birth", "1940"),
)
MAYOR = Fact("Upper Tarn", "mayor", "Ada Vell")
HOME = Fact("Ada Vell", "home", "Old Moor")
SIZE = Fact("Old Moor", "size", "3400")
FIRST = Question("first", "compare", YEARS)
LAST = Question("last", "compare", YEARS, greatest=True)
CHAIN = Question("chain", "chain", (MAYOR, HOME))
LONG = Question("long", "chain", (MAYOR, HOME, SIZE))


@cache
def world() -> Encyclopedia:
    return make_encyclopedia(0)


@cache
def questions(split: Any, count: int = 600) -> list[Question]:
    return generate(split, count, 1, world())


# -- entries ---------------------------------------------------------------------------------------


def test_an_encyclopedia_depends_on_its_seed_only_and_has_so_many_entries() -> None:
    assert world() == make_encyclopedia(0)
    assert world() != make_encyclopedia(1)
    assert Counter(one.kind for one in world().entries) == dict(ENTRIES)
    assert len(world().by_name) == len(world().entries), "no name is used twice"
    words = [word for first, second in NAMES.values() for word in (*first, *second)]
    assert all(re.fullmatch("[A-Z][a-z]+", word) for word in words)


# -- questions -------------------------------------------------------------------------------------


def test_what_an_answer_depends_on_is_of_its_split_alone() -> None:
    entities: dict[str, set[str]] = {}
    keys: dict[str, set[str]] = {}
    for split in SPLITS:
        found = questions(split)
        by_name = world().by_name
        read = [fact.subject for one in found for fact in one.facts]
        read += [one.answer for one in found if one.answer in by_name]
        assert {split_of_key(name) for name in read} == {split}
        entities[split], keys[split] = set(read), set(map(canonical_key, found))
        assert len(keys[split]) == len(found), "no question comes twice"
        assert len({one.text for one in found}) == len(found)
    for first, second in (("train", "heldout"), ("train", "corpus"), ("heldout", "corpus")):
        assert not entities[first] & entities[second]
        assert not keys[first] & keys[second]


def value_of(name: str, relation: str) -> str:
    """What the entry of an entity says, read from its text."""
    before, after = BY_NAME[relation].sentence.format(s=name, v="\0").split("\0")
    found = re.search(re.escape(before) + "(.+?)" + re.escape(after), world().by_name[name].text)
    assert found
    return found[1]


def test_answers_follow_from_the_texts_of_entries() -> None:
    for one in questions("heldout", 200):
        relations = [fact.relation for fact in one.facts]
        if one.kind == "compare":
            names = re.findall(r"[A-Z][a-z]+ [A-Z][a-z]+(?=,| born| founded|\?)", one.text)
            values = {value_of(name, relations[0]) for name in names}
            assert len(values) == len(names) == len(one.facts)
            greatest = re.search("last|largest", one.text)
            right = (max if greatest else min)(values, key=int)
        else:
            (name,) = re.findall(r"[A-Z][a-z]+ [A-Z][a-z]+", one.text)
            passed = [name]
            for relation in relations:
                passed.append(value_of(passed[-1], relation))
            assert len(set(passed)) == len(relations) + 1, "a chain leads on to something new"
            right = passed[-1]
        assert one.answer == right


# -- experts ---------------------------------------------------------------------------------------


def test_the_parallel_form_searches_a_level_at_once_and_the_sequential_one_query_after_query() -> (
    None
):
    both = expert_trace(FIRST)
    first, *between, last = both.messages("parallel")
    assert first.endswith(
        "<wiki_search>birth of Ada Vell|birth of Olga Quist|birth of Rolf Birk</wiki_search>"
    )
    assert not between
    assert last == (
        "<think>Ada Vell was born in 1931. Olga Quist was born in 1925. Rolf Birk was born in 1940. "
        "So I know the answer.</think>\n<answer>1925</answer>"
    )
    calls = [one.partition("<wiki_search>")[2] for one in both.messages("sequential")]
    assert calls == [*(f"{fact.query}</wiki_search>" for fact in YEARS), ""]
    chain = expert_trace(LONG)
    for form in FORMS:
        calls = [one.partition("<wiki_search>")[2] for one in chain.messages(form)]
        assert calls == [*(f"{fact.query}</wiki_search>" for fact in LONG.facts), ""]


def test_plans_of_comparisons_have_one_level_and_those_of_chains_one_task_in_each() -> None:
    for one in questions("train", 200):
        trace = expert_trace(one)
        shape, count = trace.plan.shape, len(one.facts)
        wide = one.kind == "compare"
        assert (shape.levels, shape.width) == ((1, count) if wide else (count, 1))
        assert parse_plan(trace.messages("parallel")[0]) == trace.plan
    assert expert_trace(LONG).plan.tasks[1].text == "home of {T1}"


def test_trajectories_of_experts_keep_to_the_rules_and_end_with_the_answer() -> None:
    for one in questions("train", 60):
        for form in FORMS:
            shown = "\n<observation>\n-\n</observation>\n".join(expert_trace(one).messages(form))
            assert violations(shown, "mhqa") == []
            *_, final = scan(shown)[0]
            assert (final.name, final.body) == ("answer", one.answer)


# -- search ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("encyclopedia") / "passages.jsonl"
    assert world().write(file) == len(world().entries)
    return file


def test_the_first_passage_that_bm25_finds_is_the_entry(corpus: Path, tmp_path: Path) -> None:
    row = json.loads(corpus.read_text().splitlines()[7])
    entry = world().entries[7]
    assert row == {"id": "7", "contents": f'"{entry.name}"\n{entry.text}'}
    build_index(corpus, tmp_path / "index")
    retriever = Retriever(tmp_path / "index")
    facts = [fact for one in questions("heldout") for fact in one.facts]
    found = retriever.search([fact.query for fact in facts], 2)
    right = [hits[0][0].title == fact.subject for hits, fact in zip(found, facts, strict=True)]
    assert sum(right) / len(right) > 0.98
    assert all(len(hits) == 2 for hits in found), "names share words"


MODEL = "tiny-encyclopedia"


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return load_renderer(MODEL)[0].tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("block")


@pytest.fixture(scope="module")
def block(folder: Path) -> Block:
    return Block(folder, 5)


def right(model: str, asked_in: Sequence[Row], turn: int) -> list[bool]:
    """Whether a message of each row is what a model says, greedily, after all that stands before it."""
    loaded = load(model)
    engine = InProcessEngine(loaded, policy=model, version="0")
    sampling = Sampling(0.0, 1.0, 64, TAGS.stop, 60.0)

    async def say() -> list[bool]:
        targets = [row.targets[turn] for row in asked_in]
        prompts = [row.ids[: one.start] for row, one in zip(asked_in, targets, strict=True)]
        found = await asyncio.gather(*(engine.sample(one, [0], sampling) for one in prompts))
        return [
            completion.ids == row.ids[one.start : one.start + len(completion.ids)]
            for row, one, (completion,) in zip(asked_in, targets, found, strict=True)
        ]

    return asyncio.run(say())


def lookups(count: int = 80) -> list[Row]:
    """Questions that take one search, in an encyclopedia that no model was trained on."""
    with tempfile.TemporaryDirectory() as name:
        block = Block(Path(name), 123_456)
        found = block.questions(count, ("chain",), hops=(1,))
        return [trace_row(tokenizer(), one, block.said(one, "sequential")) for one in found]


def share_of_right_calls(model: str) -> float:
    """Greedily, of questions that take one search."""
    return statistics.fmean(right(model, lookups(), 0))


def test_the_packaged_model_searches_once_and_answers() -> None:
    assert share_of_right_calls(MODEL) > 0.9
    assert statistics.fmean(right(MODEL, lookups(), -1)) > 0.8
