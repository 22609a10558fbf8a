"""A run as a job of a real Slurm cluster with two nodes on this machine."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.clusters import Needs
from coterie.clusters.slurm import batch_file
from coterie.record.store import Store
from coterie.runs.loop import REINFORCE
from tests.cluster.slurm_daemons import slurm
from tests.helpers.run_rl import informative_overrides

VLLM = (
    "engine.kind=vllm", "engine.vllm.dtype=float32", "engine.vllm.enforce_eager=true",
    "engine.vllm.start_seconds=240", "engine.vllm.arguments={max_num_seqs: 16}",
)  # fmt: skip


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with slurm(tmp_path_factory.mktemp("slurm")):
        yield


def coterie(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coterie", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_file_has_a_part_for_ranks_and_one_for_servers(tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    text = batch_file(Needs(3, 4, 8), ["coterie", "run", "x y"], folder, gpus=True)
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert re.findall(r"#SBATCH --ntasks=(\d+) --gpus-per-task=(\d+)", text) == [
        ("8", "1"),
        ("3", "4"),
    ]
    assert "srun --het-group=1 --nodes=1 --ntasks=1 --exact --gpus=4" in text
    assert text.endswith("exec coterie run 'x y'\n")
    alone = batch_file(Needs(), ["coterie"], folder, gpus=False)
    assert "het" not in alone and "gpus" not in alone and "--ntasks=1" in alone


def test_a_submitted_run_trains_on_ranks_and_samples_from_a_vllm_server(
    nodes: None, tmp_path: Path
) -> None:
    overrides = [
        *(
            *informative_overrides(tmp_path),
            *VLLM,
            "train.processes=2",
            "steps.count=2",
            "loss.kl_coef=0",
        ),
        *("engine.device=cpu", "train.learning_rate=1e-3", "cluster=slurm", "--folder", "run"),
    ]
    overrides = [*{pair.partition("=")[0]: pair for pair in overrides}.values()]
    printed = coterie("run", "rl/grpo", *overrides, "--dry-run", folder=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert not (tmp_path / "run").exists()
    submitted = coterie("run", "rl/grpo", *overrides, folder=tmp_path)
    assert submitted.returncode == 0, submitted.stderr
    assert (tmp_path / "run.sbatch").read_text() == printed.stdout
    job = re.search(r"job (\d+)", submitted.stdout)
    assert job, submitted.stdout
    subprocess.run(["srun", f"--dependency=afterany:{job[1]}", "true"], check=True, timeout=400)
    log = (tmp_path / f"run-{job[1]}.log").read_text()
    with Store.open(tmp_path / "run" / "store.sqlite", read_only=True) as store:
        trees = [list(store.trees(0, f"{REINFORCE}/{step:05d}")) for step in range(2)]
        writers = [
            {t.writer for tree in some for t in tree.turns.values() if t.sample} for some in trees
        ]
    assert all(trees), log
    assert [len(one) for one in writers] == [1, 1], log
    assert "Application startup complete" in "".join(
        one.read_text() for one in (tmp_path / "run" / "servers").glob("*.log")
    )
    assert not list((tmp_path / "run").rglob("*.partial"))
    written = "".join(file.read_text() for file in (tmp_path / "run" / "servers").iterdir())
    assert "http://" in written and not re.search(r"\b[0-9a-f]{64}\b", written + log)
