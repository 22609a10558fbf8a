"""Slurm: a batch file that runs the driver, which starts servers and ranks by ``srun`` in its job.

The first part of a job holds the driver and the ranks, the second the servers.
"""

import asyncio
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from coterie.clusters import IN_JOB, Needs, own_address
from coterie.config.folders import check_name
from coterie.engines.connections import Address
from coterie.engines.protocol import EngineError
from coterie.engines.server_process import POLL_SECONDS, NodeProcess, ServerProcess, free_port
from coterie.engines.settings import VLLMSettings
from coterie.engines.vllm import VLLMBackend
from coterie.errors import UserError
from coterie.training.ranks import end_ranks, start_rank

RANKS = "COTERIE_RANKS"
"""Environment variable with the command that starts all ranks; ``COTERIE_SERVERS`` starts one server."""
SECRET = "COTERIE_SECRET"
"""Environment variable of a step with a server, whose relay asks for it."""
AS_RANK = 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec "$@"'


def batch_file(needs: Needs, command: Sequence[str], folder: Path, *, gpus: bool) -> str:
    """Return the file for ``sbatch`` of a run: its resources, and ``command`` as the driver.

    Resources that differ between clusters (partition, account, time) are left to options of ``sbatch``. Raises
    ``UserError`` for a folder that a comment line of the file can't name.
    """
    folder, ranks = folder.absolute(), max(needs.ranks, 1)
    check_name(folder)
    output = f"{folder}".replace("%", "%%") + "-%j.log"  # Slurm replaces %j and the like
    lines = [
        "#!/bin/bash",
        f"# {needs.ranks} ranks and {needs.servers} servers. Give partition, account and time to sbatch, or add lines.",
        f"#SBATCH --job-name={shlex.quote(folder.name)}",
        f"#SBATCH --output={shlex.quote(output)}",
        f"#SBATCH --ntasks={ranks}" + " --gpus-per-task=1" * gpus,
    ]
    group = ""
    if needs.servers:
        size = f" --gpus-per-task={needs.size}" * gpus
        lines += ["#SBATCH hetjob", f"#SBATCH --ntasks={needs.servers}{size}"]
        group = "--het-group=0 "
    server = f"srun --het-group=1 --nodes=1 --ntasks=1 --exact{f' --gpus={needs.size}' * gpus}"
    lines += [
        f'export {RANKS}="srun {group}--kill-on-bad-exit=1"',
        f'export {IN_JOB}="{server if needs.servers else ""}"',
        f"cd {shlex.quote(os.getcwd())} || exit 1",
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def submit(text: str, folder: Path) -> str:
    """Write the batch file beside the run folder and submit it. Return the answer of ``sbatch``."""
    file = folder.absolute().with_name(f"{folder.name}.sbatch")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    try:
        done = subprocess.run(["sbatch", str(file)], capture_output=True, text=True)
    except OSError as error:
        raise UserError(
            f"can't run sbatch: {error.strerror}",
            f"run `sbatch {file}` on a machine of the Slurm cluster",
        ) from error
    if done.returncode:
        raise UserError(
            f"sbatch refused {file}: {done.stderr.strip()}", "correct it, and run `sbatch` on it"
        )
    return f"{done.stdout.strip()} ({file})"


class SlurmJob:
    """Job of :func:`batch_file`, inside which this process runs."""

    def __init__(self) -> None:
        self.host = own_address()
        """Address of the driver for the nodes."""

    def check(self, needs: Needs, vllm: VLLMSettings | None) -> None:
        """Do nothing: the file of the job has room for all servers and ranks."""

    @asynccontextmanager
    async def servers(
        self, settings: VLLMSettings, log_folder: Path
    ) -> AsyncIterator[Callable[[int], ServerProcess]]:
        """Yield a function that makes the process of each server."""
        logs = log_folder.absolute()
        yield lambda i: StepProcess(settings, i, logs / f"vllm-{i}.log", self.host)

    @contextmanager
    def ranks(
        self, environment: Mapping[str, str], count: int, log: Path
    ) -> Iterator[Callable[[], str]]:
        """Start ranks in a step of the job. Yield a function that returns why they ended, or ""."""
        step = [f"--ntasks={count}", "bash", "-c", AS_RANK, "rank"]
        rank_variables = {
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(free_port()),
        }
        process = start_rank(
            {**environment, **rank_variables}, log, [*shlex.split(os.environ[RANKS]), *step]
        )
        try:
            yield lambda: "" if process.poll() is None else f"srun ended with {process.returncode}"
        finally:
            end_ranks([process])


class StepProcess(ServerProcess):
    """Server in a step of the job, on any of its nodes, which writes its URL into a file when it listens."""

    def __init__(self, settings: VLLMSettings, index: int, log: Path, driver: str) -> None:
        super().__init__(VLLMBackend(settings, []), index, log.with_suffix(".srun.log"))
        self._file = log.with_suffix(".url")
        self._words = driver, settings.model_dump_json(), str(self._file)

    async def launch(self, model: str, name: str) -> Address:
        self._file.unlink(missing_ok=True)
        secret = secrets.token_hex()
        command = [sys.executable, "-m", "coterie.clusters.slurm", *self._words, model, name]
        step = [*shlex.split(os.environ[IN_JOB]), *command]
        self._process = await self._spawn(step, {SECRET: secret})
        while self._process.returncode is None:
            if self._file.exists():
                return Address(self._file.read_text(), secret)
            await asyncio.sleep(POLL_SECONDS)
        raise EngineError(f"{await self.ended()} before it answered; {await self.last_words()}")

    async def kill(self) -> None:
        for process in self._children():
            process.terminate()  # a killed srun would leave its step running


async def serve(driver: str, settings: str, file: str, model: str, name: str) -> str:
    """Run a server on this node until it ends, and write its URL into ``file``. Return its status."""
    parsed, url = VLLMSettings.model_validate_json(settings), Path(file)
    secret = os.environ.pop(SECRET)
    log, host = url.with_suffix(".log"), own_address(driver)
    process = NodeProcess(VLLMBackend, parsed, log, host, secret)
    address = await process.launch(model, name)
    partial = url.with_suffix(".partial")
    partial.write_text(address.url)
    partial.replace(url)
    return await process.ended()


if __name__ == "__main__":
    sys.exit(asyncio.run(serve(*sys.argv[1:])))
