"""2WikiMultiHopQA, TriviaQA, CBT, MATH, ARC, MMLU: upstream's formats, broken rows, what is left out."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from coterie.datasets.boxed import boxed_answer
from coterie.datasets.catalogue import CATALOGUE, SPLITS, find
from coterie.datasets.context_rows import CbtRow, TriviaRow
from coterie.datasets.download import download
from coterie.datasets.local import load_rows
from coterie.datasets.prepared import folder_of, read_manifest
from coterie.datasets.preparing import prepare
from coterie.datasets.problem_rows import ChoiceRow, MathRow
from coterie.datasets.reading import read_rows
from coterie.datasets.rows import QuestionRow, TwoWikiRow
from coterie.errors import UserError
from coterie.progress import Silent
from tests.hub import Hub, point_hub_at, serve
from tests.row_files import jsonl
from tests.test_data import SHARED, real_rows

pytestmark = pytest.mark.usefixtures("own_home")

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
    return list(read_rows(file, find(name).row, Silent()))


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
        load_rows(name, "train", file)
    assert f"{file}, line 2 is broken" in error.value.what and said in error.value.what


@pytest.mark.parametrize("name", [name for name in UPSTREAM if name != "math"])
def test_a_row_without_a_question_says_so(name: str, tmp_path: Path) -> None:
    lacking = {key: value for key, value in UPSTREAM[name].items() if key != "question"}
    with pytest.raises(UserError, match=r"line 1 is broken: question: is missing"):
        load_rows(name, "train", jsonl(tmp_path / "rows.jsonl", lacking))


@pytest.mark.parametrize(
    "text, want",
    [
        (r"\boxed 5$ and so on", "5"), (r"\fbox{7}", "7"), (r"\boxed{a} or \boxed{b_{2}}", "b_{2}"),
        (r"\boxed{\text{(A)}}", r"\text{(A)}"), (r"\boxed", None), (r"\boxed{}", None),
    ],
)  # fmt: skip
def test_boxes_of_maths_own_solutions(text: str, want: str | None) -> None:
    assert boxed_answer(text) == want


def test_what_can_not_be_asked_is_passed_over_and_counted(tmp_path: Path) -> None:
    web = UPSTREAM["trivia_qa"]
    wikipedia = web | {"search_results": {"description": []}}
    empty = UPSTREAM["math"] | {"solution": r"None: $\boxed{}$.", "problem": "How many?"}
    jsonl(tmp_path / "train.jsonl", wikipedia, web, wikipedia)
    jsonl(tmp_path / "dev.jsonl", web | {"question": "Which?", "question_id": "tc_2"})
    prepare(find("trivia_qa"), [tmp_path], folder_of(find("trivia_qa")), Silent())
    manifest = read_manifest(folder_of(find("trivia_qa")))
    assert (manifest.train.rows, manifest.train.dropped) == (1, 2)
    jsonl(tmp_path / "train.jsonl", wikipedia)
    with pytest.raises(UserError, match=r"no row is left for the train split \(1 were dropped"):
        prepare(find("trivia_qa"), [tmp_path], folder_of(find("trivia_qa")), Silent())
    assert (
        len(load_rows("math", "train", jsonl(tmp_path / "m_train.jsonl", empty, UPSTREAM["math"])))
        == 1
    )


def test_one_stem_with_other_options_is_another_question(tmp_path: Path) -> None:
    row = UPSTREAM["mmlu"]
    turned = row | {"choices": ["", "A", "fire", "ice"], "answer": "C"}
    other = row | {"choices": ["sun", "moon"], "answer": "A"}
    keys = [one.key for one in read("mmlu", jsonl(tmp_path / "a.jsonl", row, turned, other))]
    assert keys[0] == keys[1] != keys[2]


def test_mmlu_trains_on_no_question_of_arc(tmp_path: Path) -> None:
    mmlu = find("mmlu")
    known, fresh = UPSTREAM["mmlu"], UPSTREAM["mmlu"] | {"question": "What is cold?", "answer": 0}
    held = UPSTREAM["mmlu"] | {"question": "What burns?"}
    files = [jsonl(tmp_path / "auxiliary_train.jsonl", known, fresh)]
    files.append(jsonl(tmp_path / "test.jsonl", held))
    with pytest.raises(UserError, match="arc_c is not prepared") as error:
        prepare(mmlu, files, folder_of(mmlu), Silent())
    assert "coterie data download arc_c" in error.value.todo
    arc = UPSTREAM["arc_c"] | {"choices": {"text": ["sun", "sea"], "label": ["1", "2"]}}
    parts = [jsonl(tmp_path / "arc_train.jsonl", arc | {"answerKey": "1"})]
    parts.append(jsonl(tmp_path / "arc_test.jsonl", UPSTREAM["arc_c"] | {"question": "Why?"}))
    prepare(find("arc_c"), parts, folder_of(find("arc_c")), Silent())
    manifest = prepare(mmlu, files, folder_of(mmlu), Silent())
    assert (manifest.train.rows, manifest.train.dropped) == (1, 1)
    assert "arc_c" in manifest.split
    assert [row.question for row in load_rows("mmlu", "train")] == ["What is cold?"]


def test_a_set_of_many_folders_is_downloaded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MATH: seven files of one name in seven folders; and MMLU brings ARC with it."""
    files = {}
    for name in ("math", "arc_c", "mmlu"):
        [repo] = find(name).repos
        for split in SPLITS:
            for file in repo.train if split == "train" else repo.heldout:
                row = json.loads(json.dumps(UPSTREAM[name]))
                question = "problem" if name == "math" else "question"
                row[question] += f" In {file}?" * (name != "mmlu" or split == "heldout")
                parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "one.parquet")
                files[f"/{file}"] = (tmp_path / "one.parquet").read_bytes()
    server = serve(Hub(files))
    point_hub_at(server, monkeypatch)
    try:
        manifest = download(find("math"), Silent())
        assert (manifest.train.rows, manifest.heldout.rows) == (7, 7)
        assert download(find("mmlu"), Silent()).train.rows == 1
        assert read_manifest(folder_of(find("arc_c"))).train.rows == 1
    finally:
        server.shutdown()
        server.server_close()


def test_a_folder_of_folders_can_be_prepared(tmp_path: Path) -> None:
    for subject in ("algebra", "geometry"):
        (tmp_path / subject).mkdir()
        for split in ("train", "test"):
            row = UPSTREAM["math"] | {"problem": f"{subject} of {split}?"}
            jsonl(tmp_path / subject / f"{split}.jsonl", row)
    manifest = prepare(find("math"), [tmp_path], folder_of(find("math")), Silent())
    assert (manifest.train.rows, manifest.heldout.rows) == (2, 2)


NOT_PINNED = (
    "colbench_code", "svamp", "strategyqa_plans", "lumos_maths", "popqa", "musique", "bamboogle", "math500",
    "webwalkerqa", "gaia", "hle", "livecodebench",
)  # fmt: skip
"""Sets of which we know no commit in full."""


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogue_is_complete(name: str) -> None:
    entry = find(name)
    files = [(one.name, file) for one in entry.repos for file in one.files]
    assert len(set(files)) == len(files)
    for one in entry.repos:
        assert len(one.revision) == 40 or (one.revision == "main" and name in NOT_PINNED)
        assert bool(one.train) == (entry.train is not None)
        assert bool(one.heldout) == (entry.heldout is not None)
    assert entry.citation and entry.licence and entry.licence_url.startswith("https://")
    for split in SPLITS:
        upstream = entry.upstream(split)
        assert upstream is None or upstream.rows >= (300 if "train" in entry.splits else 30)


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
    assert len(load_rows(name, "train", SHARED / file)) == count
