"""2WikiMultiHopQA, TriviaQA, CBT, MATH, ARC, MMLU: upstream's formats, broken rows, what is left out."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from coterie.datasets.catalogue import CATALOGUE, SPLITS, find
from coterie.datasets.files import read_rows
from coterie.datasets.load import load
from coterie.datasets.problems import ChoiceRow, MathRow, boxed_answer
from coterie.datasets.rows import CbtRow, QuestionRow, TriviaRow, TwoWikiRow
from coterie.errors import UserError
from tests.hub import stub_hub
from tests.row_files import jsonl
from tests.test_data import SHARED, real_rows, table

CONTEXT = [["Emma", ["A novel.", "By Jane Austen."]], ["Empty", []], ["Jane Austen", ["Hers."]]]
FACTS = [["Emma", 1], ["Jane Austen", 0]]
UPSTREAM: dict[str, dict[str, Any]] = {
    "2wiki": {
        "_id": "2w", "type": "compositional", "question": "Who wrote Emma?", "answer": "Austen",
        "context": CONTEXT, "supporting_facts": FACTS, "evidences": [],
    },
    "trivia_qa": {
        "question": "Which planet has the Cassini division?", "question_id": "tc_1",
        "answer": {"value": "Saturn", "aliases": ["Saturn", "Saturn (planet)", " "]},
        "search_results": {"description": ["Rings of Saturn.", "", "Cassini saw it."], "rank": [0, 1, 2]},
    },
    "cbt": {
        "sentences": [f"Line {n} ." for n in range(20)], "question": "The XXXXX ran .",
        "answer": "dog", "options": ["dog", "cat", ""],
    },
    "math": {
        "problem": "What is 1/2 + 1/4?", "level": "Level 1", "type": "Algebra",
        "solution": r"It is $\frac24+\frac14=\boxed{\frac{3}{4}}$.",
    },
    "arc_c": {
        "id": "M1", "question": "What is hot?", "answerKey": "B",
        "choices": {"text": ["ice", "fire"], "label": ["A", "B"]},
    },
    "mmlu": {
        "question": "What is hot?", "subject": "physics", "choices": ["ice", "fire", "A", ""],
        "answer": 1,
    },
}  # fmt: skip
OTHERS: list[tuple[str, dict[str, Any]]] = [
    (
        "2wiki",
        UPSTREAM["2wiki"] | {"context": json.dumps(CONTEXT), "supporting_facts": json.dumps(FACTS)},
    ),
    (
        "trivia_qa",
        UPSTREAM["trivia_qa"]
        | {
            "search_results": [
                {"description": "Rings of Saturn."},
                {"description": "Cassini saw it."},
            ]
        },
    ),
    ("math", UPSTREAM["math"] | {"answer": r"\frac{3}{4}"}),
    (
        "arc_c",
        {
            "id": "M1",
            "question": {
                "stem": "What is hot?",
                "choices": [{"text": "ice", "label": "A"}, {"text": "fire", "label": "B"}],
            },
            "answerKey": "B",
        },
    ),
    ("mmlu", UPSTREAM["mmlu"] | {"answer": "B"}),
    ("mmlu", {"train": UPSTREAM["mmlu"]}),
]
"""Other forms of the same rows: of the hub, of AI2's own files, of ../shared/data."""


def read(name: str, file: Path) -> list[QuestionRow]:
    return list(read_rows(file, find(name).row))


@pytest.mark.parametrize("name", UPSTREAM)
def test_upstreams_row_its_parquet_and_the_canonical_form_are_one(
    name: str, tmp_path: Path
) -> None:
    [row] = read(name, jsonl(tmp_path / "a.jsonl", UPSTREAM[name]))
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert read(name, tmp_path / "b.jsonl") == [row]
    text = json.dumps(UPSTREAM[name])  # pyarrow has no lists of mixed types
    hub = json.loads(text)
    if name == "2wiki":
        hub |= {part: json.dumps(hub[part]) for part in ("context", "supporting_facts")}
        del hub["evidences"]
    parquet.write_table(pyarrow.Table.from_pylist([hub]), tmp_path / "c.parquet")
    assert read(name, tmp_path / "c.parquet") == [row]


@pytest.mark.parametrize("name, other", OTHERS)
def test_other_forms_of_the_same_row_give_it_too(
    name: str, other: dict[str, Any], tmp_path: Path
) -> None:
    expected = read(name, jsonl(tmp_path / "a.jsonl", UPSTREAM[name]))
    assert read(name, jsonl(tmp_path / "b.jsonl", other)) == expected


def test_what_the_rows_hold(tmp_path: Path) -> None:
    rows = {name: read(name, jsonl(tmp_path / "a.jsonl", row))[0] for name, row in UPSTREAM.items()}
    wiki, trivia, book, problem = (rows[name] for name in ("2wiki", "trivia_qa", "cbt", "math"))
    assert isinstance(wiki, TwoWikiRow) and [p.title for p in wiki.context] == [
        "Emma",
        "Jane Austen",
    ]
    assert isinstance(trivia, TriviaRow) and trivia.id == "tc_1"
    assert trivia.aliases == ("Saturn", "Saturn (planet)")
    assert trivia.snippets == ("Rings of Saturn.", "Cassini saw it.")
    assert isinstance(book, CbtRow) and book.options == ("dog", "cat")
    assert isinstance(problem, MathRow) and problem.answer == r"\frac{3}{4}"
    for name in ("arc_c", "mmlu"):
        row = rows[name]
        assert isinstance(row, ChoiceRow) and row.answer == "fire"


def test_a_letter_in_the_canonical_form_is_a_text(tmp_path: Path) -> None:
    [row] = read("mmlu", jsonl(tmp_path / "a.jsonl", UPSTREAM["mmlu"] | {"answer": "C"}))
    assert row.answer == "A", "upstream's C is the third choice, which says A"
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert read("mmlu", tmp_path / "b.jsonl") == [row], "an A with an id says A"


@pytest.mark.parametrize(
    "name, change, said",
    [
        ("2wiki", {"context": "no json"}, "context is a text, but not JSON"),
        ("2wiki", {"supporting_facts": [["Persuasion", 0]]}, "among the paragraphs"),
        ("trivia_qa", {"answer": {"value": "", "aliases": []}}, "answer: must hold some text"),
        ("trivia_qa", {"answer": None}, "answer"),
        ("trivia_qa", {"question": 3}, "question"),
        ("cbt", {"question": "The dog ran ."}, "has no XXXXX"),
        ("cbt", {"answer": "cow"}, "'cow' is not among the options"),
        ("cbt", {"sentences": "one"}, "sentences"),
        ("math", {"solution": "It is three quarters."}, r"no \boxed{answer}"),
        ("math", {"problem": None}, "question"),
        ("arc_c", {"answerKey": "E"}, "answerKey 'E' is not among the labels"),
        ("arc_c", {"choices": ["ice", "fire"]}, "expected choices with"),
        ("mmlu", {"answer": 4}, "answer 4 is neither"),
        ("mmlu", {"answer": "fire"}, "neither a letter nor a number"),
        ("mmlu", {"choices": ["one"], "answer": 0}, "choices"),
    ],
)
def test_a_broken_row_is_named_by_file_and_line(
    name: str, change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    good = UPSTREAM[name]
    file = jsonl(tmp_path / "rows.jsonl", good, good | change, good)
    with pytest.raises(UserError) as error:
        read(name, file)
    assert f"{file}, line 2 is broken" in error.value.what and said in error.value.what


@pytest.mark.parametrize("name", [name for name in UPSTREAM if name != "math"])
def test_a_row_without_a_question_says_so(name: str, tmp_path: Path) -> None:
    lacking = {key: value for key, value in UPSTREAM[name].items() if key != "question"}
    with pytest.raises(UserError, match=r"line 1 is broken: question: is missing"):
        read(name, jsonl(tmp_path / "rows.jsonl", lacking))


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


def test_what_can_not_be_asked_is_passed_over_and_counted(tmp_path: Path) -> None:
    web = UPSTREAM["trivia_qa"]
    wikipedia = web | {"search_results": {"description": []}}
    jsonl(tmp_path / "train.jsonl", wikipedia, web, wikipedia)
    jsonl(tmp_path / "dev.jsonl", web | {"question": "Which?", "question_id": "tc_2"})
    assert load("trivia_qa", tmp_path).left_out == {"has no snippets": 2}
    jsonl(tmp_path / "train.jsonl", wikipedia)
    with pytest.raises(UserError, match=r"no train row of trivia_qa is left \(dropped: 1 has no"):
        load("trivia_qa", tmp_path)
    empty = UPSTREAM["math"] | {"solution": r"None: $\boxed{}$.", "problem": "How many?"}
    [row] = read("math", jsonl(tmp_path / "math.jsonl", empty))
    assert row.flaw == "its answer is empty"


def test_one_stem_with_other_options_is_another_question(tmp_path: Path) -> None:
    row = UPSTREAM["mmlu"]
    turned = row | {"choices": ["", "A", "fire", "ice"], "answer": "C"}
    other = row | {"choices": ["sun", "moon"], "answer": "A"}
    keys = [one.key for one in read("mmlu", jsonl(tmp_path / "a.jsonl", row, turned, other))]
    assert keys[0] == keys[1] != keys[2]


def test_a_set_of_many_folders_and_one_that_leaves_out_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MATH has seven files of one name in seven folders; MMLU trains on no question of ARC."""
    files = {}
    for name in ("math", "arc_c", "mmlu"):
        [repo] = find(name).repos
        for file in repo.train + repo.heldout:
            row = json.loads(json.dumps(UPSTREAM[name]))
            question = "problem" if name == "math" else "question"
            row[question] += f" In {file}?" * (name == "math")
            row[question] += " Now?" * (name != "math" and file in repo.heldout)
            files[f"{repo.name}/resolve/{repo.revision}/{file}"] = table(
                tmp_path / "a.parquet", [row, row | {question: f"{name} of {file}?"}]
            ).read_bytes()
    with stub_hub(files, tmp_path / "cache", monkeypatch):
        assert [len(load("math").rows[split]) for split in SPLITS] == [14, 14]
        found = load("mmlu")
    assert found.left_out == {"is a question of arc_c": 1}
    assert [len(found.rows[split]) for split in SPLITS] == [1, 2]


NOT_PINNED = (
    "colbench_code", "svamp", "strategyqa_plans", "lumos_maths", "popqa", "musique", "bamboogle", "math500",
    "webwalkerqa", "gaia", "hle", "livecodebench",
)  # fmt: skip
"""Sets of which we know no commit in full."""


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogue_is_complete(name: str) -> None:
    entry = find(name)
    files = [(one.name, file) for one in entry.repos for file in one.train + one.heldout]
    assert len(set(files)) == len(files) and bool(files) != bool(entry.url)
    for one in entry.repos:
        assert len(one.revision) == 40 or (one.revision == "main" and name in NOT_PINNED)
        assert bool(one.train) == (entry.train is not None)
        assert bool(one.heldout) == (entry.heldout is not None)


@real_rows
@pytest.mark.parametrize(
    "name, file, count",
    [
        ("2wiki", "2wikimultihopqa/train_500_with_context.jsonl", 500),
        ("trivia_qa", "triviaqa/odqa_nq200_trivia200.jsonl", 113),
        ("cbt", "cbt_style_alice/train.jsonl", 203), ("math", "math/math500_test.jsonl", 400),
        ("math", "math/train_l3to5_first3000.jsonl", 2999),
        ("arc_c", "arc/arc_challenge_test.jsonl", 1000),
        ("mmlu", "mmlu/val.jsonl", 1531),
    ],
)  # fmt: skip
def test_real_rows_are_read(name: str, file: str, count: int) -> None:
    assert sum(row.usable for row in read(name, SHARED / file)) == count
