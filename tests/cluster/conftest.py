"""Clusters on this machine, for ``make test-cluster``: Ray with three nodes, all on 127.0.0.1."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from coterie.engines.server_process import free_port

STUB, RANK = "-m tests.helpers.stub_server", "ray::RayTrainWorker"
"""Beginnings of the command lines of servers and of ranks on Ray."""
REPOSITORY = Path(__file__).parents[2]
# Read when Ray is imported: nodes and drivers have the address 127.0.0.1, and no usage is reported.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
# Ray's 30 seconds are too few for the process of a client on a busy machine.
os.environ.setdefault("RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S", "180")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session", autouse=True)
def import_path() -> Iterator[None]:
    """Let nodes import the package and the tests of this checkout."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)]))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A head without GPUs, and two nodes with four each that exist for the scheduler only.

    ``client`` is its address for Ray Client.
    """
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False}
    head |= {"node_ip_address": "127.0.0.1", "ray_client_server_port": free_port()}
    one: Any = Cluster(initialize_head=True, head_node_args=head)
    one.client = f"ray://127.0.0.1:{head['ray_client_server_port']}"
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_ADDRESS", one.address)
    for _ in range(2):
        add_node(one)
    yield one
    patch.undo()
    ray.shutdown()
    one.shutdown()


def add_node(cluster: Any, **arguments: Any) -> Any:
    usual = {"num_cpus": 4, "num_gpus": 4, "node_ip_address": "127.0.0.1"}
    return cluster.add_node(**{**usual, **arguments})


def processes(words: str) -> list[psutil.Process]:
    """Return the processes below this one whose command begins with these words, regardless of the interpreter."""
    result = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if " ".join(one.cmdline()).removeprefix(f"{sys.executable} ").startswith(words):
                result.append(one)
    return result


def node_of(process: psutil.Process, cluster: Any) -> Any:
    """Return the node whose raylet is an ancestor of a process."""
    above = {parent.pid for parent in process.parents()}
    for node in cluster.worker_nodes:
        if above & {info.process.pid for infos in node.all_processes.values() for info in infos}:
            return node
    raise AssertionError(f"{process} is on no node")
