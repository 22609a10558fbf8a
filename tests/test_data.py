"""Data sets: rows are validated, splits are disjoint, files come from the hub or from the user."""

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub.constants as hub
import pyarrow
import pytest
from pyarrow import parquet

from coterie.datasets.catalogue import CATALOGUE, SPLITS, find
from coterie.datasets.files import read_rows
from coterie.datasets.load import (
    Rows,
    dataset_type,
    load,
    load_rows,
    sample_folder,
)
from coterie.datasets.preferences import PREFERENCE_SETS
from coterie.datasets.questions import QuestionsAndAnswers
from coterie.datasets.rows import Gsm8kRow, HotpotRow, question_key
from coterie.errors import UserError
from tests.conftest import Cli, refused
from tests.hub import stub_hub

SHARED = next(
    (up / "shared/data" for up in Path(__file__).parents if (up / "shared/data").is_dir()),
    Path("shared/data"),
)
real_rows = pytest.mark.skipif(not SHARED.is_dir(), reason="no real rows on this machine")

HOTPOT = {
    "_id": "5a",
    "question": "Where was the author of Emma born?",
    "answer": "Steventon",
    "type": "bridge",
    "context": [["Emma", ["A novel.", " By Jane Austen."]], ["Jane Austen", ["Of Steventon."]]],
    "supporting_facts": [["Emma", 1], ["Jane Austen", 0]],
}
HOTPOT_OF_THE_HUB = {
    "id": "5a",
    "question": HOTPOT["question"],
    "answer": "Steventon",
    "type": "bridge",
    "context": {
        "title": ["Emma", "Jane Austen"],
        "sentences": [["A novel.", " By Jane Austen."], ["Of Steventon."]],
    },
    "supporting_facts": {"title": ["Emma", "Jane Austen"], "sent_id": [1, 0]},
}


def sums(start: int, stop: int) -> list[dict[str, str]]:
    """Rows in upstream's form of GSM8K."""
    return [
        {"question": f"What is {n} and one?", "answer": f"It is {n}+1.\n#### {n + 1:,}"}
        for n in range(start, stop)
    ]


def jsonl(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


FLOAT = pyarrow.float32()


def table(file: Path, rows: list[dict[str, Any]]) -> Path:
    made = pyarrow.Table.from_pylist(rows)
    single = [one.with_type(FLOAT) if one.type == "double" else one for one in made.schema]
    parquet.write_table(made.cast(pyarrow.schema(single)), file)
    return file


def read(file: Path, row: type) -> list:
    return list(read_rows(file, row))


# The rows that ship with the package


@pytest.mark.parametrize("name", [name for name, one in CATALOGUE.items() if one.packaged])
def test_a_sample_of_each_set_is_there_and_its_splits_are_disjoint(name: str) -> None:
    splits = find(name).splits
    few = name == "musique"  # its rows are long
    found = {split: load_rows(name, split, "sample") for split in splits}
    train, heldout = found.get("train", []), found["heldout"]
    count = len(train) + len(heldout)
    assert len(heldout) >= (9 if few else 20) and count <= 100
    assert len(train) >= (9 if few else 24) or "train" not in splits
    assert {type(row) for row in train + heldout} == {find(name).row}
    assert (
        len({row.key for row in train + heldout})
        == len({row.id for row in train + heldout})
        == count
    )
    folder = sample_folder(name)
    assert all((folder / f"{split}.jsonl").stat().st_size < 500_000 for split in splits)
    assert f"## {name}" in (folder.parent / "LICENCES.md").read_text()


def test_a_sample_row_has_its_parts() -> None:
    row = load_rows("hotpot_qa", "train", "sample")[0]
    assert isinstance(row, HotpotRow)
    titles = {paragraph.title for paragraph in row.context}
    assert len(titles) == 10 and {fact.title for fact in row.supporting_facts} <= titles
    problem = load_rows("gsm8k", "train", "sample")[0]
    assert isinstance(problem, Gsm8kRow)
    assert problem.answer == "72" and "<<48/2=24>>" in problem.solution
    assert "####" not in problem.solution


# Formats


def test_upstreams_formats_and_the_canonical_one_give_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([HOTPOT]))
    files = [tmp_path / "a.json", jsonl(tmp_path / "b.jsonl", [HOTPOT])]
    files.append(table(tmp_path / "c.parquet", [HOTPOT_OF_THE_HUB]))
    (tmp_path / "d.jsonl").write_text(read(files[0], HotpotRow)[0].model_dump_json() + "\n")
    rows = [read(file, HotpotRow) for file in [*files, tmp_path / "d.jsonl"]]
    assert rows[0] == rows[1] == rows[2] == rows[3]
    assert rows[0][0].supporting_facts[0].sentence == 1
    assert rows[0][0].context[1].sentences == ("Of Steventon.",)


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3+1?"}]
PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "3"}, {"type": "text", "text": "+1?"}]}
]
GRADED: dict[str, Any] = {
    "prompt": MESSAGES,
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "test", "index": 0},
}
"""A row as verl's script for MATH writes it; verl's for GSM8K adds the question and the worked solution."""
SOLUTION = {"index": 0, "question": "3+1?", "answer": "3+1=<<3+1=4>>4\n#### 4"}
SOLVED = GRADED | {"extra_info": SOLUTION}
TARGET = {"question": "Who?", "reward_model": {"ground_truth": {"target": ["Ann", "A. B."]}}}
LINES = "a\u2028b\u2029c\x85d"


@pytest.mark.parametrize(
    "name, raw, question, answers",
    [
        ("qa", {"question": "3+1?", "answer": 4.0}, "3+1?", "4"),
        ("qa", {"question": "Who?", "answer": ["Ann", "A. B."]}, "Who?", "Ann|A. B."),
        ("qa", {"question": "Which list?", "answer": '["a", "b"]'}, "Which list?", '["a", "b"]'),
        ("qa", {"question": "1/10?", "answer": 0.1}, "1/10?", "0.1"),
        ("qa", {"question": LINES, "answer": LINES}, LINES, LINES),
        ("qa", {"question": MESSAGES, "answer": "4"}, "Be brief.\n\n3+1?", "4"),
        ("qa", {"question": PARTS, "answer": "4"}, "3+1?", "4"),
        ("qa", GRADED, "Be brief.\n\n3+1?", "4"), ("qa", SOLVED, "3+1?", "4"), ("qa", TARGET, "Who?", "Ann|A. B."),
        ("nq", GRADED, "Be brief.\n\n3+1?", "4"), ("nq", SOLVED, "3+1?", "4"), ("nq", TARGET, "Who?", "Ann|A. B."),
        ("math500", SOLVED, "3+1?", "4"), ("math", SOLVED, "3+1?", "4"), ("math", GRADED, "Be brief.\n\n3+1?", "4"),
        ("gsm8k", SOLVED, "3+1?", "4"),
    ],
)  # fmt: skip
def test_questions_and_golds_of_the_shapes_people_use_in_every_format(
    name: str, raw: dict[str, Any], question: str, answers: str, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text(json.dumps([raw]))
    files = [tmp_path / "a.json", tmp_path / "b.jsonl", table(tmp_path / "c.parquet", [raw])]
    files[1].write_text(json.dumps(raw, ensure_ascii=False) + "\n", "utf-8")
    for file in files:
        if name == "qa":
            folder = tmp_path / file.stem
            folder.mkdir()
            shutil.copy(file, folder / f"train{file.suffix}")
            shutil.copy(file, folder / f"heldout{file.suffix}")
            settings = dataset_type("qa").model_validate({"name": "qa", "source": str(folder)})
            [row] = QuestionsAndAnswers(settings).rows("heldout")
        else:
            [row] = read(file, find(name).row)
        assert row.question == question
        assert [row.answer, *getattr(row, "aliases", ())] == answers.split("|")
        assert row.id == question_key(question), "unique in both splits, unlike extra_info.index"


def test_a_number_loses_its_commas_and_the_id_does_not_hang_on_case_or_spacing(
    tmp_path: Path,
) -> None:
    [row] = read(jsonl(tmp_path / "a.jsonl", sums(1233, 1234)), Gsm8kRow)
    assert row.answer == "1234"
    assert row.id == question_key("what is  1233 and ONE?") != question_key("What is 1233 or one?")


@pytest.mark.parametrize(
    "name, change, said",
    [
        ("hotpot_qa", {"question": None}, "question"),
        ("hotpot_qa", {"answer": " "}, "answer: must hold some text"),
        ("hotpot_qa", {"context": []}, "context"),
        ("hotpot_qa", {"context": [["Emma", "no list"]]}, "context.0.sentences"),
        ("hotpot_qa", {"context": {"title": ["Emma"], "sentences": []}}, "different lengths"),
        ("hotpot_qa", {"supporting_facts": [["Emma", "1"]]}, "supporting_facts.0.sentence"),
        ("hotpot_qa", {"supporting_facts": [["Persuasion", 0]]}, "among the paragraphs"),
        ("gsm8k", {"answer": "It is 8."}, "no '####'"),
        ("gsm8k", {"answer": "It is 8.\n#### eight"}, "'eight' is not a number"),
        ("gsm8k", {"answer": 8}, "answer"),
        ("gsm8k", {"question": 8}, "question"),
    ],
)
def test_a_broken_row_is_named_by_file_and_line(
    name: str, change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    good = HOTPOT if name == "hotpot_qa" else sums(7, 8)[0]
    file = jsonl(tmp_path / "rows.jsonl", [good, good | change, good])
    with pytest.raises(UserError) as error:
        load_rows(name, "train", file)
    assert f"{file}, line 2 is broken" in error.value.what and said in error.value.what
    lacking = {key: value for key, value in good.items() if key != "question"}
    with pytest.raises(UserError, match=r"line 1 is broken: question: is missing"):
        load_rows(name, "train", jsonl(file, [lacking]))


def test_a_file_that_is_no_data_is_refused(tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_text(json.dumps(sums(0, 1)[0]) + '\n{"question": "What')
    (tmp_path / "one.json").write_text(json.dumps(HOTPOT))
    (tmp_path / "not.parquet").write_text("PAR")
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "caf\xe9"}\n')
    (tmp_path / "rows.xml").write_text("question,answer\n")
    for name, said in [
        ("cut.jsonl", "cut.jsonl, line 2 is broken"), ("one.json", "is not a list of rows"),
        ("not.parquet", "parquet"), ("latin.jsonl", "not UTF-8"), ("rows.xml", "unknown format"),
        ("none.jsonl", "no file"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=said):
            load_rows("gsm8k", "train", tmp_path / name)


# Splits


def splits(source: Path, name: str = "gsm8k", share: float = 0.1) -> dict[str, list[str]]:
    found = load(name, source, share).rows.items()
    return {split: [row.answer for row in rows] for split, rows in found}


def test_no_question_is_in_both_splits(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [*sums(0, 6), *sums(0, 2)])
    again = [{**row, "question": row["question"].upper() + " "} for row in sums(4, 6)]
    jsonl(tmp_path / "dev.jsonl", [*sums(6, 8), *again, again[0]])
    found = load("gsm8k", tmp_path)
    assert [row.answer for row in found.rows["train"]] == ["1", "2", "3", "4"]
    assert [row.answer for row in found.rows["heldout"]] == ["7", "8", "5", "6"]
    assert found.left_out == {"is a duplicate": 3, "is held out": 2}


def test_a_folder_of_both_splits_is_taken_as_it_is(tmp_path: Path) -> None:
    for split, rows in (("train", sums(0, 3)), ("heldout", sums(3, 5))):
        jsonl(tmp_path / f"{split}.jsonl", rows)
    assert splits(tmp_path) == {"train": ["1", "2", "3"], "heldout": ["4", "5"]}
    jsonl(tmp_path / "heldout.jsonl", sums(2, 5))
    rows = Rows(dataset_type("gsm8k").model_validate({"name": "gsm8k", "source": str(tmp_path)}))
    with pytest.raises(UserError, match="1 questions of gsm8k are both training and held-out"):
        rows.split("train")


def test_one_split_is_divided_by_the_questions_alone(tmp_path: Path) -> None:
    few = splits(jsonl(tmp_path / "few.jsonl", sums(0, 60)), share=0.3)
    many = splits(jsonl(tmp_path / "m.jsonl", sums(0, 300)[::-1]), share=0.3)
    assert set(few["heldout"]) == set(many["heldout"]) & {str(n) for n in range(1, 61)}
    assert 60 < len(many["heldout"]) < 120 and len(many["train"] + many["heldout"]) == 300


def test_files_that_do_not_make_two_splits_are_refused(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", sums(0, 4))
    jsonl(tmp_path / "x.jsonl", sums(4, 8))
    (tmp_path / "empty").mkdir()
    one = jsonl(tmp_path / "empty/../one.jsonl", sums(0, 1))
    for said, source in [
        ("not clear from its name", tmp_path), ("no heldout row of gsm8k is left", one),
        ("no file or folder", tmp_path / "none"), ("has no .jsonl", tmp_path / "empty"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=said):
            load("gsm8k", source)


@real_rows
def test_published_files_of_a_user_are_divided(tmp_path: Path) -> None:
    for name, split in (("train_first2000", "train"), ("test", "test")):
        shutil.copy(SHARED / f"gsm8k/{name}.jsonl", tmp_path / f"{split}.jsonl")
    assert {split: len(rows) for split, rows in splits(tmp_path).items()} == {
        "train": 2000,
        "heldout": 1000,
    }
    plans = load("gsm8k_plans", tmp_path)
    assert [len(plans.rows[split]) for split in SPLITS] == [1871, 917]
    wiki = splits(SHARED / "hotpotqa/dev_distractor_200_with_context.jsonl", "hotpot_qa", 0.3)
    assert sum(map(len, wiki.values())) == 140
    with pytest.raises(UserError, match=r"dev_qa_first3000.jsonl, line 1 is broken: id"):
        load("hotpot_qa", SHARED / "hotpotqa/dev_qa_first3000.jsonl")


# The hub, with its real client, from a server of our own


def test_a_set_is_downloaded_once(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    [repo] = find("gsm8k").repos
    parts = {repo.train[0]: sums(0, 40), repo.heldout[0]: sums(40, 50)}
    files = {name: table(tmp_path / "a.parquet", rows).read_bytes() for name, rows in parts.items()}
    with stub_hub(files, tmp_path / "cache", monkeypatch) as served:
        said = cli("data", "download", "gsm8k")
        assert said.code == 0 and said.out == "train: 40 rows\nheldout: 10 rows\n", said.err
        assert any(f"openai/gsm8k/resolve/{repo.revision}/" in path for path in served.asked)
        before = len(served.asked)
        rows = Rows(dataset_type("gsm8k").model_validate({"name": "gsm8k"}))
        assert [row.answer for row in rows.split("heldout")][:2] == ["41", "42"]
        assert rows.content() == f"openai/gsm8k@{repo.revision}"
        assert len(served.asked) == before, "a pinned revision in the cache needs no network"


def test_without_a_network_the_repository_and_the_remedy_are_named(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stub_hub({}, tmp_path / "cache", monkeypatch):
        pass
    said = refused(cli, "data", "download", "hotpot_qa")
    assert "distractor/validation-00000-of-00001.parquet of hotpotqa/hotpot_qa" in said
    assert "`coterie data download hotpot_qa` on another machine" in said
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refused(cli, "evaluate", "hotpot_qa", "policy=tiny-exchange")
    assert "aime24 has no files" in refused(cli, "data", "download", "aime24")
    assert "known sets: hotpot_qa, 2wiki" in refused(cli, "data", "download", "hotpotqa")


def test_the_list_has_every_set(cli: Cli) -> None:
    listed = cli("data", "list")
    assert listed.code == 0 and "CC BY-SA 4.0" in listed.out and "90,447" in listed.out
    assert all(name in listed.out for name in (*CATALOGUE, *PREFERENCE_SETS))
