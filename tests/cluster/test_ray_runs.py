"""Whole runs on a Ray cluster of three nodes, with stub servers and two ranks, some of which are killed."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from coterie.clusters import ray_cluster
from coterie.engines.pool import ServerPool
from coterie.engines.vllm import VLLMBackend
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.record.store import Store
from coterie.runs.loop import REINFORCE
from coterie.training.ranks import Ranks
from tests.cluster.conftest import RANK, STUB, add_node, node_of, processes
from tests.conftest import SMALL
from tests.helpers.run_rl import informative_overrides, make_recipe, read_record, run_to_end
from tests.helpers.stub_server import StubBackend
from tests.runs.test_rank_runs import APART, difference
from tests.vllm.test_recipe import VLLM

STEPS = 3
PLAIN = (f"steps.count={STEPS}", "loss.kl_coef=0")
ON_RAY = (
    "cluster=ray", "engine.kind=vllm", "engine.vllm.servers=2", "engine.vllm.restarts=9",
    "engine.vllm.grace_seconds=2", "train.processes=2",
)  # fmt: skip


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers be stubs instead of vLLM."""
    monkeypatch.setattr(ray_cluster, "VLLMBackend", StubBackend)


def kill(processes: Sequence[psutil.Process], cluster: Any) -> None:
    processes[0].kill()


def remove_node(processes: Sequence[psutil.Process], cluster: Any) -> None:
    gone = node_of(processes[0], cluster)
    add_node(cluster)  # in this thread, since Ray sets a signal handler
    threading.Thread(target=cluster.remove_node, args=(gone, False)).start()


Fault = Callable[[Sequence[psutil.Process], Any], None]
FAULTS: dict[tuple[int, str], tuple[str, Fault]] = {
    (0, "sampling"): (RANK, kill),
    (0, "training"): (STUB, kill),
    (0, "update"): (STUB, kill),
    (1, "sampling"): (STUB, kill),
    (1, "training"): (RANK, kill),
    (1, "update"): (RANK, kill),
    (2, "sampling"): (STUB, remove_node),
    (2, "training"): (RANK, remove_node),
    (2, "update"): (STUB, remove_node),
}
"""Faults of a run by step and phase: what they hit, and how. Ranks that are lost start again in the next training."""
LEAST = {STUB: 1, RANK: 2}


class Faults(Silent):
    """Faults that are still to come."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.step, self.left = cluster, 0, dict(FAULTS)
        self.name = ""

    def start(self, total: int, description: str) -> None:
        self.name = description

    def advance(self, n: int, **fields: float) -> None:
        if n and self.name.startswith(REINFORCE):
            self.step = int(self.name.partition("/")[2][:5])
            self.strike("sampling")

    def strike(self, phase: str) -> bool:
        """Cause the fault of this phase. Return False if what it hits does not run."""
        if due := self.left.get((self.step, phase)):
            words, fault = due
            alive = processes(words)
            if len(alive) < LEAST[words]:
                return False
            del self.left[self.step, phase]
            fault(alive, self.cluster)
        return True


def items(folder: Path) -> dict[str, list[str]]:
    """Return the turns of every tree of the run, by item."""
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        stages = [(0, "evaluate"), (1, "evaluate")]
        stages += [(0, f"{REINFORCE}/{step:05d}") for step in range(STEPS)]
        return {
            f"{iteration}/{stage}/{tree.task}": sorted(tree.turns)
            for iteration, stage in stages
            for tree in store.trees(iteration, stage)
        }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on this machine, with two ranks and the engine in process."""
    folder = tmp_path_factory.mktemp("plain")
    run_to_end(
        make_recipe("rl/grpo", [*informative_overrides(folder), *PLAIN, "train.processes=2"]),
        folder / "run",
    )
    return folder


def test_a_run_completes_whatever_is_killed_and_equals_the_run_on_one_machine(
    cluster: Any, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(cluster)

    def exchange(ranks: Ranks, message: bytes) -> list[Any]:
        if b'"do":"step"' in message:
            faults.strike("training")
        return own_exchange(ranks, message)

    async def load(pool: ServerPool, *arguments: Any, **named: Any) -> None:
        while not faults.strike("update"):
            await asyncio.sleep(0.1)
        await own_load(pool, *arguments, **named)

    own_exchange, own_load = Ranks.exchange, ServerPool.load
    monkeypatch.setattr(Ranks, "exchange", exchange)
    monkeypatch.setattr(ServerPool, "load", load)
    overrides = [*informative_overrides(plain), *PLAIN, *ON_RAY]
    run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run", faults)
    assert not faults.left
    assert items(tmp_path / "run") == items(plain / "run")
    final = "run/training/policy/iteration-00/final/model.safetensors"
    ours, theirs = (load_file(folder / final) for folder in (tmp_path, plain))
    assert all((ours[name] - theirs[name]).abs().max() < 1e-6 for name in theirs)
    assert not processes(STUB) and not processes(RANK)


def test_a_run_by_ray_client_equals_the_run_on_one_machine(
    cluster: Any, plain: Path, tmp_path: Path
) -> None:
    import ray

    ray.shutdown()
    overrides = [*informative_overrides(plain), *PLAIN, *ON_RAY, f"cluster={cluster.client}"]
    overrides += ["steps.count=1", "engine.vllm.servers=1"]
    try:
        run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")
    finally:
        ray.shutdown()  # the next test connects without the client, even if this one failed
    ours, theirs = items(tmp_path / "run"), items(plain / "run")
    first = [key for key in ours if key.startswith(f"0/{REINFORCE}")]
    assert first and all(ours[key] == theirs[key] for key in first)
    assert any(key.startswith("1/evaluate") for key in ours)


def test_optima_trains_on_ranks_and_servers_of_ray_as_on_one_machine(
    cluster: Any, tmp_path: Path
) -> None:
    overrides = [*SMALL, "train.processes=2"]
    run_to_end(make_recipe("optima/isft", overrides), tmp_path / "plain")
    on_ray = [pair for pair in ON_RAY if not pair.startswith("train")]
    run_to_end(make_recipe("optima/isft", [*overrides, *on_ray]), tmp_path / "run")
    assert read_record(tmp_path / "run") == read_record(tmp_path / "plain")
    assert difference(tmp_path / "run", tmp_path / "plain") < APART


def test_vllm_on_nodes_of_ray_samples_by_each_version(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "VLLMBackend", VLLMBackend)
    overrides = [*informative_overrides(tmp_path), *PLAIN, *ON_RAY, *VLLM, "steps.count=2"]
    run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")
    with Store.open(tmp_path / "run/store.sqlite", read_only=True) as store:
        versions = [
            {turn.sample.version for tree in trees for turn in tree.turns.values() if turn.sample}
            for trees in (store.trees(0, f"{REINFORCE}/{step:05d}") for step in range(2))
        ]
    assert versions == [{"0"}, {"0.1"}]
    logs = [file.read_text() for file in (tmp_path / "run/servers").glob("*.log")]
    assert len(logs) == 2 and all("Application startup complete" in log for log in logs)


def test_a_run_that_does_not_fit_is_refused_before_it_starts(cluster: Any, tmp_path: Path) -> None:
    overrides = [*informative_overrides(tmp_path), *ON_RAY, "engine.vllm.tensor_parallel_size=8"]
    with pytest.raises(
        UserError, match="a server needs 8 GPUs in one node; the largest node has 4"
    ):
        make_recipe("rl/grpo", overrides).plan()
