"""Runs under ``torchrun``: its process of rank 0 is the driver, and the others start the ranks on their nodes.

    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:PORT \\
        -m coterie run METHOD train.processes=8

The driver tells them through torchrun's store what to start.
"""

import atexit
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from torch.distributed import TCPStore

from coterie.clusters import Needs, own_address
from coterie.engines.server_process import free_port
from coterie.engines.settings import VLLMSettings
from coterie.errors import UserError
from coterie.training.ranks import end_ranks, start_rank

OWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun gives to each process."""
POLL_SECONDS = 0.25


class TorchrunJob:
    """Process of torchrun, whose variables leave the environment of this process."""

    servers = None
    """Servers run on the driver's machine."""

    def __init__(self) -> None:
        self._own = {name: os.environ.pop(name) for name in OWN}
        self.rank, self.count = int(self._own["RANK"]), int(self._own["WORLD_SIZE"])
        address, port = self._own["MASTER_ADDR"], int(self._own["MASTER_PORT"])
        self.host = own_address(address)
        """Address of the driver for the nodes."""
        self._store = TCPStore(address, port, is_master=False)
        self._prefix = f"coterie/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._starts = 0
        if self.rank == 0:
            atexit.register(self._store.set, f"{self._prefix}/over", "")

    def check(self, needs: Needs, vllm: VLLMSettings | None) -> None:
        """Raise ``UserError`` if the run trains on another number of ranks than torchrun has started."""
        if needs.ranks != self.count:
            raise UserError(
                f"torchrun started {self.count} processes, but the run trains on {needs.ranks or 'no'} ranks",
                f"set train.processes={self.count}, or change --nnodes and --nproc-per-node",
            )

    @contextmanager
    def ranks(
        self, environment: Mapping[str, str], count: int, log: Path
    ) -> Iterator[Callable[[], str]]:
        """Start one rank for each process of torchrun. Yield a function that returns why they ended, or ""."""
        if count != self.count:
            raise UserError(
                f"a training has {count} ranks, but torchrun started {self.count} processes",
                f"set processes={self.count} for each training",
            )
        start, self._starts = f"{self._prefix}/{self._starts}", self._starts + 1
        shared = {**environment, "MASTER_ADDR": self.host, "MASTER_PORT": str(free_port())}
        self._store.set(start, json.dumps({"environment": shared, "log": str(log.absolute())}))
        process = self._start(shared, log)

        def problem() -> str:
            if process.poll() is not None:
                return f"rank 0 ended with status {process.returncode}"
            if self._store.check([f"{start}/problem"]):
                return str(self._store.get(f"{start}/problem").decode())
            return ""

        try:
            yield problem
        finally:
            self._store.set(f"{start}/end", "")
            end_ranks([process])

    def serve(self) -> None:
        """Start a rank here whenever the driver starts ranks, until it has ended."""
        while True:
            start, self._starts = f"{self._prefix}/{self._starts}", self._starts + 1
            while not self._store.check([start]):
                if self._store.check([f"{self._prefix}/over"]):
                    return
                time.sleep(POLL_SECONDS)
            request = json.loads(self._store.get(start))
            process = self._start(request["environment"], Path(request["log"]))
            while process.poll() is None and not self._store.check([f"{start}/end"]):
                time.sleep(POLL_SECONDS)
            if not self._store.check([f"{start}/end"]):
                text = f"rank {self.rank} ended with status {process.returncode}"
                self._store.set(f"{start}/problem", text)
            end_ranks([process])

    def _start(self, shared: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
        """Start this process's rank, without a log if this machine does not see its folder."""
        variables = {**self._own, **shared, "TORCHELASTIC_USE_AGENT_STORE": "False"}
        return start_rank(variables, log if log.parent.is_dir() else Path(os.devnull))


torchrun_job = cache(TorchrunJob)
"""Returns the job of this process, which torchrun started."""
