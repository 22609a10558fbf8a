"""Sets of multi-hop questions: gold facts, decompositions and passages in upstream's own formats, and their corpus."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from coterie.datasets.answers import AnswerRow, MusiqueRow
from coterie.datasets.catalogue import find
from coterie.datasets.files import read_rows
from coterie.datasets.load import (
    Rows,
    dataset_type,
    distinct_passages,
    load,
    load_rows,
    rows_of,
    write_passages,
)
from coterie.datasets.rows import HotpotRow, TriviaRow, TwoWikiRow
from coterie.errors import UserError
from coterie.progress import Silent
from tests.conftest import Cli, refused
from tests.row_files import jsonl
from tests.test_data import SHARED, real_rows

CONTEXT = [
    ["Emma", ["A novel.", "By Jane Austen."]],
    ["Oslo", ["A city."]],
    ["Jane Austen", ["Born in Steventon."]],
]
TWO_WIKI = {
    "_id": "2w", "type": "compositional", "question": "Where was the author of Emma born?", "answer": "Steventon",
    "context": CONTEXT, "supporting_facts": [["Emma", 1], ["Jane Austen", 0]],
    "evidences": [["Emma", "author", "Jane Austen"], ["Jane Austen", "place of birth", "Steventon"]],
}  # fmt: skip
MUSIQUE = {
    "id": "2hop__1_2", "question": "Where was the author of Emma born?", "answer": "Steventon",
    "answer_aliases": ["Steventon, Hampshire", "Steventon"], "answerable": True,
    "paragraphs": [
        {"idx": 1, "title": "Jane Austen", "paragraph_text": "Born in Steventon.", "is_supporting": True},
        {"idx": 0, "title": "Oslo", "paragraph_text": "A city.", "is_supporting": False},
        {"idx": 2, "title": "Emma", "paragraph_text": "A novel.\nBy Jane Austen.", "is_supporting": True},
    ],
    "question_decomposition": [
        {"id": 7, "question": "Emma >> author", "answer": "Jane Austen", "paragraph_support_idx": 2},
        {"id": 8, "question": "#1 >> place of birth", "answer": "Steventon", "paragraph_support_idx": 1},
    ],
}  # fmt: skip


def one(name: str, file: Path) -> Any:
    [row] = read_rows(file, find(name).row)
    assert isinstance(row, find(name).row)
    return row


# What an expert needs


def test_a_row_of_2wiki_keeps_its_type_and_its_evidences(tmp_path: Path) -> None:
    row = one("2wiki", jsonl(tmp_path / "a.jsonl", TWO_WIKI))
    assert isinstance(row, TwoWikiRow) and row.type == "compositional"
    assert [(e.subject, e.relation, e.object) for e in row.evidences] == [
        ("Emma", "author", "Jane Austen"),
        ("Jane Austen", "place of birth", "Steventon"),
    ]
    assert [fact.title for fact in row.supporting_facts] == ["Emma", "Jane Austen"]
    texts = {key: json.dumps(TWO_WIKI[key]) for key in ("context", "supporting_facts", "evidences")}
    parquet.write_table(pyarrow.Table.from_pylist([TWO_WIKI | texts]), tmp_path / "a.parquet")
    assert one("2wiki", tmp_path / "a.parquet") == row
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert one("2wiki", tmp_path / "b.jsonl") == row


def test_an_evidence_that_is_no_triple_is_named(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", TWO_WIKI, TWO_WIKI | {"evidences": [["Emma", "author"]]})
    with pytest.raises(UserError, match=r"a.jsonl, line 2 is broken: evidences.0"):
        list(read_rows(file, TwoWikiRow))


def test_passages_are_all_paragraphs_and_the_facts_titles_are_gold(tmp_path: Path) -> None:
    wiki = one("2wiki", jsonl(tmp_path / "a.jsonl", TWO_WIKI))
    assert [(p.title, p.text, p.gold) for p in wiki.passages] == [
        ("Emma", "A novel. By Jane Austen.", True),
        ("Oslo", "A city.", False),
        ("Jane Austen", "Born in Steventon.", True),
    ]
    hotpot = TWO_WIKI | {"context": [["Emma", ["A novel.", " By Jane Austen."]]], "level": "hard"}
    row = one("hotpot_qa", jsonl(tmp_path / "b.jsonl", hotpot))
    assert isinstance(row, HotpotRow) and (row.type, row.level) == ("compositional", "hard")
    assert [p.text for p in row.passages] == ["A novel. By Jane Austen."]


def test_a_row_whose_paragraphs_were_left_out_is_counted_and_not_used(tmp_path: Path) -> None:
    bare = {key: value for key, value in TWO_WIKI.items() if key != "context"} | {"question": "?!"}
    jsonl(tmp_path / "train.jsonl", TWO_WIKI, bare)
    jsonl(tmp_path / "dev.jsonl", TWO_WIKI | {"question": "Another?"})
    assert load("2wiki", tmp_path).left_out == {"has no paragraphs": 1}


def test_trivias_snippets_keep_the_titles_of_their_pages(tmp_path: Path) -> None:
    row = {
        "question": "Which planet?", "question_id": "tc_1", "answer": {"value": "Saturn", "aliases": ["Saturn"]},
        "search_results": {"description": ["Rings of SATURN.", "", "It is big."], "title": ["Rings", "None", "Big"]},
    }  # fmt: skip
    read = one("trivia_qa", jsonl(tmp_path / "a.jsonl", row))
    assert isinstance(read, TriviaRow) and read.titles == ("Rings", "Big")
    assert [(p.title, p.gold) for p in read.passages] == [("Rings", True), ("Big", False)]
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    assert one("trivia_qa", tmp_path / "a.parquet") == read
    (tmp_path / "b.jsonl").write_text(read.model_dump_json() + "\n")
    assert one("trivia_qa", tmp_path / "b.jsonl") == read


def test_musique_keeps_its_hops_and_paragraphs_in_upstreams_numbering(tmp_path: Path) -> None:
    row = one("musique", jsonl(tmp_path / "a.jsonl", MUSIQUE))
    assert isinstance(row, MusiqueRow)
    assert row.answers == ("Steventon", "Steventon, Hampshire", "Steventon")
    assert [
        (hop.question, hop.answer, row.paragraphs[hop.paragraph].title) for hop in row.hops
    ] == [
        ("Emma >> author", "Jane Austen", "Emma"),
        ("#1 >> place of birth", "Steventon", "Jane Austen"),
    ]
    assert [p.gold for p in row.passages] == [False, True, True]
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert one("musique", tmp_path / "b.jsonl") == row


@pytest.mark.parametrize(
    "change, said",
    [
        ({"paragraphs": MUSIQUE["paragraphs"][:1]}, "have a gap"),
        ({"question_decomposition": [{"question": "q", "answer": "a", "paragraph_support_idx": 3}]}, "hop 1 refers to"),
        ({"question_decomposition": [{"question": " ", "answer": "a"}]}, "hops.0.question"),
        ({"answer": None}, "answer: is missing"),
        ({"question": 7}, "question"),
    ],
)  # fmt: skip
def test_a_broken_row_of_musique_is_named_by_its_line(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    file = jsonl(tmp_path / "a.jsonl", MUSIQUE, MUSIQUE | change)
    with pytest.raises(UserError, match=r"a\.jsonl, line 2 is broken") as error:
        list(read_rows(file, MusiqueRow))
    assert said in error.value.what


def test_what_musiques_paragraphs_do_not_answer_is_left_out(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", MUSIQUE, MUSIQUE | {"id": "x", "answerable": False})
    flaws = [row.flaw for row in read_rows(file, MusiqueRow)]
    assert flaws == ["", "can't be answered by its paragraphs"]


# Questions with several answers


@pytest.mark.parametrize(
    "raw",
    [
        {"id": "test_0", "question": "Who?", "golden_answers": ["Ann", "A. B."]},
        {"question": "Who?", "answer": ["Ann", "A. B."], "data_source": "nq"},
        {"id": 0, "Question": "Who?", "answer": ["Ann", "A. B.", ""]},
        {"id": 3, "question": "Who?", "possible_answers": '["Ann", "A. B."]', "obj": "Ann"},
        {"question": "Who?", "answer": "Ann", "aliases": ["A. B."]},
        {"extra_info": {"index": "nq-7", "question": "Who?", "answer": ["Ann", "A. B."]}},
    ],
)
def test_all_published_forms_of_an_answer_are_read(raw: dict[str, Any], tmp_path: Path) -> None:
    row = one("nq", jsonl(tmp_path / "a.jsonl", raw))
    assert (row.question, row.answers) == ("Who?", ("Ann", "A. B."))
    index = raw.get("extra_info", {}).get("index")
    assert row.id == str(raw.get("id", index or row.key))
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert one("nq", tmp_path / "b.jsonl") == row


def test_a_table_of_text_is_read_and_its_broken_row_named(tmp_path: Path) -> None:
    file = tmp_path / "test.tsv"
    file.write_text('id\tquestion\tpossible_answers\n4\tWho?\t"[""Ann"", ""A""]"\n')
    assert one("popqa", file).answers == ("Ann", "A")
    file.write_text("id\tquestion\tanswer\n4\tWho?\tAnn\n5\tWho?\tAnn\tBob\n")
    with pytest.raises(UserError, match=r"test.tsv, row 2 is broken: it has more cells"):
        list(read_rows(file, AnswerRow))


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "row", "answer"),
    [
        ("test.tsv", '4\tWho?\t"Ann, ""A"""', 'Ann, "A"'),
        ("test.tsv", '4\tWho?\t"a\tb"', "a\tb"),
        ("test.tsv", '4\tWho?\t"Ann" she said', '"Ann" she said'),
        ("test.tsv", '4\tWho?\t"Ann', '"Ann'),
        ("test.csv", '4,Who?,"Ann, ""A"""', 'Ann, "A"'),
    ],
)
def test_quotes_in_a_tsv_file_are_text_unless_they_are_around_whole_cells(
    name: str, row: str, answer: str, ending: str, tmp_path: Path
) -> None:
    sign = "\t" if name == "test.tsv" else ","
    text = f"id{sign}question{sign}answer\n{row}\n5{sign}Why?{sign}Bob\n".encode()
    file = tmp_path / (name + ending)
    file.write_bytes(gzip.compress(text) if ending else text)
    first, second = read_rows(file, AnswerRow)
    assert (first.answers, second.answers) == ((answer,), ("Bob",))


def test_a_set_for_evaluation_alone_takes_one_file_and_trains_on_nothing(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "test.jsonl", {"question": "Who?", "answer": "Ann"})
    assert find("bamboogle").splits == ("heldout",)
    settings = dataset_type("bamboogle").model_validate({"name": "bamboogle", "source": str(file)})
    rows = Rows(settings)
    assert [row.answer for row in rows.split("heldout")] == ["Ann"] and rows.content()
    with pytest.raises(UserError, match="for evaluation only"):
        rows.split("train")
    with pytest.raises(UserError, match="for evaluation only"):
        load_rows("bamboogle", "train", file)


def test_a_set_without_packaged_rows_says_where_its_files_are() -> None:
    with pytest.raises(UserError, match="coterie has no packaged rows of aime24") as error:
        load_rows("aime24", "heldout", "sample")
    assert "https://huggingface.co/datasets/HuggingFaceH4/aime_2024" in error.value.todo


# The corpus


def test_a_passage_of_several_questions_is_in_the_corpus_once(tmp_path: Path, cli: Cli) -> None:
    other = TWO_WIKI | {
        "_id": "3w",
        "context": [["Oslo", ["A  city."]], ["Oslo", ["A town."]], *CONTEXT[:1]],
    }
    file, out = jsonl(tmp_path / "dev.jsonl", TWO_WIKI, other), tmp_path / "passages.jsonl"
    said = cli("data", "passages", "2wiki", "--source", file, "--out", out)
    assert said.out.strip() == str(out)
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"id": "0", "contents": '"Emma"\nA novel. By Jane Austen.'},
        {"id": "1", "contents": '"Oslo"\nA city.'},
        {"id": "2", "contents": '"Jane Austen"\nBorn in Steventon.'},
        {"id": "3", "contents": '"Oslo"\nA town.'},
    ]
    assert "already exists" in refused(
        cli, "data", "passages", "2wiki", "--source", file, "--out", out
    )


def test_the_corpus_can_be_indexed_and_searched(tmp_path: Path) -> None:
    from coterie.tools.retrieval import read_rows as read_passages

    out = tmp_path / "passages.jsonl"
    count = write_passages(distinct_passages(rows_of("musique", ["sample"])), out)
    found = [passage for _, passage in read_passages(out, Silent())]
    rows = [
        row for split in find("musique").splits for row in load_rows("musique", split, "sample")
    ]
    assert len(found) == count == len(set(distinct_passages(rows)))
    golds = {" ".join(p.text.split()) for row in rows for p in row.passages if p.gold}
    assert golds <= {one.text for one in found} and all(one.title for one in found)


def test_rows_without_passages_make_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no passages to search"):
        write_passages(distinct_passages(rows_of("nq", ["sample"])), tmp_path / "passages.jsonl")
    assert not list(tmp_path.glob("passages*"))


@real_rows
@pytest.mark.parametrize(
    "name, file, count",
    [
        ("musique", "musique/dev_200_with_paragraphs.jsonl", 140),
        ("musique", "musique/dev_qa.jsonl", 2417),
        ("nq", "nq/test.jsonl", 3000),
        ("popqa", "popqa/test_sample.json", 500),
        ("bamboogle", "bamboogle/test.jsonl", 100),
        ("2wiki", "2wikimultihopqa/dev_200_with_context.jsonl", 124),
        ("hotpot_qa", "hotpotqa/dev_distractor_200_with_context.jsonl", 140),
    ],
)
def test_real_rows_are_read_and_their_gold_is_among_their_passages(
    name: str, file: str, count: int
) -> None:
    rows = [row for row in read_rows(SHARED / file, find(name).row) if row.usable]
    assert len(rows) == count
    read = [row for row in rows if row.passages]
    assert len(read) == (count if "_with_" in file else 0)
    assert all(any(p.gold for p in row.passages) for row in read)
