"""Actions of questions over many pages (search, retrieval, answers of readers), and of web pages."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from coterie.datasets.plans import PageElement
from coterie.engines.chat_model import Answer
from coterie.engines.endpoint import Utterance
from coterie.environments.plans.domains import (
    ChatReader,
    Corpus,
    FewPages,
    QuestionsExecutor,
    extract_answer,
)
from coterie.tools.actions.executors import (
    CANDIDATES,
    Executed,
    Gold,
    choose,
    score,
)
from coterie.tools.actions.expressions import Failed
from coterie.tools.actions.grammar import parse
from coterie.tools.retrieval import build_index
from tests.helpers.write_rows import write_jsonl

OSLO = "Oslo is the capital of Norway.\nThe city was founded around 1040 by Harald Hardrada.\n\nIt has 709,037 people."
BERGEN = "Bergen is a city in western Norway.\nIts harbour was founded by Olaf Kyrre in 1070."
ICE = "A glacier is a body of dense ice that moves under its own weight.\nGlaciers do not form on warm plains."
QUILL = "Ada Quill was a fictional painter. She was born in Bergen on 4 May 1881."
PAGES = [("Oslo", OSLO), ("Bergen", BERGEN), ("Glacier", ICE), ("Ada Quill", QUILL)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    pytest.importorskip("bm25s")
    folder = tmp_path_factory.mktemp("pages")
    rows = write_jsonl(
        folder / "pages.jsonl", *({"title": title, "text": text} for title, text in PAGES)
    )
    assert build_index(rows, folder / "index") == 8
    return Corpus(folder / "index")


def run(corpus: Corpus, line: str, values: Any = None, **more: Any) -> Executed:
    parsed = parse(line)
    assert parsed.ok, parsed.problems
    return asyncio.run(QuestionsExecutor(corpus, **more).run(parsed.actions, values or {}))


def test_a_search_gives_the_best_paragraphs_first(corpus: Corpus) -> None:
    paragraphs = corpus.search("city founded Norway", 3)
    assert paragraphs[0].title in ("Oslo", "Bergen") and len(paragraphs) == 3
    assert corpus.search("zebra", 3) == [] and corpus.search("", 3) == []
    assert [one.title for one in corpus.search("founded", 5, pages=[1])] == ["Bergen"]
    pages = FewPages([("Oslo", "A town."), ("Lima", "A town by the sea."), ("Sea", "Salt.")])
    assert [one.title for one in pages.pages("salt sea", 5)] == ["Sea", "Lima"]
    assert [one.title for one in pages.search("salt sea", 1, pages=[0, 1])] == ["Lima"]
    assert len(pages) == 3 and pages.first(2).title == "Sea" and pages.pages("zebra", 3) == []


def test_pages_then_paragraphs_then_an_answer(corpus: Corpus) -> None:
    line = (
        "R1 = KnowledgeQuery(Oslo); R2 = ParagraphRetrieve(R1, Query: when founded, and by whom); "
        "R3 = QA([R2], Question: Who founded the city?); R4 = QA([R2], Question: In what year was it founded?)"
    )
    result = run(corpus, line)
    assert result.error is None
    assert result.values["R1"] == "[0] Oslo | Oslo is the capital of Norway."
    assert result.values["R2"].splitlines()[0].startswith("[1] Oslo | The city was founded")
    assert "Bergen" not in result.values["R2"], "only the pages of R1 are searched"
    assert (result.values["R3"], result.answer) == ("Harald Hardrada", "1040")
    earlier = run(corpus, "R1 = KnowledgeQuery(Ada Quill)").values
    line = (
        "R2 = ParagraphRetrieve(R1, Query: zebra); R3 = QA([R2, R1], Question: When was she born?)"
    )
    result = run(corpus, line, earlier)
    assert result.values["R2"].startswith("[7] Ada Quill | "), "no word matches: the first one"
    assert result.answer == "4 May 1881"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("R1 = KnowledgeQuery(zebra)", "nothing is found"),
        ("R1 = ParagraphRetrieve(R9, Query: x)", "what it is given has no pages"),
        ("R1 = QA([R8], Question: x)", "R8 has no value"),
        ("R1 = QA([R9], Question: Why is zebra?)", "no answer is in what it is given"),
        ("R1 = QA([R9])", "it is given no question"),
        ("R1 = Foo(x)", "there is no such tool"),
        ("R1 = Calculator(1 / 0)", "divided by 0"),
        ("R1 = Code(1)", "no sandbox"),
    ],
)
def test_reasons_of_failures(corpus: Corpus, line: str, why: str) -> None:
    result = run(corpus, line, {"R9": "[999] some\nother text"})
    assert result.answer is None and why in (result.error or "")


def test_questions_and_searches_name_earlier_answers(corpus: Corpus) -> None:
    class Recorder:
        name = "endpoint:recorded"

        async def ask(self, chat: Sequence[Utterance], seed: int) -> Answer:
            prompts.append(chat[-1].text)
            return Answer("\nAnswer: Oslo\nbecause", False)

    prompts: list[str] = []
    values = {"R1": "1070", "R2": "1,040", "R3": "Ada Quill", "R4": "[0] Oslo | x"}
    assert run(corpus, "R5 = Calculator(R1 + 30)", values).answer == "1100"
    assert run(corpus, "R5 = QA([R1, R2], Question: Is R1 later than R2?)", values).answer == "yes"
    assert run(corpus, "R5 = QA([R1, R2], Question: Was R1 before R2?)", values).answer == "no"
    assert "[7] Ada Quill" in (run(corpus, "R5 = KnowledgeQuery(R3)", values).answer or "")
    line = "R5 = QA([R4], Question: Is R3 in R4, then?)"
    assert run(corpus, line, values, reader=ChatReader(Recorder())).answer == "Oslo"
    assert prompts == ["Passages:\nOslo | x\n\nQuestion: Is Ada Quill in R4, then?"]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Is a glacier made of dense ice?", "yes"),
        ("Does a glacier move under its own weight?", "yes"),
        ("Do glaciers form on warm plains?", "no"),
        ("Is a glacier a kind of bird that flies?", "no"),
        ("How many people live there?", "709,037"),
        ("By whom was the city founded?", "Harald Hardrada"),
    ],
)
def test_the_reader_of_rules_reads_plain_sentences(question: str, answer: str) -> None:
    passages = [text for _, text in PAGES]
    assert extract_answer(question, passages) == answer
    assert extract_answer(question, []) == extract_answer("?", passages) == ""


# -- web pages ----------------------------------------------------------------------------------

PAGE = (
    PageElement("11", "a", "Sign in"),
    PageElement("12", "button", "Search flights"),
    PageElement("13", "input", "From airport"),
    PageElement("14", "label", "From airport"),
    PageElement("15", "select", "Cabin class"),
    PageElement("16", "a", "Search hotels"),
)
OTHERS = tuple(PageElement(str(n), "a", "other") for n in range(CANDIDATES))
CITY = (
    PageElement("1", "label", "City"),
    PageElement("2", "input", "City"),
    PageElement("3", "label", "City"),
)


@pytest.mark.parametrize(
    ("call", "page", "operation"),
    [
        ("CLICK(Env, QUERY: search for flights)", PAGE, "CLICK [12]"),
        ("CLICK(Env, QUERY: serch flihgts)", PAGE, "CLICK [12]"),
        ("TYPE(Env, QUERY: from airport, TEXT: Oslo, Norway)", PAGE, "TYPE [13] Oslo, Norway"),
        ("SELECT(Env, QUERY: the cabin, TEXT: Business)", PAGE, "SELECT [15] Business"),
        ("TYPE(Env, QUERY: city, TEXT: x)", CITY, "TYPE [2] x"),
        ("CLICK(Env, QUERY: city)", CITY, "CLICK [1]"),
        ("CLICK(Env, QUERY: sign in)", (*OTHERS[1:], *PAGE), "CLICK [11]"),
        ("CLICK(Env, QUERY: sign in)", (*OTHERS, *PAGE), "no element of the page fits"),
        ("CLICK(Env, QUERY: sign in)", (), "no element of the page fits"),
        ("CLICK(Env, QUERY: zzz qqq)", PAGE, "no element of the page fits"),
        ("CLICK(Env, search flights)", PAGE, "it names no element"),
        ("TYPE(Env, QUERY: from airport)", PAGE, "it names no text"),
        ("HOVER(Env, QUERY: sign in)", PAGE, "there is no such tool"),
    ],
)
def test_the_element_whose_text_fits_best_is_chosen(
    call: str, page: tuple[PageElement, ...], operation: str
) -> None:
    (action,) = parse(f"R1 = {call}").actions
    try:
        done = choose(action, page)
    except Failed as error:
        done = str(error)
    assert done == operation


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        ("TYPE [13] oslo  NORWAY", (True, True)),
        ("TYPE [23] Oslo Norway", (True, True)),
        ("TYPE [14] Oslo Norway", (False, True)),
        ("TYPE [13] Oslo", (True, False)),
        ("SELECT [13] Oslo Norway", (True, False)),
        ("CLICK [13]", (True, False)),
        *((text, (False, False)) for text in ("", "CLICK", "CLICK 13", "HOVER [13]", "CLICK [1]3")),
    ],
)
def test_a_step_is_right_with_element_kind_and_value(
    done: str, expected: tuple[bool, bool]
) -> None:
    assert score(done, Gold(frozenset({"13", "23"}), "TYPE", "Oslo Norway")) == expected
