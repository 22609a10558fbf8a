"""Data sets: rows are validated, splits are disjoint, files come from the hub or from the user."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import huggingface_hub.constants as hub
import pytest

from coterie.datasets.catalogue import CATALOGUE, FOLDER, SPLITS, find
from coterie.datasets.files import read_rows
from coterie.datasets.load import Rows, dataset_type, load_rows
from coterie.datasets.question_files import QuestionsAndAnswers
from coterie.datasets.rows import question_key
from coterie.errors import UserError
from tests.conftest import Cli, refused
from tests.helpers.serve_hub import stub_hub
from tests.helpers.write_rows import write_jsonl, write_parquet


def sums(start: int, stop: int) -> list[dict[str, str]]:
    """Rows in upstream's form of GSM8K."""
    return [
        {"question": f"What is {n} and one?", "answer": f"It is {n}+1.\n#### {n + 1:,}"}
        for n in range(start, stop)
    ]


# The rows that ship with the package


@pytest.mark.parametrize("name", [name for name, one in CATALOGUE.items() if one.packaged])
def test_a_sample_of_each_set_is_there_and_its_splits_are_disjoint(name: str) -> None:
    splits, least = find(name).splits, 9 if name == "musique" else 20  # its rows are long
    rows = {split: load_rows(name, "sample").rows[split] for split in splits}
    every = [row for some in rows.values() for row in some]
    assert all(len(some) >= least for some in rows.values()) and len(every) <= 100
    assert {type(row) for row in every} == {find(name).row}
    assert len({row.key for row in every}) == len({row.id for row in every}) == len(every)
    assert f"## {name}" in (FOLDER / "LICENCES.md").read_text()


# Questions and answers of a user's file

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
        ("qa", GRADED, "Be brief.\n\n3+1?", "4"), ("qa", SOLVED, "Be brief.\n\n3+1?", "4"),
        ("qa", TARGET, "Who?", "Ann|A. B."),
        ("nq", GRADED, "Be brief.\n\n3+1?", "4"), ("nq", TARGET, "Who?", "Ann|A. B."),
        ("math500", SOLVED, "3+1?", "4"), ("math", SOLVED, "3+1?", "4"), ("gsm8k", SOLVED, "3+1?", "4"),
    ],
)  # fmt: skip
def test_questions_and_golds_of_the_shapes_people_use_in_every_format(
    name: str, raw: dict[str, Any], question: str, answers: str, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text(json.dumps([raw]))
    files = [write_jsonl(tmp_path / "b.jsonl", raw), write_parquet(tmp_path / "c.parquet", raw)]
    for file in [tmp_path / "a.json", *files]:
        if name == "qa":
            folder = tmp_path / file.stem
            folder.mkdir()
            for split in SPLITS:
                shutil.copy(file, folder / f"{split}{file.suffix}")
            settings = dataset_type("qa").model_validate({"name": "qa", "source": str(folder)})
            [row] = QuestionsAndAnswers(settings).rows("heldout")
        else:
            [row] = read_rows(file, find(name).row)
        assert row.question == question
        assert [row.answer, *getattr(row, "aliases", ())] == answers.split("|")
        assert row.id == question_key(question), "unique in both splits, unlike extra_info.index"


# Splits


def splits(source: Path, name: str = "gsm8k", share: float = 0.1) -> dict[str, list[str]]:
    rows = load_rows(name, source, share).rows.items()
    return {split: [row.answer for row in some] for split, some in rows}


def test_no_question_is_in_both_splits(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", *sums(0, 6), *sums(0, 2))
    again = [{**row, "question": row["question"].upper() + " "} for row in sums(4, 6)]
    write_jsonl(tmp_path / "dev.jsonl", *sums(6, 8), *again, again[0])
    loaded = load_rows("gsm8k", tmp_path)
    assert [row.answer for row in loaded.rows["train"]] == ["1", "2", "3", "4"]
    assert [row.answer for row in loaded.rows["heldout"]] == ["7", "8", "5", "6"]
    assert loaded.left_out == {"is a duplicate": 3, "is held out": 2}


def test_a_folder_of_both_splits_is_taken_as_it_is(tmp_path: Path) -> None:
    for split, rows in (("train", sums(0, 3)), ("heldout", sums(3, 5))):
        write_jsonl(tmp_path / f"{split}.jsonl", *rows)
    assert splits(tmp_path) == {"train": ["1", "2", "3"], "heldout": ["4", "5"]}
    write_jsonl(tmp_path / "heldout.jsonl", *sums(2, 5))
    rows = Rows(dataset_type("gsm8k").model_validate({"name": "gsm8k", "source": str(tmp_path)}))
    with pytest.raises(UserError, match="1 questions of gsm8k are both training and held-out"):
        rows.split("train")


def test_one_split_is_divided_by_the_questions_alone(tmp_path: Path) -> None:
    few = splits(write_jsonl(tmp_path / "few.jsonl", *sums(0, 60)), share=0.3)
    many = splits(write_jsonl(tmp_path / "m.jsonl", *sums(0, 300)[::-1]), share=0.3)
    assert set(few["heldout"]) == set(many["heldout"]) & {str(n) for n in range(1, 61)}
    assert 60 < len(many["heldout"]) < 120 and len(many["train"] + many["heldout"]) == 300


def test_a_set_for_evaluation_alone_takes_one_file_and_trains_on_nothing(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "test.jsonl", {"question": "Who?", "answer": "Ann"})
    settings = dataset_type("bamboogle").model_validate({"name": "bamboogle", "source": str(file)})
    rows = Rows(settings)
    assert [row.answer for row in rows.split("heldout")] == ["Ann"] and rows.content()
    with pytest.raises(UserError, match="for evaluation only"):
        rows.split("train")
    with pytest.raises(UserError, match="coterie has no packaged rows of aime24") as error:
        load_rows("aime24", "sample").rows["heldout"]
    assert "https://huggingface.co/datasets/HuggingFaceH4/aime_2024" in error.value.todo


# The hub, with its real client, from a server of our own


def test_a_set_is_downloaded_once(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    [repo] = find("gsm8k").repos
    parts = {repo.train[0]: sums(0, 40), repo.heldout[0]: sums(40, 50)}
    files = {
        name: write_parquet(tmp_path / "a.parquet", *rows).read_bytes()
        for name, rows in parts.items()
    }
    with stub_hub(files, tmp_path / "cache", monkeypatch) as served:
        result = cli("data", "download", "gsm8k")
        assert result.code == 0 and result.out == "train: 40 rows\nheldout: 10 rows\n", result.err
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
    monkeypatch.setattr(time, "sleep", lambda _: None)  # between the client's tries
    result = refused(cli, "data", "download", "hotpot_qa")
    assert "distractor/validation-00000-of-00001.parquet of hotpotqa/hotpot_qa" in result
    assert "`coterie data download hotpot_qa` on another machine" in result
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refused(cli, "evaluate", "hotpot_qa", "policy=tiny-exchange")
    assert "aime24 has no files" in refused(cli, "data", "download", "aime24")
    assert "known sets: hotpot_qa, 2wiki" in refused(cli, "data", "download", "hotpotqa")
