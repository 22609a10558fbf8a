"""``coterie evaluate BENCHMARK``: models of any family, a run's checkpoints, and a server."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.record.store import Store
from coterie.runs.loop import EVALUATION
from tests.conftest import SMALL, Cli, CliResult
from tests.published_templates import published
from tests.templates import random_model

FEW = ("tasks=4", "max_tokens=64", "engine.device=cpu")


def rows(said: CliResult) -> list[dict[str, Any]]:
    assert said.code == 0, said.err
    found: list[dict[str, Any]] = json.loads(said.out.splitlines()[-1])["rows"]
    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server of the packaged model, a process of its own."""
    words = [sys.executable, "-m", "coterie", "serve", "model", "tiny-exchange", "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        printed = re.search(r"http://\S+", server.stdout.readline())
        assert printed
        yield f"{printed[0]}/v1"
        server.terminate()


def test_a_model_and_a_server_of_it_have_equal_figures(cli: Cli, url: str) -> None:
    """By tokens and by text: greedy dialogues are the same, and so is the count of their tokens."""
    (model,) = rows(cli("evaluate", "exchange", "policy=tiny-exchange", *FEW))
    said = cli("evaluate", "exchange", f"policy={url}", "endpoint.model=tiny-exchange", *FEW[:2])
    (server,) = rows(said)
    assert model["n"] == 4 and model["failed"] == 0
    assert {k: model[k] for k in ("score", "tokens", "n")} == {
        k: server[k] for k in ("score", "tokens", "n")
    }
    again = ["evaluate", "exchange", f"policy={url}", "endpoint.model=tiny-exchange", *FEW[:2]]
    other = cli(*again, "endpoint.template_args={thinking: true}")
    assert other.code == 0, other.err
    usage = [json.loads(one.out.splitlines()[-1])["usage"] for one in (said, other)]
    assert usage[0].split()[0] == usage[1].split()[0] != "0"  # other arguments: other dialogues


def test_several_samples_and_baselines_of_a_server(cli: Cli, url: str) -> None:
    """By text: the samples differ, and a server that is asked again is sampled anew."""
    words = ("evaluate", "exchange", f"policy={url}", "endpoint.model=tiny-exchange", "tasks=4")
    said = cli(*words, "samples=2", "temperature=1", "max_tokens=64")
    assert "tiny-exchange" in said.out.partition("{")[0], "no name is cut in the table"
    first, second = rows(said)
    assert (first["k"], second["k"]) == (1, 2)
    assert second["tokens"] > first["tokens"] > 0
    (alone,) = rows(cli(*words, "method=cot", "max_tokens=64"))
    assert (alone["n"], alone["failed"]) == (4, 0) and alone["tokens"] > 0


def test_an_evaluation_that_is_done_is_only_read(cli: Cli) -> None:
    first = rows(cli("evaluate", "exchange", "policy=tiny-exchange", *FEW))
    said = cli("evaluate", "exchange", "policy=tiny-exchange", *FEW)
    assert rows(said) == first
    assert "4/4" not in said.err


def test_all_checkpoints_of_a_run_in_one_table(cli: Cli) -> None:
    assert cli("run", "optima/isft", *SMALL, "--folder", "run").code == 0
    found = rows(cli("evaluate", "exchange", "policy=run", *FEW, "--checkpoints", "all"))
    assert [row["version"] for row in found] == [0, 1]
    (newest,) = rows(cli("evaluate", "exchange", "policy=run", *FEW))
    assert newest == found[-1]
    best = ("best_of=2", "temperature=1", "tasks=2", "max_tokens=8")
    said = cli("evaluate", "persona", "policy=tiny-persona", "critic=run", *best)
    assert said.code == 2 and "has no critic" in said.err and "sweet_rl" in said.err


def test_what_cannot_be_evaluated_is_refused(cli: Cli, url: str) -> None:
    for words, said in (
        (("exchang", "policy=tiny-exchange"), "exchange"),
        (("exchange",), "policy"),
        (("exchange", "policy=tiny-exchange", "--checkpoints", "all"), "run folder"),
        (("exchange", f"policy={url}"), "endpoint.model"),
        (("exchange", f"policy={url}", "endpoint.model=x", "endpoint.key_variable=NO_KEY"), "NO_KEY"),
        (("exchange", f"policy={url}", "endpoint.model=other", "tasks=2"), "all 2 dialogues failed"),
        (("exchange", "policy=tiny-exchange", "task=2"), "tasks"),
    ):  # fmt: skip
        refused = cli("evaluate", *words)
        assert refused.code == 2 and said in refused.err, (words, refused.err)


FAMILIES = ("gemma", "qwen3", "gptoss", "deepseekv3", "llama3")
"""No system role; thoughts; channels; thoughts that prompts close; dates."""
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
    made = random_model(published(family), family, context=16384)
    made.model.save_pretrained("model")
    made.tokenizer.save_pretrained("model")
    Path("rows.jsonl").write_text(json.dumps(PROBLEM))
    for benchmark, word in BENCHMARKS.items():
        words = ("policy=model", "tasks=1", "max_tokens=2", "engine.device=cpu", word)
        said = cli("evaluate", benchmark, *words)
        assert said.code == 0, said.err
        (row,) = json.loads(said.out.splitlines()[-1])["rows"]
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
                told = [part.text for message in request.messages for part in message.parts]
                told += [str(task.public["question"])] if "question" in task.public else []
                assert told and all(packed(text) in shown for text in told)
    assert prompts >= len(BENCHMARKS)
