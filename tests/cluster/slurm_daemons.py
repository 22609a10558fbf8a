"""A Slurm cluster of two nodes on this machine, from Debian's packages."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from coterie.engines.server_process import free_port

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SchedulerParameters=bf_interval=1,batch_sched_delay=1,sched_interval=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def install() -> None:
    """Install the packages if they are missing; needs Debian and root, as `.ci/run` does for Chromium."""
    if shutil.which("slurmctld") and shutil.which("munged"):
        return
    command = "apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge"
    subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """Run a controller and two nodes. Commands of Slurm find them by ``SLURM_CONF``."""
    install()
    for name in ("state", "spool-n1", "spool-n2", "munge"):
        (folder / name).mkdir(parents=True)
    ports = {name: free_port() for name in ("control", "first", "second")}
    host = socket.gethostname().partition(".")[0]
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(folder=folder, host=host, **ports))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    munge = [
        *("munged", "--foreground", "--force", f"--socket={folder}/munge.socket"),
        *(f"--key-file={key}", f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log"),
        f"--seed-file={folder}/munge.seed",
    ]
    daemons = [munge, ["slurmctld", "-D", "-c", "-f", str(config)]]
    daemons += [["slurmd", "-D", "-N", name, "-f", str(config)] for name in ("n1", "n2")]
    environment = {**os.environ, "SLURM_CONF": str(config)}
    with ExitStack() as stack:
        for daemon in daemons:
            log = stack.enter_context((folder / f"{daemon[0]}.out").open("ab"))
            process = subprocess.Popen(
                [shutil.which(daemon[0], path=f"{os.environ['PATH']}:/usr/sbin") or daemon[0], *daemon[1:]],
                stdout=log, stderr=log, env=environment,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.terminate)
            time.sleep(0.5)
        before = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = str(config)
        try:
            until = time.monotonic() + 60
            while states().count("idle") < 2:
                assert time.monotonic() < until, (states(), (folder / "slurmctld.log").read_text())
                time.sleep(0.5)
            yield
        finally:
            del os.environ["SLURM_CONF"]
            if before is not None:
                os.environ["SLURM_CONF"] = before


def states() -> list[str]:
    done = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True)
    return done.stdout.split()
