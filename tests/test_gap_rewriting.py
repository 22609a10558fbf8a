"""Sequential traces that a chat model makes parallel: what of its replies is believed, and what becomes of a file.

A scripted service stands for the paid model; what it "writes" is made up. A model of ours is asked for real too.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from coterie.datasets.local import load_rows
from coterie.datasets.rows import QuestionRow
from coterie.environments.workflow.expert import trace_of
from coterie.environments.workflow.names import words
from coterie.environments.workflow.steps import NoTrace
from coterie.environments.workflow.trace import Trace
from coterie.progress import Silent
from coterie.recipes.gap.files import rewriting
from coterie.recipes.gap.files.rewriting import (
    NotSequential,
    Refused,
    read_parallel,
    read_sequential,
)
from coterie.recipes.gap.files.traces import TraceRow, read_traces, write_traces
from tests.conftest import Cli
from tests.test_endpoint import Answer, fails, says, service

QUESTION = "Who is older, the director of Low Tide or the director of Glass Harbour?"
QUERIES = ("director of Low Tide", "director of Glass Harbour", "Ann Vell born", "Rolf Birk born")
FOUND = ("Low Tide was directed by Ann Vell.", "Glass Harbour is a film by Rolf Birk.",
         "Ann Vell (born 1951) is a director.", "Rolf Birk was born in 1948 in Oslo.")  # fmt: skip
PLAN = (
    "<plan>\nT1: director of Low Tide\n- Dependencies: none\nT2: director of Glass Harbour\n- Dependencies: none\n"
    "T3: when {T1} was born\n- Dependencies: T1\nT4: when {T2} was born\n- Dependencies: T2\n</plan>"
)
FIRST = f"<think>Two directors.</think>\n{PLAN}\n<think>Both films.</think>\n"
GOOD = (
    f"{FIRST}<wiki_search>{QUERIES[0]}|{QUERIES[1]}</wiki_search>\n<observation>[result 1]</observation>\n"
    f"<observation>[result 2]</observation>\n<think>Ann Vell and Rolf Birk.</think>\n"
    f"<wiki_search>{QUERIES[2]}|{QUERIES[3]}</wiki_search>\n<observation>[result 3]</observation>\n"
    "<observation>[result 4]</observation>\n<think>1948 is before 1951.</think>\n<answer>Rolf Birk</answer>"
)


def sequential(question: str = QUESTION, answer: str = "Rolf Birk") -> TraceRow:
    said = "".join(
        f"<think>Next.</think>\n<wiki_search>{query}</wiki_search>\n<observation>\n{found}\n</observation>\n\n"
        for query, found in zip(QUERIES, FOUND, strict=True)
    )
    output = f"{said}<think>So.</think>\n<answer>{answer}</answer>"
    return TraceRow(instruction=f"Do it.\n\nQuestion: {question}", output=output)


def test_results_stand_where_their_marks_are_to_the_letter() -> None:
    row = sequential()
    made = read_parallel(f"Here it is:\n```\n{GOOD}\n```", read_sequential(row))
    assert made.startswith("<think>Two") and made.endswith("<answer>Rolf Birk</answer>")
    assert made.count("<wiki_search>") == 2 and "[result" not in made
    for found in FOUND:
        assert made.count(f"<observation>\n{found}\n</observation>") == 1
    assert made.index(FOUND[1]) < made.index("Ann Vell born") < made.index(FOUND[2])
    merged = GOOD.replace("[result 1]</observation>\n<observation>", "[result 1]")
    assert read_parallel(merged, read_sequential(row)) == made, (
        "two marks in one tag are two results"
    )


ASKED = [f"{QUESTION} (number {n})" for n in range(4)]


def swapped(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(("changes", "reason"), [
    ([(PLAN, "")], rewriting.NO_PLAN),
    ([(PLAN, PLAN * 2)], rewriting.NO_PLAN),
    ([("- Dependencies: T2", "- Dependencies: T9")], rewriting.BROKEN_PLAN),
    ([("T1: director of Low Tide\n- Dependencies: none", "T1: director of Low Tide\n- Dependencies: T3")],
     rewriting.BROKEN_PLAN),
    ([(f"|{QUERIES[3]}", ""), ("<observation>[result 4]</observation>\n", "")], rewriting.OTHER_QUERIES),
    ([(QUERIES[3], "Rolf Birk date of birth")], rewriting.OTHER_QUERIES),
    ([(f"|{QUERIES[3]}", f"|{QUERIES[3]}|{QUERIES[3]}")], rewriting.OTHER_QUERIES),
    ([("<observation>[result 4]</observation>\n", "")], rewriting.OTHER_RESULTS),
    ([("[result 3]", "[result 9]")], rewriting.OTHER_RESULTS),
    ([("[result 1]", "[result 0]"), ("[result 2]", "[result 1]"), ("[result 0]", "[result 2]")],
     rewriting.OTHER_RESULTS),
    ([("[result 1]", "Low Tide was directed by Ann Vell.")], rewriting.OTHER_RESULTS),
    ([("[result 1]", "[result 1] So Ann Vell.")], rewriting.OTHER_RESULTS),
    ([("<answer>Rolf Birk", "<answer>Ann Vell")], rewriting.OTHER_ANSWER),
    ([("when {T1} was born", "when that Ann Vell was born")], rewriting.UNKNOWN),
    ([("Both films.", "Both, and 1951.")], rewriting.UNKNOWN),
    ([("- Dependencies: none\nT3", "- Dependencies: T1\nT3")], rewriting.EARLY),
    ([("<think>1948 is before 1951.</think>\n", "")], rewriting.ORDER),
    ([("<answer>Rolf Birk</answer>", "")], rewriting.ORDER),
])  # fmt: skip
def test_a_reply_that_changes_more_than_the_order_is_refused(
    changes: list[tuple[str, str]], reason: str
) -> None:
    own = read_sequential(sequential())
    with pytest.raises(Refused) as refused:
        read_parallel(swapped(GOOD, *changes), own)
    assert refused.value.reason == reason, str(refused.value)


def test_a_search_in_the_same_round_as_what_it_needs_is_refused() -> None:
    plan = swapped(PLAN, ("- Dependencies: T1", "- Dependencies: none"), ("{T1}", "the first"),
                   ("- Dependencies: T2", "- Dependencies: none"), ("{T2}", "the second"))  # fmt: skip
    marks = "".join(f"<observation>[result {n}]</observation>\n" for n in (1, 2, 3, 4))
    flat = (
        f"<think>All.</think>\n{plan}\n<think>Now.</think>\n<wiki_search>{'|'.join(QUERIES)}</wiki_search>\n"
        f"{marks}<think>So.</think>\n<answer>Rolf Birk</answer>"
    )
    with pytest.raises(Refused, match="'Vell' is known only from a later result"):
        read_parallel(flat, read_sequential(sequential()))


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("wiki_search>", "web_search>", "it calls web_search"),
    ("</observation>\n\n<think>So.", "</observation>\n\n<wiki_search>more</wiki_search><think>So.", "has no result"),
    (f"<wiki_search>{QUERIES[0]}</wiki_search>\n", "", "no search of its own"),
    ("Question:", "Q:", "no question"),
])  # fmt: skip
def test_traces_whose_searches_and_results_do_not_pair_are_not_asked_for(
    old: str, new: str, reason: str
) -> None:
    row = sequential()
    changed = row.model_copy(
        update={name: getattr(row, name).replace(old, new) for name in ("output", "instruction")}
    )
    with pytest.raises(NotSequential, match=reason):
        read_sequential(changed)


def of_expert(row: QuestionRow, trace: Trace) -> tuple[TraceRow, str]:
    """What an expert says one by one, and its parallel trace as a model would write it."""
    shown, number = list[str](), dict[str, int]()
    for query in (one for each in trace.rounds("sequential") for one in each):
        near = max(row.passages, key=lambda p: len(set(words(p.title)) & set(words(query.text))))
        number[query.text] = len(number) + 1
        shown.append(f"<observation>\n{near.title}: {near.text}\n{query.found}\n</observation>")
    rounds = trace.rounds("parallel")
    marks = [
        [f"<observation>[result {number[q.text]}]</observation>" for q in one] for one in rounds
    ]
    told = interleaved(trace.messages("sequential"), shown)
    return TraceRow(instruction=f"Question: {row.question}", output=told), interleaved(
        trace.messages("parallel"), ["\n".join(one) for one in marks]
    )


def interleaved(said: Sequence[str], shown: Sequence[str]) -> str:
    return "\n".join(part for pair in zip(said, [*shown, ""], strict=True) for part in pair).strip()


def test_all_that_an_expert_writes_is_believed() -> None:
    believed, refused = 0, list[str]()
    for name in ("2wiki", "hotpot_qa", "musique"):
        for row in load_rows(name, "train", "sample"):
            try:
                trace = trace_of(row)
            except NoTrace:
                continue
            told, reply = of_expert(row, trace)
            try:
                made = read_parallel(reply, read_sequential(told))
            except Refused as error:
                refused.append(f"{row.question} {error}")
                continue
            assert made.count("<wiki_search>") == len(trace.levels)
            believed += 1
    assert believed > 50 and not refused


def written(text: str, finish: str = "stop") -> Answer:
    choice = {"message": {"content": text}, "finish_reason": finish, "index": 0}
    return says(200, {"choices": [choice]})


def asked_with(cli: Cli, *script: Answer, words: Sequence[str] = ()) -> tuple[str, list[str], int]:
    """What the command says, the last message of each request, and its exit status."""
    with service(*script) as server:
        said = cli("import", "gap", "sequential.json", "--out", "parallel.json", "model=paid",
                   f"url={server.url}", "concurrency=1", "retries=0", *words)  # fmt: skip
        return said.err, [body["messages"][-1]["content"] for body in server.bodies], said.code


def test_a_reply_that_is_refused_is_asked_for_again_with_the_reason(cli: Cli) -> None:
    rows = [sequential(one) for one in ASKED]
    other = rows[3].model_copy(update={"output": "<think>I know.</think><answer>x</answer>"})
    write_traces(Path("sequential.json"), [*rows[:3], other])
    bad = written(GOOD.replace("|", " and "))
    said, asked, code = asked_with(cli, bad, written(GOOD), bad, bad, bad, written(GOOD, "length"))
    assert code == 0, said
    assert "success: 1" in said and "exception: 1 (it searches for nothing)" in said
    assert f"validation failed: 1 ({rewriting.OTHER_QUERIES})" in said
    assert "validation failed: 1 (the reply is too long)" in said
    assert len(asked) == 2 + 3 + 3
    assert rewriting.OTHER_QUERIES in asked[1] and "[result 4]" in asked[0]
    found = read_traces(Path("parallel.json"), Silent()).rows
    assert [one.conversion_status for one in found] == [
        "success", "validation_failed", "validation_failed", "exception",
    ]  # fmt: skip
    assert found[0].output.count("<wiki_search>") == 2
    assert [one.original_output for one in found] == [one.output for one in (*rows[:3], other)]
    assert [one.output for one in found[1:]] == [one.output for one in (*rows[1:3], other)]


def test_a_command_that_was_cut_asks_only_for_what_is_left(cli: Cli) -> None:
    write_traces(Path("sequential.json"), [sequential(one) for one in ASKED[:3]])
    down = fails(500, "down")
    said, asked, code = asked_with(cli, written(GOOD), down, down)
    assert code == 0 and len(asked) == 3 and "failed: 2 (the model gave no reply" in said
    Path("parallel.json").unlink()
    said, asked, code = asked_with(cli, written(GOOD))
    assert code == 0 and len(asked) == 2 and "success: 3" in said
    statuses = [row["conversion_status"] for row in json.loads(Path("parallel.json").read_text())]
    assert statuses == ["success"] * 3


def test_a_model_that_replies_to_nothing_is_an_error_and_no_file_is_written(cli: Cli) -> None:
    write_traces(Path("sequential.json"), [sequential()])
    said, asked, code = asked_with(cli, fails(500, "down"))
    assert code == 2 and len(asked) == 1 and "parallel.work.jsonl" in said
    assert not Path("parallel.json").exists()
    Path("parallel.json").touch()
    said, asked, code = asked_with(cli, written(GOOD))
    assert code == 2 and not asked and "parallel.json" in said


def test_a_model_of_ours_is_asked_too(cli: Cli) -> None:
    """A tiny model gets nothing right in a few tokens: the trace stays as it is."""
    brief = TraceRow(
        instruction="Question: A?",
        output="<think>a</think><wiki_search>a</wiki_search><observation>b</observation><think>b</think>"
        "<answer>b</answer>",
    )
    write_traces(Path("sequential.json"), [brief])
    said = cli("import", "gap", "sequential.json", "--out", "parallel.json", "model=tiny-exchange", "tries=1",
               "max_tokens=8", "engine.device=cpu")  # fmt: skip
    assert said.code == 0, said.err
    (row,) = read_traces(Path("parallel.json"), Silent()).rows
    assert row.output == brief.output
    assert row.conversion_status == "validation_failed", said.err
