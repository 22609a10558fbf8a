"""What an expert needs of multi-hop questions, tables of text, and passages as a corpus to search."""

import gzip
import json
from pathlib import Path

import pytest

from coterie.datasets.catalogue import find
from coterie.datasets.files import read_rows
from coterie.datasets.load import distinct_passages, load_rows, rows_of, write_passages
from coterie.datasets.rows import AnswerRow, HotpotRow, MusiqueRow, TriviaRow, TwoWikiRow
from coterie.errors import UserError
from coterie.progress import Silent
from tests.conftest import Cli, refused
from tests.row_files import jsonl
from tests.test_data_formats import RAW

WIKI = RAW["2wiki"]


def test_a_row_of_2wiki_keeps_its_evidences_and_its_passages() -> None:
    row = TwoWikiRow.model_validate(WIKI)
    assert [(e.subject, e.relation, e.object) for e in row.evidences] == [
        ("Emma", "author", "Jane Austen"),
        ("Jane Austen", "place of birth", "Steventon"),
    ]
    assert [fact.title for fact in row.supporting_facts] == ["Emma", "Jane Austen"]
    oslo = WIKI | {"context": [*WIKI["context"], ["Oslo", ["A city."]]]}
    assert [(p.title, p.text, p.gold) for p in TwoWikiRow.model_validate(oslo).passages] == [
        ("Emma", "A novel. By Jane Austen.", True),
        ("Jane Austen", "Hers.", True),
        ("Oslo", "A city.", False),
    ]
    spaced = {"context": [["Emma", ["A novel.", " By Jane Austen."]]]}
    hotpot = HotpotRow.model_validate(RAW["hotpot_qa"] | spaced)
    assert [p.text for p in hotpot.passages] == ["A novel. By Jane Austen."]


def test_trivias_snippets_are_passages_and_gold_if_they_say_the_answer() -> None:
    row = TriviaRow.model_validate(RAW["trivia_qa"])
    assert [(p.title, p.gold) for p in row.passages] == [("Rings", True), ("Big", False)]


def test_musique_keeps_its_hops_and_paragraphs_in_upstreams_numbering() -> None:
    row = MusiqueRow.model_validate(RAW["musique"])
    assert [
        (hop.question, hop.answer, row.paragraphs[hop.paragraph or 0].title) for hop in row.hops
    ] == [
        ("Emma >> author", "Jane Austen", "Emma"),
        ("#1 >> place of birth", "Steventon", "Jane Austen"),
    ]
    assert [p.gold for p in row.passages] == [False, True, True]


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


def test_a_broken_row_of_a_table_is_named(tmp_path: Path) -> None:
    file = tmp_path / "test.tsv"
    file.write_text("id\tquestion\tanswer\n4\tWho?\tAnn\n5\tWho?\tAnn\tBob\n")
    with pytest.raises(UserError, match=r"test.tsv, row 2 is broken: it has more cells"):
        list(read_rows(file, AnswerRow))


# The corpus


def test_a_passage_of_several_questions_is_in_the_corpus_once(tmp_path: Path, cli: Cli) -> None:
    context = [["Oslo", ["A  city."]], ["Oslo", ["A town."]], *WIKI["context"][:1]]
    file = jsonl(tmp_path / "dev.jsonl", WIKI, WIKI | {"_id": "3w", "context": context})
    out = tmp_path / "passages.jsonl"
    words = ("data", "passages", "2wiki", "--source", file, "--out", out)
    assert cli(*words).out.strip() == str(out)
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"id": "0", "contents": '"Emma"\nA novel. By Jane Austen.'},
        {"id": "1", "contents": '"Jane Austen"\nHers.'},
        {"id": "2", "contents": '"Oslo"\nA city.'},
        {"id": "3", "contents": '"Oslo"\nA town.'},
    ]
    assert "already exists" in refused(cli, *words)


def test_the_corpus_can_be_indexed_and_searched(tmp_path: Path) -> None:
    from coterie.tools.retrieval import read_rows as read_passages

    out = tmp_path / "passages.jsonl"
    count = write_passages(distinct_passages(rows_of("musique", ["sample"])), out)
    found = [passage for _, passage in read_passages(out, Silent())]
    splits = find("musique").splits
    rows = [row for split in splits for row in load_rows("musique", split, "sample")]
    assert len(found) == count == len(set(distinct_passages(rows)))
    golds = {" ".join(p.text.split()) for row in rows for p in row.passages if p.gold}
    assert golds <= {one.text for one in found} and all(one.title for one in found)


def test_rows_without_passages_make_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no passages to search"):
        write_passages(distinct_passages(rows_of("nq", ["sample"])), tmp_path / "passages.jsonl")
    assert not list(tmp_path.glob("passages*"))
