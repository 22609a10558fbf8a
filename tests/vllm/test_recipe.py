"""A recipe whose policies speak by vLLM, from the command line."""

import re
from pathlib import Path

import psutil

from coterie.record.store import Store
from tests.conftest import SMALL, Cli

VLLM = (
    "engine.kind=vllm", "engine.vllm.dtype=float32", "engine.vllm.enforce_eager=true",
    "engine.vllm.start_seconds=240", "engine.vllm.arguments={max_num_seqs: 16}",
)  # fmt: skip


def processes() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def test_a_run_by_one_server_that_loads_each_policy(cli: Cli) -> None:
    before = processes()
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
    assert not [one for one in processes() - before if "vllm" in str(one.cmdline())]
