"""The ``encyclopedia`` micro-world: entries, questions, experts, search, and the tiny model."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from coterie.environments.settings import split_of_key
from coterie.environments.workflow.encyclopedia import (
    BY_NAME,
    SPLITS,
    Encyclopedia,
    Fact,
    Question,
    canonical_key,
    expert_trace,
    generate,
    make_encyclopedia,
)
from coterie.environments.workflow.plan_graph import parse_plan, scan, violations
from coterie.models.loading import load_renderer
from scripts.tiny.encyclopedia import FORMS, TAGS, Block, trace_row
from tests.helpers.play_scripts import complete_greedily

YEARS = (
    Fact("Ada Vell", "birth", "1931"),
    Fact("Olga Quist", "birth", "1925"),
    Fact("Rolf Birk", "birth", "1940"),
)
HOPS = (
    Fact("Upper Tarn", "mayor", "Ada Vell"),
    Fact("Ada Vell", "home", "Old Moor"),
    Fact("Old Moor", "size", "3400"),
)
FIRST = Question("first", "compare", YEARS)
LONG = Question("long", "chain", HOPS)


@cache
def world() -> Encyclopedia:
    return make_encyclopedia(0)


@cache
def questions(split: Any, count: int = 600) -> list[Question]:
    return generate(split, 1, world())[:count]


def test_an_answer_depends_on_entities_of_its_split_alone() -> None:
    keys: list[str] = []
    for split in SPLITS:
        own = questions(split)
        names = [fact.subject for one in own for fact in one.facts]
        names += [one.answer for one in own if one.answer in world().by_name]
        assert {split_of_key(name) for name in names} == {split}
        keys += map(canonical_key, own)
        assert len({one.text for one in own}) == len(own)
    assert len(set(keys)) == len(keys), "no question comes twice"


def value_of(name: str, relation: str) -> str:
    """What the entry of an entity says, read from its text."""
    before, after = BY_NAME[relation].sentence.format(s=name, v="\0").split("\0")
    match = re.search(re.escape(before) + "(.+?)" + re.escape(after), world().by_name[name].text)
    assert match
    return match[1]


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


def test_the_parallel_form_searches_a_level_at_once_and_the_sequential_one_by_one() -> None:
    both = expert_trace(FIRST)
    first, last = both.messages("parallel")
    queries = "birth of Ada Vell|birth of Olga Quist|birth of Rolf Birk"
    assert first.endswith(f"<wiki_search>{queries}</wiki_search>")
    assert last == (
        "<think>Ada Vell was born in 1931. Olga Quist was born in 1925. Rolf Birk was born in 1940. "
        "So I know the answer.</think>\n<answer>1925</answer>"
    )
    for question, form in ((FIRST, "sequential"), (LONG, "sequential"), (LONG, "parallel")):
        messages = expert_trace(question).messages(form)  # type: ignore[arg-type]
        calls = [one.partition("<wiki_search>")[2] for one in messages]
        assert calls == [*(f"{fact.query}</wiki_search>" for fact in question.facts), ""]


def test_experts_plan_the_levels_keep_to_the_rules_and_end_with_the_answer() -> None:
    for one in questions("train", 200):
        trace = expert_trace(one)
        shape, count = trace.plan.shape, len(one.facts)
        wide = one.kind == "compare"
        assert (shape.levels, shape.width) == ((1, count) if wide else (count, 1))
        assert parse_plan(trace.messages("parallel")[0]) == trace.plan
        for form in FORMS:
            shown = "\n<observation>\n-\n</observation>\n".join(trace.messages(form))
            assert violations(shown, "mhqa") == []
            *_, final = scan(shown)[0]
            assert (final.name, final.body) == ("answer", one.answer)
    assert expert_trace(LONG).plan.tasks[1].text == "home of {T1}"


def test_the_packaged_model_searches_once_and_answers(tmp_path: Path) -> None:
    """In an encyclopedia that it was not trained on."""
    model = "tiny-encyclopedia"
    tokenizer, block = load_renderer(model)[0].tokenizer, Block(tmp_path, 123_456)
    lookups = block.questions(80, ("chain",), hops=(1,))
    rows = [trace_row(tokenizer, one, block.said(one, "sequential")) for one in lookups]
    for turn, least in ((0, 0.9), (-1, 0.8)):
        starts = [row.targets[turn].start for row in rows]
        prompts = [row.ids[:start] for row, start in zip(rows, starts, strict=True)]
        completions = complete_greedily(model, prompts, 64, TAGS.stop)
        right = [
            one.ids == row.ids[start : start + len(one.ids)]
            for row, start, one in zip(rows, starts, completions, strict=True)
        ]
        assert sum(right) / len(right) > least
