"""``coterie evaluate BENCHMARK``: models of any family, a run's checkpoints, and a server."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from coterie.evaluation import difference_interval
from coterie.record.store import Store
from coterie.runs.loop import EVALUATION
from tests.conftest import Cli, CliResult, refused
from tests.helpers.published_templates import published_tokenizer
from tests.helpers.serve_command import serve_command
from tests.helpers.template_models import random_model

FEW = ("tasks=2", "max_tokens=48", "engine.device=cpu")


def rows(result: CliResult) -> list[dict[str, Any]]:
    assert result.code == 0, result.err
    return list(json.loads(result.out.splitlines()[-1])["rows"])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server of the packaged model, a process of its own."""
    with serve_command("model", "tiny-exchange", "--port", "0", logs=True) as (_, address):
        yield f"{address}/v1"


@pytest.mark.slow
def test_a_model_and_a_server_of_it_have_equal_figures(cli: Cli, url: str) -> None:
    """By tokens and by text: greedy dialogues and the count of their tokens are equal."""
    local = ("evaluate", "exchange", "policy=tiny-exchange", *FEW)
    (model,) = rows(cli(*local))
    again = cli(*local)
    assert rows(again) == [model] and "2/2" not in again.err, "it is only read"
    words = ("evaluate", "exchange", f"policy={url}", "endpoint.model=tiny-exchange", *FEW[:2])
    first = cli(*words)
    (server,) = rows(first)
    assert (model["n"], model["failed"]) == (2, 0)
    keys = ("score", "tokens", "n")
    assert [model[key] for key in keys] == [server[key] for key in keys]
    other = cli(*words, "endpoint.template_args={thinking: true}")
    assert other.code == 0, other.err
    usage = [json.loads(one.out.splitlines()[-1])["usage"] for one in (first, other)]
    assert usage[0].split()[0] == usage[1].split()[0] != "0", "other arguments: other dialogues"
    one, two = rows(cli(*words, "samples=2", "temperature=1"))
    assert (one["k"], two["k"]) == (1, 2) and two["tokens"] > one["tokens"] > 0
    both = rows(cli(*words, "policy=tiny-exchange", "engine.device=cpu"))
    names = [f"{address}: tiny-exchange" for address in (url, "tiny-exchange")]
    assert [row["policy"] for row in both] == names, "labels differ where two have one name"
    assert both[0] == {**server, "policy": names[0]}
    assert both[1] == {**both[1], **model, "policy": names[1]}, "each as it is alone"
    assert [both[1][name] for name in DIFFERENCE] == [0, [-0.6576, 0.6576], names[0], 2]
    (alone,) = rows(cli(*words, "method=cot"))
    assert (alone["n"], alone["failed"]) == (2, 0) and alone["tokens"] > 0


DIFFERENCE = ("difference", "difference_ci", "difference_from", "difference_n")
LEVELS = "by=level"


def test_policies_are_compared_task_by_task_and_by_the_values_of_a_column(
    cli: Cli, run: Path
) -> None:
    overrides = ("tasks=12", "max_tokens=96", "engine.device=cpu", LEVELS)
    result = cli("evaluate", "exchange", "policies=[tiny-exchange, run, tiny-persona]", *overrides)
    first, trained, other = rows(result)
    assert not {*DIFFERENCE} & {*first}
    scores, levels = list[dict[str, float]](), dict[str, str]()
    files = [*Path("runs/evaluations").glob("*.sqlite"), *Path("run/evaluations").glob("*.sqlite")]
    for file in files:
        with Store.open(file, read_only=True) as store:
            trees = list(store.trees(0, EVALUATION))
            levels |= {tree.task: str(store.task(tree.task).public["level"]) for tree in trees}
            own = {tree.task: next(iter(tree.outcomes.values())).score or 0.0 for tree in trees}
        scores.append(own)
    by_mean = {round(fmean(own.values()), 4): own for own in scores}
    for row in (trained, other):
        pairs = [
            by_mean[row["score"]][task] - score
            for task, score in sorted(by_mean[first["score"]].items())
        ]
        expected = [round(end, 4) for end in difference_interval(pairs, seed=0)]
        assert [row[name] for name in DIFFERENCE] == [
            pytest.approx(row["score"] - first["score"], abs=1e-4), expected, "tiny-exchange", 12
        ]  # fmt: skip
    assert len({*levels.values()}) > 1
    for level, result_of in first["by"].items():
        of_level = [
            score for task, score in by_mean[first["score"]].items() if levels[task] == level
        ]
        assert (result_of["n"], result_of["score"]) == (len(of_level), round(fmean(of_level), 4))
    assert {*first["by"]} == {*levels.values()}
    assert "Difference from tiny-exchange" in result.out and "Scores by level" in result.out


def test_rows_of_a_file_are_grouped_by_any_of_their_columns(cli: Cli) -> None:
    lines = [{"question": f"{n}?", "answer": "x", "a": {"kind": "xy"[n % 2]}} for n in range(4)]
    Path("q.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ("q.jsonl", "policy=tiny-exchange", "dataset.heldout=1", "engine.device=cpu")
    (row,) = rows(cli("evaluate", *words, "max_tokens=2", "by=a.kind"))
    assert {value: of_value["n"] for value, of_value in row["by"].items()} == {"x": 2, "y": 2}
    assert "its columns are question, prompt, answer, a.kind" in refused(
        cli, "evaluate", *words, "by=kind"
    )


def test_all_checkpoints_of_a_run_in_one_table(cli: Cli, run: Path) -> None:
    every = rows(cli("evaluate", "exchange", "policy=run", *FEW, "--checkpoints", "all"))
    assert [row["version"] for row in every] == [0, 1]
    (newest,) = rows(cli("evaluate", "exchange", "policy=run", *FEW))
    assert newest | every[-1] == every[-1] and every[-1]["difference_from"] == "run base"
    best = ("best_of=2", "temperature=1", "tasks=2", "max_tokens=8")
    problem = refused(cli, "evaluate", "persona", "policy=tiny-persona", "critic=run", *best)
    assert "has no critic" in problem and "sweet_rl" in problem


def test_what_cannot_be_evaluated_is_refused(cli: Cli) -> None:
    for words, problem in (
        (("exchange", "policy=tiny-exchange", "samples=4"), "temperature=0.5"),
        (("exchange", "policy=tiny-exchange", "policy=tiny-persona", "dump=x"), "of one policy"),
        (("exchange", "policy=http://127.0.0.1:9/v1"), "endpoint.model"),
    ):  # fmt: skip
        assert problem in refused(cli, "evaluate", *words), words


FAMILIES = ("gemma", "gptoss", "deepseekv3")
"""No system role; channels; thoughts that prompts close."""
PROBLEM = {"problem": r"What is $\frac{1}{2}+1$, if $0<x$?", "answer": r"\frac{3}{2}", "subject": "x",
           "level": 1, "unique_id": "a", "solution": ""}  # fmt: skip
BENCHMARKS = {
    "gsm8k": "dataset.source=sample", "hotpot_qa": "dataset.source=sample", "exchange": "samples=1",
    "math500": "dataset.source=rows.jsonl",
}  # fmt: skip


def packed(text: str) -> str:
    """Return a text without white space, with which prompts break up what looks like a control token."""
    return "".join(text.split())


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_benchmarks_hold_the_whole_task(family: str, cli: Cli, tmp_path: Path) -> None:
    made = random_model(published_tokenizer(family), family, context=16384)
    made.model.save_pretrained("model")
    made.tokenizer.save_pretrained("model")
    Path("rows.jsonl").write_text(json.dumps(PROBLEM))
    for benchmark, pair in BENCHMARKS.items():
        overrides = ("policy=model", "tasks=1", "max_tokens=2", "engine.device=cpu", pair)
        (row,) = rows(cli("evaluate", benchmark, *overrides))
        assert (row["n"], row["failed"]) == (1, 0), benchmark
    prompts = 0
    for file in tmp_path.rglob("*.sqlite"):
        with Store.open(file, read_only=True) as store:
            (name,) = store.tasks_of(0, EVALUATION)
            tree, task = store.tree(0, EVALUATION, name), store.task(name)
        for request in tree.requests.values():
            if request.previous is None:
                prompts += 1
                shown = packed(made.renderer.decode(request.ids))
                texts = [part.text for message in request.messages for part in message.parts]
                texts += [str(task.public["question"])] if "question" in task.public else []
                assert texts and all(packed(text) in shown for text in texts)
    assert prompts >= len(BENCHMARKS)
