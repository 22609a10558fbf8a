"""Data sets: rows are validated, prepared sets are whole and disjoint, downloads resume and are checked."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from coterie.config.home import new_folder
from coterie.datasets.catalogue import CATALOGUE, SPLITS, find
from coterie.datasets.local import load_rows, sample_folder
from coterie.datasets.prepared import folder_of, read_manifest
from coterie.datasets.preparing import prepare
from coterie.datasets.reading import read_rows
from coterie.datasets.rows import Gsm8kRow, HotpotRow, question_key
from coterie.errors import UserError
from coterie.progress import Silent
from tests.conftest import Cli

pytestmark = pytest.mark.usefixtures("own_home")

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


def table(file: Path, rows: list[dict[str, Any]]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file


def read(file: Path, row: type) -> list:
    return list(read_rows(file, row, Silent()))


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
    folder = sample_folder(find(name))
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
        ("cut.jsonl", "cut.jsonl, line 2 is broken"), ("one.json", "no list of rows"),
        ("not.parquet", "parquet"), ("latin.jsonl", "not UTF-8"), ("rows.xml", "unknown format"),
        ("none.jsonl", "no file"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=said):
            load_rows("gsm8k", "train", tmp_path / name)


# Preparing


def prepared(name: str, *sources: Path, **options: Any) -> Path:
    target = folder_of(find(name))
    prepare(find(name), sources, target, Silent(), **options)
    return target


def test_a_prepared_set_loads_and_its_manifest_tells_what_it_is(tmp_path: Path, cli: Cli) -> None:
    jsonl(tmp_path / "train.jsonl", sums(0, 6))
    jsonl(tmp_path / "test.jsonl", sums(6, 10))
    said = cli("data", "prepare", "gsm8k", "--from", "train.jsonl", "--from", "test.jsonl")
    assert said.code == 0 and "train: 6 rows" in said.err
    assert [row.answer for row in load_rows("gsm8k", "heldout")] == ["7", "8", "9", "10"]
    folder = Path(said.out.strip())
    manifest = read_manifest(folder)
    assert (manifest.licence, manifest.source) == ("MIT", "train.jsonl, test.jsonl")
    digest = hashlib.sha256((folder / "train.jsonl").read_bytes()).hexdigest()
    assert (manifest.train.rows, manifest.train.sha256) == (6, digest)
    assert load_rows("gsm8k", "train", folder) == load_rows("gsm8k", "train")


def test_no_question_is_in_both_splits(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [*sums(0, 6), *sums(0, 2)])
    again = [{**row, "question": row["question"].upper() + " "} for row in sums(4, 6)]
    jsonl(tmp_path / "dev.jsonl", [*sums(6, 8), *again, again[0]])
    manifest = read_manifest(prepared("gsm8k", tmp_path))
    assert (manifest.train.rows, manifest.train.dropped) == (4, 4)
    assert (manifest.heldout.rows, manifest.heldout.dropped) == (4, 1)
    train, heldout = ({row.key for row in load_rows("gsm8k", split)} for split in SPLITS)
    assert not train & heldout


def test_one_split_is_divided_by_a_seed_whatever_else_is_in_it(tmp_path: Path) -> None:
    few, many = (
        jsonl(tmp_path / "few.jsonl", sums(0, 60)),
        jsonl(tmp_path / "m.jsonl", sums(0, 300)),
    )

    def heldout(file: Path, seed: int) -> set[str]:
        manifest = read_manifest(prepared("gsm8k", file, heldout=0.3, seed=seed))
        assert f"seed {seed}" in manifest.split and "0.3" in manifest.split
        return {row.id for row in load_rows("gsm8k", "heldout")}

    small, large = heldout(few, 0), heldout(many, 0)
    everything = {question_key(row["question"]) for row in sums(0, 60)}
    assert small == large & everything
    assert 60 < len(large) < 120
    assert heldout(many, 1) != large


def test_files_that_do_not_make_two_splits_are_refused(tmp_path: Path) -> None:
    train, other = (
        jsonl(tmp_path / "train.jsonl", sums(0, 4)),
        jsonl(tmp_path / "x.jsonl", sums(4, 8)),
    )
    test = jsonl(tmp_path / "test.jsonl", sums(4, 8))
    (tmp_path / "empty").mkdir()
    for said, sources, share in [
        ("no file of the heldout split", [train], None), ("tells no split", [train, other], None),
        ("several splits", [train, test], 0.5), ("is not a share", [train], 1.5),
        ("no row is left for the heldout split", [train], 1e-9), ("no file or folder", [test / "a"], None),
        ("has no .jsonl", [tmp_path / "empty"], None),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=said):
            prepared("gsm8k", *sources, heldout=share)
    assert not folder_of(find("gsm8k")).exists()


def test_a_failed_preparation_leaves_the_older_set_alone(tmp_path: Path, own_home: Path) -> None:
    train, test = (
        jsonl(tmp_path / "train.jsonl", sums(0, 4)),
        jsonl(tmp_path / "test.jsonl", sums(4, 8)),
    )
    prepared("gsm8k", train, test)
    jsonl(train, [*sums(0, 2), {"question": "broken"}])
    with pytest.raises(UserError, match=r"train.jsonl, line 3"):
        prepared("gsm8k", train, test)
    assert len(load_rows("gsm8k", "train")) == 4
    assert [path.name for path in (own_home / "data").glob("[!.]*")] == ["gsm8k"]
    assert not list((own_home / "data").glob("*.partial"))


def test_a_home_that_can_not_be_written_or_is_being_written_is_refused(
    tmp_path: Path, own_home: Path
) -> None:
    jsonl(tmp_path / "train.jsonl", sums(0, 4))
    jsonl(tmp_path / "test.jsonl", sums(4, 8))
    sources = [tmp_path / "train.jsonl", tmp_path / "test.jsonl"]
    with new_folder(folder_of(find("gsm8k"))), pytest.raises(UserError, match="just now"):
        prepared("gsm8k", *sources)
    shutil.rmtree(own_home)
    own_home.write_text("a file where the folder should be")
    with pytest.raises(UserError, match="COTERIE_HOME"):
        prepared("gsm8k", *sources)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", sums(0, 4))
    jsonl(tmp_path / "test.jsonl", sums(4, 8))
    folder = prepared("gsm8k", tmp_path)
    file = folder / "train.jsonl"
    file.write_text(file.read_text().replace("and one", "and two", 1))
    with pytest.raises(UserError, match="has changed since it was prepared"):
        load_rows("gsm8k", "train")
    assert len(load_rows("gsm8k", "heldout")) == 4
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"manifest.json can't be read"):
        load_rows("gsm8k", "heldout")


def test_missing_data_says_both_ways_and_an_unknown_set_names_the_known(cli: Cli) -> None:
    with pytest.raises(UserError) as error:
        load_rows("hotpot_qa", "train")
    assert "coterie data download hotpot_qa" in error.value.todo
    assert "coterie data prepare hotpot_qa --from" in error.value.todo
    said = cli("data", "download", "hotpotqa")
    assert (
        said.code == 2
        and "known sets: hotpot_qa, 2wiki, trivia_qa, cbt, gsm8k, svamp, math, arc_c, mmlu"
        in said.err
    )
    listed = cli("data", "list")
    assert listed.code == 0 and "CC BY-SA 4.0" in listed.out and "90,447" in listed.out


@real_rows
def test_upstreams_real_files_can_be_prepared() -> None:
    gsm8k = SHARED / "gsm8k"
    prepared("gsm8k", gsm8k / "train_first2000.jsonl", gsm8k / "test.jsonl")
    assert [len(load_rows("gsm8k", split)) for split in SPLITS] == [2000, 1000]
    prepared("hotpot_qa", SHARED / "hotpotqa/dev_distractor_200_with_context.jsonl", heldout=0.3)
    assert sum(len(load_rows("hotpot_qa", split)) for split in SPLITS) == 140
    with pytest.raises(UserError, match=r"dev_qa_first3000.jsonl, line 1 is broken: id"):
        load_rows("hotpot_qa", "train", SHARED / "hotpotqa/dev_qa_first3000.jsonl")


# Downloading, with the hub's real client, from a server of our own that answers as the hub does
