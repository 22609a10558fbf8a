"""The ``encyclopedia`` micro-world: its entries, questions and experts, whether they are found, and what rows are."""

import asyncio
import json
import re
import statistics
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from coterie.environments.encyclopedia import (
    BY_NAME,
    ENTRIES,
    NAMES,
    PROMPT,
    SPLITS,
    Encyclopedia,
    Fact,
    Question,
    canonical_key,
    expert_trace,
    generate,
    make_encyclopedia,
    paths,
    user_message,
)
from coterie.environments.settings import split_of_key
from coterie.environments.workflow.plan import parse_plan
from coterie.environments.workflow.trace import TraceForm, scan, violations
from coterie.tools.retrieval import IndexSettings, Retriever, build_index
from coterie.tools.search import RetrieverSettings, RetrieverTool

FORMS: tuple[TraceForm, TraceForm] = ("parallel", "sequential")
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


def test_an_entry_says_all_its_facts_in_short_sentences() -> None:
    for one in world().entries[:200]:
        assert [fact.relation for fact in one.facts] == [
            relation.name for relation in BY_NAME.values() if relation.of == one.kind
        ]
        assert all(fact.text in one.text for fact in one.facts)
        assert one.text.count(one.name) == len(one.facts) and len(one.text) < 160


def test_facts_relate_entities_of_one_split_alone() -> None:
    by_name = world().by_name
    related = [
        (one.split, by_name[fact.value].split)
        for one in world().entries
        for fact in one.facts
        if fact.value in by_name
    ]
    assert len(related) > 3000
    assert all(first == second for first, second in related)
    assert {split for split, _ in world().names} == set(SPLITS)
    corpus = make_encyclopedia(5, {"person": 60, "town": 20, "firm": 20}, ("corpus",))
    assert {one.split for one in corpus.entries} == {"corpus"}


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


def test_questions_depend_on_the_seed_only_and_a_larger_count_extends_a_smaller_one() -> None:
    assert generate("train", 50, 1, world()) == questions("train")[:50]
    texts = {one.text for one in questions("train")[:50]}
    assert len(texts & {one.text for one in generate("train", 50, 2, world())}) < 10
    with pytest.raises(ValueError, match="heldout"):
        generate("test", 1, 0, world())  # type: ignore[arg-type]
    small = make_encyclopedia(0, {"person": 12, "town": 6, "firm": 6}, ("corpus",))
    with pytest.raises(ValueError, match="has only"):
        generate("corpus", 5000, 0, small)


def test_half_of_the_questions_compare_two_to_four_entities_and_half_are_chains() -> None:
    found = questions("heldout")
    assert Counter(one.kind for one in found) == {"compare": 300, "chain": 300}
    compared = Counter(len(one.facts) for one in found if one.kind == "compare")
    assert set(compared) == {2, 3, 4} and min(compared.values()) > 70
    hops = Counter(len(one.facts) for one in found if one.kind == "chain")
    assert set(hops) == {2, 3} and 0.15 < hops[3] / 300 < 0.35
    asked_greatest = sum(one.greatest for one in found if one.kind == "compare")
    assert 110 < asked_greatest < 190
    chains = {tuple(f.relation for f in one.facts) for one in found if one.kind == "chain"}
    assert chains == {
        tuple(relation.name for relation in path) for hops in (2, 3) for path in paths(hops)
    }


def test_questions_are_asked_and_answered() -> None:
    assert FIRST.text == "When was the first of Ada Vell, Olga Quist, Rolf Birk born?"
    assert (FIRST.answer, LAST.answer) == ("1925", "1940")
    assert LAST.text == "When was the last of Ada Vell, Olga Quist, Rolf Birk born?"
    assert CHAIN.text == "Where does the mayor of Upper Tarn live?"
    assert (CHAIN.answer, LONG.answer) == ("Old Moor", "3400")
    assert LONG.text == "How many people has the home of the mayor of Upper Tarn?"


def test_a_comparison_in_another_order_is_the_same() -> None:
    turned = Question("turned", "compare", YEARS[::-1])
    assert canonical_key(turned) == canonical_key(FIRST) != canonical_key(LAST)
    back = Question("back", "chain", CHAIN.facts[::-1])
    assert canonical_key(back) != canonical_key(CHAIN)


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


def test_in_few_comparisons_the_expert_says_what_decides() -> None:
    three = "1931 (Ada Vell), 1925 (Olga Quist), 1940 (Rolf Birk)"
    assert FIRST.conclusion == f"Of {three} the least is 1925."
    assert LAST.conclusion == f"Of {three} the greatest is 1940."
    assert CHAIN.conclusion == ""
    told = []
    for one in (one for one in questions("train", 400) if one.kind == "compare"):
        last = [expert_trace(one).messages(form)[-1] for form in FORMS]
        told.append(all(f"<think>{one.conclusion} So I know the answer." in text for text in last))
        assert told[-1] == any(one.conclusion in text for text in last)
    assert 0.15 < statistics.fmean(told) < 0.35


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
            *_, final = scan(shown).segments
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
    retriever = Retriever(IndexSettings(index=str(tmp_path / "index")))
    facts = [fact for one in questions("heldout") for fact in one.facts]
    found = retriever.search([fact.query for fact in facts], 2)
    right = [hits[0].passage.title == fact.subject for hits, fact in zip(found, facts, strict=True)]
    assert sum(right) / len(right) > 0.98
    assert all(len(hits) == 2 for hits in found), "names share words"


def test_the_tool_shows_the_entry(corpus: Path, tmp_path: Path) -> None:
    build_index(corpus, tmp_path / "index")
    fact = questions("heldout")[0].facts[0]

    async def look() -> str:
        tool = RetrieverTool(RetrieverSettings(corpus=str(tmp_path / "index"), topk=1))
        async with tool.open() as functions:
            return await functions["wiki_search"]({"query": fact.query})

    entry = world().by_name[fact.subject]
    assert asyncio.run(look()) == f'Doc 1 (Title: "{entry.name}")\n{entry.text}'


def test_the_prompt_is_short() -> None:
    assert PROMPT == "Search, then answer."
    assert user_message(CHAIN) == f"Question: {CHAIN.text}"
