"""GAP's files: whole traces for fine-tuning and prompts for reinforcement learning, read and written."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from coterie.datasets.answer_rows import AnswerRow
from coterie.datasets.local import load_rows
from coterie.errors import UserError
from coterie.recipes.gap.files.prompts import (
    Answers,
    Programme,
    PromptRow,
    Said,
    Value,
    read_prompts,
    write_prompts,
)
from coterie.recipes.gap.files.traces import flaw, observations, read_traces, write_traces

TRACE = "<plan>\nT1: look\n</plan>\n<observation>\nÖslo\n</observation>\n\n<answer>Oslo</answer>"
ROWS = [
    {"instruction": "Use tools.\n\nQuestion: Where?", "input": "", "output": TRACE},
    {
        "instruction": "Use tools.",
        "input": "When?",
        "output": TRACE,
        "conversion_status": "success",
        "original_output": "old",
    },
]
QUESTION = {
    "data_source": "nq",
    "prompt": [{"role": "user", "content": "Use tools.\n\nQuestion: Who?"}],
    "reward_model": {"ground_truth": json.dumps({"target": ["Ann", "A. B."], "question": "Who?"})},
    "extra_info": {
        "need_tools_kwargs": True,
        "index": "nq-1",
        "question": "Who?",
        "answer": ["Ann", "A. B."],
        "tools_kwargs": {
            "wiki_search": {
                "create_kwargs": {
                    "ground_truth": "x",
                    "question": "Who?",
                    "data_source": "nq",
                }
            }
        },
    },
}
MATHS = {
    "data_source": "aime24",
    "ability": "fact-reasoning",
    "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "1+1?"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {
        "index": "7",
        "question": "1+1?",
        "tools_kwargs": {"code": {"TODO": "create_kwargs"}},
    },
}
CODE = {
    "data_source": "lcb",
    "ability": "coding",
    "prompt": [{"role": "user", "content": "Add one."}],
    "reward_model": {
        "style": "rule",
        "ground_truth": json.dumps({"stdin": ["1"], "expected_output": ["2"], "question_id": "q"}),
    },
    "extra_info": {
        "index": "lcb-1",
        "question": "Add one.",
        "platform": "atcoder",
        "difficulty": "easy",
        "contest_date": "2024-10-01",
        "tools_kwargs": {"code": {"TODO": "create_kwargs"}},
    },
}


def sft(file: Path, rows: Any) -> Path:
    file.write_text(json.dumps(rows, ensure_ascii=False))
    return file


def rl(file: Path, *rows: dict[str, Any]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file)
    return file


# Traces


def test_traces_are_the_same_after_they_were_written(tmp_path: Path) -> None:
    found = read_traces(sft(tmp_path / "a.json", ROWS))
    assert [row.question for row in found.rows] == ["Where?", "When?"]
    assert found.rows[1].prompt == "Use tools.\nWhen?" and found.numbers == (1, 2)
    assert write_traces(tmp_path / "b.json", found.rows) == 2
    assert read_traces(tmp_path / "b.json") == found
    assert json.loads((tmp_path / "b.json").read_text()) == ROWS
    with pytest.raises(UserError, match="exists already"):
        write_traces(tmp_path / "b.json", found.rows)


@pytest.mark.parametrize(
    "said",
    [
        {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": TRACE}]},
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": TRACE}]},
    ],
)
def test_messages_are_read_as_the_same_row(said: dict[str, Any], tmp_path: Path) -> None:
    plain = read_traces(sft(tmp_path / "a.json", [{"instruction": "Q", "output": TRACE}]))
    assert read_traces(sft(tmp_path / "b.json", [said])) == plain


@pytest.mark.parametrize(
    "row, said",
    [
        ({"instruction": "Q"}, "output: is missing"),
        ({"instruction": " ", "output": TRACE}, "instruction"),
        ({"instruction": "Q", "output": TRACE, "conversion_status": "odd"}, "conversion_status"),
        ({"messages": [{"role": "user", "content": "Q"}]}, "its roles are user"),
        ({"messages": "Q"}, "not a list of messages"),
        (7, "broken"),
    ],
)
def test_a_row_that_is_no_trace_is_named(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.json, row 3 is broken") as error:
        read_traces(sft(tmp_path / "a.json", [*ROWS, row]))
    assert said in error.value.what


@pytest.mark.parametrize(
    "trace, reason",
    [
        ("<observation>a<observation>b</observation></observation><answer>x</answer>", "observation in an"),
        ("<answer>x</answer><observation>a", "never closed"),
        ("a</observation><answer>x</answer>", "has not begun"),
        ("<observation>a</observation>", "has no answer"),
        ("<answer> </answer>", "has no answer"),
    ],
)  # fmt: skip
def test_traces_that_can_not_be_trained_on_are_told_with_their_numbers(
    trace: str, reason: str, tmp_path: Path
) -> None:
    broken = {"instruction": "Q", "output": trace}
    found = read_traces(sft(tmp_path / "a.json", [ROWS[0], broken, ROWS[1]]))
    assert found.numbers == (1, 3) and [one.row for one in found.broken] == [2]
    assert reason in found.broken[0].reason and reason in flaw(trace)
    with pytest.raises(UserError, match="no trace of"):
        read_traces(sft(tmp_path / "b.json", [broken]))


def test_observations_are_places_of_characters_with_their_tags() -> None:
    [(start, end)] = observations(TRACE)
    assert TRACE[start:end] == "<observation>\nÖslo\n</observation>"
    # An end that no blank line follows, which a scan of tokens would miss
    two = "a<observation>b</observation>c<observation>d</observation>"
    assert [two[a:b] for a, b in observations(two)] == [
        "<observation>b</observation>",
        "<observation>d</observation>",
    ]


# Prompts


def test_prompts_of_all_kinds_are_the_same_after_they_were_written(tmp_path: Path) -> None:
    rows = read_prompts(rl(tmp_path / "a.parquet", QUESTION, MATHS, CODE))
    assert [row.index for row in rows] == ["nq-1", "7", "lcb-1"]
    assert rows[0].gold == Answers(target=("Ann", "A. B."), question="Who?")
    assert rows[1].gold == Value(text="2") and rows[1].prompt[0].role == "system"
    assert rows[2].gold == Programme(stdin=("1",), expected_output=("2",), question_id="q")
    assert [row.tools for row in rows] == [("wiki_search",), ("code",), ("code",)]
    assert (rows[2].platform, rows[2].contest_date) == ("atcoder", "2024-10-01")
    write_prompts(tmp_path / "b.parquet", rows)
    assert read_prompts(tmp_path / "b.parquet") == rows


def test_answers_are_objects_for_training_and_texts_for_evaluation(tmp_path: Path) -> None:
    rows = read_prompts(rl(tmp_path / "a.parquet", QUESTION))
    for form in ("text", "object"):
        write_prompts(tmp_path / f"{form}.parquet", rows, form)  # type: ignore[arg-type]
        assert read_prompts(tmp_path / f"{form}.parquet") == rows
    truth = {
        form: parquet.read_table(tmp_path / f"{form}.parquet").to_pylist()[0]["reward_model"]
        for form in ("text", "object")
    }
    target = {"target": ["Ann", "A. B."], "question": "Who?"}
    assert json.loads(truth["text"]["ground_truth"]) == truth["object"]["ground_truth"] == target
    other = read_prompts(rl(tmp_path / "c.parquet", MATHS))
    with pytest.raises(UserError, match="answers would be objects"):
        write_prompts(tmp_path / "d.parquet", [*rows, *other], "object")


@pytest.mark.parametrize("index", [None, "", " "])
def test_a_missing_index_is_an_error_that_names_the_row(index: Any, tmp_path: Path) -> None:
    wrong = QUESTION | {"extra_info": QUESTION["extra_info"] | {"index": index}}  # type: ignore[operator]
    with pytest.raises(UserError, match=r"row 2 is broken: .*extra_info\.index is missing"):
        read_prompts(rl(tmp_path / "a.parquet", QUESTION, wrong))


def test_an_index_of_two_rows_names_both(tmp_path: Path) -> None:
    file = rl(tmp_path / "a.parquet", QUESTION, MATHS, QUESTION)
    with pytest.raises(UserError, match=r"row 3 has the extra_info.index of row 1"):
        read_prompts(file)
    [row] = read_prompts(rl(tmp_path / "b.parquet", QUESTION))
    with pytest.raises(UserError, match="of several rows"):
        write_prompts(tmp_path / "c.parquet", [row, row])
    with pytest.raises(UserError, match="no row"):
        write_prompts(tmp_path / "c.parquet", [])


@pytest.mark.parametrize(
    "truth, said",
    [
        (None, "there is no right answer"),
        ({"target": []}, "target"),
        ({"target": [" "]}, "target.0"),
        ({"question": "Who?"}, "neither target nor stdin"),
        (json.dumps({"stdin": ["1"], "expected_output": []}), "other numbers"),
        (7, "not a text or an object"),
    ],
)
def test_a_question_without_gold_is_named(truth: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    wrong = MATHS | {"reward_model": {"ground_truth": truth}}
    file.write_text(json.dumps(QUESTION) + "\n" + json.dumps(wrong) + "\n")
    with pytest.raises(UserError, match=r"a\.jsonl, line 2 is broken") as error:
        read_prompts(file)
    assert said in error.value.what


def test_a_data_sets_row_becomes_a_prompt_and_comes_back(tmp_path: Path) -> None:
    row = load_rows("nq", "heldout", "sample")[0]
    made = PromptRow.of(row, "nq", [Said(role="user", content=row.question)], ["wiki_search"])
    write_prompts(tmp_path / "a.parquet", [made])
    [back] = read_prompts(tmp_path / "a.parquet")
    assert back == made and back.index == f"nq-{row.id}"
    asked = back.question_row()
    assert isinstance(row, AnswerRow) and asked.answers == row.answers
    assert asked.question == row.question
    # such a file is a source of the set, too
    assert load_rows("nq", "heldout", tmp_path / "a.parquet") == [asked]
    [code] = read_prompts(rl(tmp_path / "b.parquet", CODE))
    with pytest.raises(ValueError, match="has tests"):
        code.question_row()
