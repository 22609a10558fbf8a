"""Rows of each set: upstream's forms, the canonical form, broken rows, what is left out, passages."""

import base64
import gzip
import hashlib
import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from coterie.datasets.catalogue import CATALOGUE, SPLITS, find
from coterie.datasets.files import read_rows
from coterie.datasets.load import load_rows
from coterie.datasets.problems import SvampRow, boxed_answer, value
from coterie.datasets.rows import (
    IMAGE,
    AnswerRow,
    HotpotRow,
    MusiqueRow,
    TriviaRow,
    TwoWikiRow,
    question_key,
)
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.tools.retrieval import read_rows as read_passages
from tests.conftest import Cli, refused
from tests.helpers.serve_hub import stub_hub
from tests.helpers.write_rows import write_jsonl, write_parquet

CANARY = "a canary of these tests: 3f"


def sealed(text: str, canary: str = CANARY) -> str:
    key = cycle(hashlib.sha256(canary.encode()).digest())
    return base64.b64encode(bytes(a ^ b for a, b in zip(text.encode(), key, strict=False))).decode()


CONTEXT = [["Emma", ["A novel.", "By Jane Austen."]], ["Empty", []], ["Jane Austen", ["Hers."]]]
FACTS = [["Emma", 1], ["Jane Austen", 0]]
TRIPLES = [["Emma", "author", "Jane Austen"], ["Jane Austen", "place of birth", "Steventon"]]
UPSTREAM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hotpot_qa": (
        {"_id": "5a", "question": "Who wrote Emma?", "answer": "Austen", "type": "bridge", "level": "hard",
         "context": [one for one in CONTEXT if one[1]], "supporting_facts": FACTS},
        {"id": "5a", "type": "bridge", "level": "hard"},
    ),
    "2wiki": (
        {"_id": "2w", "type": "compositional", "question": "Who wrote Emma?", "answer": "Austen",
         "context": CONTEXT, "supporting_facts": FACTS, "evidences": TRIPLES},
        {"id": "2w", "type": "compositional"},
    ),
    "trivia_qa": (
        {"question": "Which planet?", "question_id": "tc_1",
         "answer": {"value": "Saturn", "aliases": ["Saturn", "Saturn (planet)", " "]},
         "search_results": {"description": ["Rings of SATURN.", "", "It is big."], "title": ["Rings", "None", "Big"]}},
        {"id": "tc_1", "aliases": ("Saturn", "Saturn (planet)"), "titles": ("Rings", "Big"),
         "snippets": ("Rings of SATURN.", "It is big.")},
    ),
    "cbt": (
        {"sentences": [f"Line {n} ." for n in range(20)], "question": "The XXXXX ran .",
         "answer": "dog", "options": ["dog", "cat", ""]},
        {"options": ("dog", "cat"), "answer": "dog"},
    ),
    "gsm8k": (
        {"question": "What is 1233 and one?", "answer": "It is <<1233+1=1234>>.\n#### 1,234"},
        {"id": question_key("what is  1233 and ONE?"), "answer": "1234", "solution": "It is <<1233+1=1234>>."},
    ),
    "math": (
        {"problem": "What is 1/2 + 1/4?", "level": "Level 1", "type": "Algebra",
         "solution": r"It is $\frac24+\frac14=\boxed{\frac{3}{4}}$."},
        {"answer": r"\frac{3}{4}"},
    ),
    "svamp": (
        {"ID": "chal-1", "Body": "Each pack costs 76 dollars. If there is a discount of 25 dollars",
         "Question": "How much is a pack?", "Equation": "( 76.0 - 25.0 )", "Answer": 51.0, "Type": "Subtraction"},
        {"id": "chal-1", "answer": "51",
         "question": "Each pack costs 76 dollars. If there is a discount of 25 dollars, how much is a pack?"},
    ),
    "arc_c": (
        {"id": "M1", "question": "What is hot?", "answerKey": "B",
         "choices": {"text": ["ice", "fire"], "label": ["A", "B"]}},
        {"id": "M1", "answer": "fire"},
    ),
    "mmlu": (
        {"question": "What is hot?", "subject": "physics", "choices": ["ice", "fire", "A", ""], "answer": 1},
        {"answer": "fire"},
    ),
    "musique": (
        {"id": "2hop__1_2", "question": "Where was the author of Emma born?", "answer": "Steventon",
         "answer_aliases": ["Steventon, Hampshire", "Steventon"], "answerable": True,
         "paragraphs": [
             {"idx": 1, "title": "Jane Austen", "paragraph_text": "Born in Steventon.", "is_supporting": True},
             {"idx": 0, "title": "Oslo", "paragraph_text": "A city.", "is_supporting": False},
             {"idx": 2, "title": "Emma", "paragraph_text": "A novel.\nBy Jane Austen.", "is_supporting": True}],
         "question_decomposition": [
             {"id": 7, "question": "Emma >> author", "answer": "Jane Austen", "paragraph_support_idx": 2},
             {"id": 8, "question": "#1 >> place of birth", "answer": "Steventon", "paragraph_support_idx": 1}]},
        {"id": "2hop__1_2", "answers": ("Steventon", "Steventon, Hampshire", "Steventon")},
    ),
    "math500": (
        {"problem": "1/2?", "answer": r"\frac12", "solution": "So.", "subject": "Algebra", "level": 2,
         "unique_id": "test/a/7.json"},
        {"id": "test/a/7.json", "question": "1/2?", "answer": r"\frac12", "solution": "So.", "subject": "Algebra",
         "level": "2"},
    ),
    "aime24": (
        {"id": 60, "problem": "P?", "solution": "S", "answer": "204", "url": "u", "year": "2024"},
        {"id": "60", "answer": "204"},
    ),
    "amc23": ({"id": 3, "question": "P?", "answer": 27.0, "url": "u"}, {"question": "P?", "answer": "27"}),
    "webwalkerqa": (
        {"question": "W?", "answer": "A", "root_url": "https://a.org", "info": {"Level": "hard", "lang": "en"}},
        {"question": "W?", "level": "hard"},
    ),
    "gaia": (
        {"task_id": "c61", "Question": "G?", "Level": 2, "Final answer": "egalitarian", "file_name": "a.xlsx"},
        {"id": "c61", "question": "G?", "answer": "egalitarian", "level": "2"},
    ),
    "hle": (
        {"id": "h1", "question": "H?", "image": "", "answer": "C", "category": "Physics", "canary": "x"},
        {"id": "h1", "answer": "C", "image": False},
    ),
    "browsecomp": (
        {"problem": sealed("Which Müller?"), "answer": sealed("Gerd"), "problem_topic": "Sports", "canary": CANARY},
        {"question": "Which Müller?", "answer": "Gerd"},
    ),
    "olympiadbench": (
        {"id": 1606, "question": "O?", "solution": ["S1", "S2"], "final_answer": ["1", "2"],
         "subfield": "Algebra", "difficulty": "Competition", "image_1": None},
        {"id": "1606", "answer": "1, 2", "solution": "S1", "subject": "Algebra", "level": "Competition",
         "aliases": (), "image": False},
    ),
}  # fmt: skip
"""A row of each set in upstream's form, and fields that it has."""
RAW = {name: raw for name, (raw, _) in UPSTREAM.items()}
JSON_TEXTS = {
    key: json.dumps(RAW["2wiki"][key]) for key in ("context", "supporting_facts", "evidences")
}
HUB_CONTEXT = {
    "title": ["Emma", "Jane Austen"],
    "sentences": [["A novel.", "By Jane Austen."], ["Hers."]],
}
SNIPPETS = [
    {"description": text, "title": title}
    for text, title in (("Rings of SATURN.", "Rings"), ("It is big.", "Big"))
]
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("hotpot_qa", {"context": HUB_CONTEXT, "supporting_facts": {"title": ["Emma", "Jane Austen"], "sent_id": [1, 0]}}),
    ("2wiki", JSON_TEXTS),
    ("trivia_qa", {"search_results": SNIPPETS}),
    ("math", {"answer": r"\frac{3}{4}"}),
    ("arc_c", {"choices": [{"text": "ice", "label": "A"}, {"text": "fire", "label": "B"}]}),
    ("mmlu", {"answer": "B"}),
]  # fmt: skip
"""Other forms of the same rows: of the hub and of ../shared/data."""
OTHERS = [(name, RAW[name] | change) for name, change in CHANGES] + [
    ("mmlu", {"train": RAW["mmlu"]})
]


def read(name: str, file: Path) -> Any:
    [row] = read_rows(file, find(name).row)
    assert type(row) is find(name).row
    return row


@pytest.mark.parametrize("name", UPSTREAM)
def test_all_forms_of_a_row_are_one(name: str, tmp_path: Path) -> None:
    raw, expected = UPSTREAM[name]
    row = read(name, write_jsonl(tmp_path / "a.jsonl", raw))
    assert {key: getattr(row, key) for key in expected} == expected and not row.flaw
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert read(name, tmp_path / "b.jsonl") == row
    hub = dict(next((change for one, change in CHANGES if one == name == "hotpot_qa"), {}))
    hub |= JSON_TEXTS if name == "2wiki" else {}  # pyarrow has no lists of mixed types
    assert read(name, write_parquet(tmp_path / "c.parquet", raw | hub)) == row
    for other in (other for set_name, other in OTHERS if set_name == name):
        assert read(name, write_jsonl(tmp_path / "d.jsonl", other)) == row


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
    row = read("nq", write_jsonl(tmp_path / "a.jsonl", raw))
    assert (row.question, row.answers) == ("Who?", ("Ann", "A. B."))
    index = raw.get("extra_info", {}).get("index")
    assert row.id == str(raw.get("id", index or row.key))


def test_a_letter_in_the_canonical_form_is_a_text_and_options_are_part_of_a_key(
    tmp_path: Path,
) -> None:
    turned = RAW["mmlu"] | {"choices": ["", "A", "fire", "ice"], "answer": "B"}
    other = RAW["mmlu"] | {"choices": ["sun", "moon"], "answer": "A"}
    file = write_jsonl(tmp_path / "a.jsonl", RAW["mmlu"], turned, other)
    rows = list(read_rows(file, find("mmlu").row))
    assert rows[0].key == rows[1].key != rows[2].key
    assert rows[1].answer == "A", "upstream's B is the second choice, which says A"
    (tmp_path / "b.jsonl").write_text(rows[1].model_dump_json() + "\n")
    assert read("mmlu", tmp_path / "b.jsonl") == rows[1], "an A with an id says A"


HOP = {"question": "q", "answer": "a", "paragraph_support_idx": 3}


@pytest.mark.parametrize(
    "name, change, problem",
    [
        ("hotpot_qa", {"answer": " "}, "answer: must hold some text"),
        ("hotpot_qa", {"context": [["Emma", "no list"]]}, "context.0.sentences"),
        ("2wiki", {"context": "no json"}, "context is a text, but not JSON"),
        ("2wiki", {"supporting_facts": [["Persuasion", 0]]}, "among the paragraphs"),
        ("cbt", {"question": "The dog ran ."}, "has no XXXXX"),
        ("cbt", {"answer": "cow"}, "'cow' is not among the options"),
        ("gsm8k", {"answer": "It is 8."}, "no '####'"),
        ("gsm8k", {"answer": "It is 8.\n#### eight"}, "answer: String should match pattern"),
        ("math", {"solution": "It is three quarters."}, r"no \boxed{answer}"),
        ("arc_c", {"answerKey": "E"}, "answerKey 'E' is none of the options"),
        ("mmlu", {"answer": 4}, "answer 4 is none of the options"),
        ("mmlu", {"answer": "water"}, "answer 'water' is none of the options"),
        ("musique", {"question_decomposition": [HOP]}, "hop 1 refers to"),
        ("browsecomp", {"answer": sealed("Gerd, ein Müller, und andere", "another")}, "can't be decrypted"),
    ],
)  # fmt: skip
def test_a_broken_row_is_named_by_file_and_line(
    name: str, change: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    file = write_jsonl(tmp_path / "rows.jsonl", RAW[name], RAW[name] | change, RAW[name])
    with pytest.raises(UserError) as error:
        list(read_rows(file, find(name).row))
    assert f"{file}, line 2 is broken" in error.value.what and problem in error.value.what


@pytest.mark.parametrize(
    "text, want",
    [
        (r"\boxed 5$ and so on", "5"), (r"\fbox{7}", "7"), (r"\boxed{a} or \boxed{b_{2}}", "b_{2}"),
        (r"\boxed{\text{(A)}}", r"\text{(A)}"), (r"\boxed", None), (r"\boxed{}", None),
        (r"\boxed{\left\{1,2\right\}}", r"\left\{1,2\right\}"),
        (r"\boxed{\left\{1\\{2}\right.}", r"\left\{1\\{2}\right."),
    ],
)  # fmt: skip
def test_boxes_of_maths_own_solutions(text: str, want: str | None) -> None:
    assert boxed_answer(text) == want


@pytest.mark.parametrize(
    "name, change, flaw",
    [
        ("trivia_qa", {"search_results": {"description": []}}, "has no snippets"),
        ("2wiki", {"context": None}, "has no paragraphs"),
        ("math", {"solution": r"None: $\boxed{}$."}, "its answer is empty"),
        ("math500", {"answer": " "}, "its answer is empty"),
        ("musique", {"answerable": False}, "can't be answered by its paragraphs"),
        ("gaia", {"Final answer": "?"}, "has no public answer"),
        ("hle", {"image": "data:image/png;base64,AA"}, IMAGE),
        ("olympiadbench", {"image_1": {"bytes": "x"}}, IMAGE),
    ],
)  # fmt: skip
def test_what_can_not_be_asked_or_graded_is_left_out_with_its_reason(
    name: str, change: dict[str, Any], flaw: str, tmp_path: Path
) -> None:
    bad = {key: one for key, one in (RAW[name] | change).items() if one is not None}
    assert read(name, write_jsonl(tmp_path / "bad/test.jsonl", bad)).flaw == flaw
    if find(name).train is None:
        other = {"question": "Other?", "problem": "Other?", "Question": "Other?"}
        file = write_jsonl(tmp_path / "test.jsonl", RAW[name], bad | other)
        assert len(load_rows(name, file).rows["heldout"]) == 1
    elif name == "trivia_qa":
        write_jsonl(tmp_path / "train.jsonl", bad, RAW[name], bad)
        write_jsonl(
            tmp_path / "dev.jsonl", RAW[name] | {"question": "Which?", "question_id": "tc_2"}
        )
        assert load_rows(name, tmp_path).left_out == {flaw: 2}
        write_jsonl(tmp_path / "train.jsonl", bad)
        with pytest.raises(
            UserError, match=r"no train row of trivia_qa is left \(dropped: 1 has no"
        ):
            load_rows(name, tmp_path)


def test_a_set_of_many_folders_and_one_that_leaves_out_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MATH has seven files of one name in seven folders; MMLU trains on no question of ARC."""
    files = {}
    for name in ("math", "arc_c", "mmlu"):
        [repo] = find(name).repos
        for file in repo.train + repo.heldout:
            question = "problem" if name == "math" else "question"
            row = dict(RAW[name])
            row[question] += f" In {file}?" * (name == "math")
            row[question] += " Now?" * (name != "math" and file in repo.heldout)
            rows = [row, row | {question: f"{name} of {file}?"}]
            content = write_parquet(tmp_path / "a.parquet", *rows).read_bytes()
            files[f"{repo.name}/resolve/{repo.revision}/{file}"] = content
    with stub_hub(files, tmp_path / "cache", monkeypatch):
        assert [len(load_rows("math").rows[split]) for split in SPLITS] == [14, 14]
        loaded = load_rows("mmlu")
    assert loaded.left_out == {"is a question of arc_c": 1}
    assert [len(loaded.rows[split]) for split in SPLITS] == [1, 2]


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogue_is_complete(name: str) -> None:
    entry = find(name)
    files = [(one.name, file) for one in entry.repos for file in one.train + one.heldout]
    assert len(set(files)) == len(files) and bool(files) != bool(entry.url) and entry.row
    for one in entry.repos:
        assert len(one.revision) == 40 or one.revision == "main"
        assert bool(one.train) == (entry.train is not None)
        assert bool(one.heldout) == (entry.heldout is not None)


WIKI = RAW["2wiki"]


def test_details_and_passages_of_upstreams_rows_are_kept() -> None:
    oslo = WIKI | {"context": [*WIKI["context"], ["Oslo", ["A city."]]]}
    wiki = TwoWikiRow.model_validate(oslo)
    assert [[one.subject, one.relation, one.object] for one in wiki.evidences] == TRIPLES
    assert [fact.title for fact in wiki.supporting_facts] == ["Emma", "Jane Austen"]
    assert [(one.title, one.text, one.gold) for one in wiki.passages] == [
        ("Emma", "A novel. By Jane Austen.", True),
        ("Jane Austen", "Hers.", True),
        ("Oslo", "A city.", False),
    ]
    spaced = {"context": [["Emma", ["A novel.", " By Jane Austen."]]]}
    hotpot = HotpotRow.model_validate(RAW["hotpot_qa"] | spaced)
    assert [one.text for one in hotpot.passages] == ["A novel. By Jane Austen."]
    trivia = TriviaRow.model_validate(RAW["trivia_qa"])
    assert [(one.title, one.gold) for one in trivia.passages] == [("Rings", True), ("Big", False)]
    musique = MusiqueRow.model_validate(RAW["musique"])
    assert [musique.paragraphs[hop.paragraph or 0].title for hop in musique.hops] == [
        "Emma",
        "Jane Austen",
    ]
    assert [one.gold for one in musique.passages] == [False, True, True]
    svamp = SvampRow.model_validate(RAW["svamp"] | {"Answer": 2.5})
    assert svamp.answer == "2.5" and value(svamp.equation) == 51


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "row", "answer"),
    [
        ("test.tsv", '4\tWho?\t"Ann, ""A"""', 'Ann, "A"'),
        ("test.tsv", '4\tWho?\t"a\tb"', "a\tb"),
        ("test.tsv", '4\tWho?\t"Ann" she problem', '"Ann" she problem'),
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
    file = tmp_path / f"more-{name}"
    file.write_bytes(text + f"6{sign}Who?{sign}Ann{sign}Bob\n".encode())
    with pytest.raises(UserError, match=r"row [13] is broken: it has more cells"):
        list(read_rows(file, AnswerRow))


# The corpus


def test_a_passage_of_several_questions_is_in_the_corpus_once(tmp_path: Path, cli: Cli) -> None:
    context = [["Oslo", ["A  city."]], ["Oslo", ["A town."]], *WIKI["context"][:1]]
    file = write_jsonl(tmp_path / "dev.jsonl", WIKI, WIKI | {"_id": "3w", "context": context})
    words = ("data", "passages", "2wiki", "--source", file, "--out", "passages.jsonl")
    assert cli(*words).out == "passages.jsonl\n"
    assert Path("passages.jsonl").read_text().splitlines() == [
        json.dumps({"id": "0", "contents": '"Emma"\nA novel. By Jane Austen.'}),
        json.dumps({"id": "1", "contents": '"Jane Austen"\nHers.'}),
        json.dumps({"id": "2", "contents": '"Oslo"\nA city.'}),
        json.dumps({"id": "3", "contents": '"Oslo"\nA town.'}),
    ]
    assert "already exists" in refused(cli, *words)
    out = Path("nq.jsonl")
    words = ("data", "passages", "nq", "--source", "sample", "--out", out)
    assert "no passages to search" in refused(cli, *words) and not out.exists()
    passages = [one for _, one in read_passages(Path("passages.jsonl"), Silent())]
    assert [(one.title, one.text) for one in passages[2:]] == [
        ("Oslo", "A city."),
        ("Oslo", "A town."),
    ]
