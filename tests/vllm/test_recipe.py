"""A recipe whose policies speak by vLLM, from the command line."""

import json
import re
from pathlib import Path

import psutil

from coterie.record.store import Store
from tests.conftest import SMALL, Cli

VLLM = (
    "engine.kind=vllm", "engine.vllm.dtype=float32", "engine.vllm.enforce_eager=true",
    "engine.vllm.start_seconds=240", "engine.vllm.arguments={max_num_seqs: 16}",
)  # fmt: skip


def test_a_run_by_one_server_that_loads_each_policy(cli: Cli) -> None:
    said = cli("run", "optima/isft", *SMALL, *VLLM, "--folder", "run")
    assert said.code == 0, said.err
    with Store.open(Path("run/store.sqlite"), read_only=True) as store:
        for version in (0, 1):
            trees = list(store.trees(version, "evaluate"))
            assert len(trees) == 4
            samples = [turn.sample for tree in trees for turn in tree.turns.values()]
            assert {sample.version for sample in samples if sample} == {str(version)}
    log = Path("run/servers/vllm-0.log").read_text()
    assert len(re.findall("Application startup complete", log)) == 1
    assert not [p for p in psutil.Process().children(recursive=True) if "vllm" in str(p.cmdline())]


def test_a_benchmark_by_servers_agrees_with_the_embedded_engine(cli: Cli) -> None:
    """Greedy and in float32: nearly every dialogue is the same."""
    words = ("evaluate", "exchange", "policy=tiny-exchange", "tasks=32", "max_tokens=96")
    rows = [
        json.loads(cli(*words, *more).out.splitlines()[-1])["rows"][0]
        for more in (("engine.device=cpu",), VLLM)
    ]
    assert abs(rows[0]["score"] - rows[1]["score"]) <= 2 / 32
    assert abs(rows[0]["tokens"] - rows[1]["tokens"]) < 10
