"""``coterie evaluate`` on models of families whose chat templates differ in structure."""

import json
from pathlib import Path

import pytest

from coterie.record.store import Store
from coterie.runs.loop import EVALUATION
from tests.conftest import Cli
from tests.published_templates import published
from tests.templates import random_model

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
