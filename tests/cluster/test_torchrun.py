"""A run on two nodes by torchrun: two agents on this machine that meet at a port."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.engines.server_process import free_port
from tests.conftest import SMALL
from tests.helpers.run_rl import informative_overrides, make_recipe, read_record, run_to_end
from tests.runs.test_rank_runs import TWO, difference


def nodes(method: str, overrides: list[str], folder: Path) -> list[tuple[int, str]]:
    """Run one process on each of two nodes; return their status and output."""
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1"]
    meeting += ["--master-port", str(free_port())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "torch.distributed.run", *meeting]
    run = ["-m", "coterie", "run", method, *overrides, "--folder", str(folder)]
    agents = [
        subprocess.Popen(
            [*command, "--node-rank", str(node), *run],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    try:
        outputs = [agent.communicate(timeout=200)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    return [(agent.returncode, output) for agent, output in zip(agents, outputs, strict=True)]


@pytest.mark.parametrize("method", ["rl/grpo", "optima/isft"])
def test_two_nodes_sample_and_train_as_two_local_ranks(method: str, tmp_path: Path) -> None:
    overrides = [*SMALL, "train.processes=2"]
    if method == "rl/grpo":
        overrides = [*informative_overrides(tmp_path), *TWO, "steps.count=2"]
    overrides = [*{pair.partition("=")[0]: pair for pair in overrides}.values()]
    for status, output in nodes(method, overrides, tmp_path / "nodes"):
        assert status == 0, output
    run_to_end(make_recipe(method, overrides), tmp_path / "local")
    assert read_record(tmp_path / "nodes") == read_record(tmp_path / "local")
    assert difference(tmp_path / "local", tmp_path / "nodes") == 0
