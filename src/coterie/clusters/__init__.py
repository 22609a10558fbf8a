"""Cluster of a run's settings, and the devices that the run needs."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from coterie.errors import UserError

if TYPE_CHECKING:
    from coterie.clusters.ray_cluster import RayCluster
    from coterie.clusters.slurm import SlurmJob
    from coterie.clusters.torchrun import TorchrunJob

    Cluster: TypeAlias = RayCluster | SlurmJob | TorchrunJob

SLURM = "slurm"
UNDER_TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Environment variable of processes that torchrun started."""
IN_JOB = "COTERIE_SERVERS"
"""Environment variable that only a job of :func:`coterie.clusters.slurm.batch_file` has."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Servers and ranks that hold devices at the same time."""

    servers: int = 0
    size: int = 1
    """Devices of a server, all in one node."""
    ranks: int = 0
    together: bool = True
    """True if servers keep running while ranks train."""

    def check(self, unit: str, nodes: Sequence[float]) -> None:
        """Raise ``UserError`` if the nodes, each with a number of devices, have no room."""
        room, largest = sorted(map(int, nodes), reverse=True), int(max(nodes, default=0))
        if self.servers and self.size > largest:
            raise UserError(
                f"a server needs {self.size} {unit}s in one node; the largest node has {largest}",
                "lower engine.vllm.tensor_parallel_size, or add larger nodes",
            )
        slots = sum(free // self.size for free in room)
        if self.servers > slots:
            raise UserError(
                f"{self.servers} servers with {self.size} {unit}s each need {self.servers * self.size}; the cluster "
                f"has {sum(room)} in {len(room)} nodes, room for {slots} servers",
                "lower engine.vllm.servers, or add nodes",
            )
        reserved = self.servers * self.size if self.together else 0
        if reserved + self.ranks > sum(room):
            raise UserError(
                f"{self.servers} servers and {self.ranks} ranks need {reserved + self.ranks} {unit}s; the cluster has "
                f"{sum(room)}",
                "lower engine.vllm.servers or the number of ranks, add nodes, or set engine.keep_servers=false to use "
                "the same devices in turn",
            )


def open_cluster(name: str) -> "Cluster | None":
    """Return the cluster of the setting ``cluster``, ``None`` for this machine. Raises ``UserError`` within seconds."""
    if name == SLURM:
        from coterie.clusters.slurm import SlurmJob

        return SlurmJob() if IN_JOB in os.environ else None
    if name.startswith("ray"):
        from coterie.clusters.ray_cluster import RayCluster

        return RayCluster(name)
    if UNDER_TORCHRUN in os.environ:
        from coterie.clusters.torchrun import torchrun_job

        return torchrun_job()
    return None


def own_address(host: str = "10.255.255.255") -> str:
    """Return the address of this machine on the way to a host; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 1))
        except OSError:  # a machine without a network
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address
