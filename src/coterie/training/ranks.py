"""Ranks: processes that train models together (DDP or FSDP 2), and the trainers that a run has on them.

The run's process, the driver, starts the ranks (:func:`local_ranks`) and sends each request to all of them as JSON.
They live until the training ends and keep models and optimizers. If a rank dies, all start again from the last
checkpoint, and the driver repeats the later steps, whose items it has kept. A rank (:mod:`coterie.training.rank`)
connects to the driver::

    both              the challenges of :mod:`multiprocessing.connection`, for a secret from the environment
    driver -> rank    path of a file in the run folder, to see whether the rank has the folder
    rank -> driver    hello: its number, its host, its version of coterie, and whether it sees the file
    driver -> rank    {}: join the process group
    driver -> rank    {name, do, values}: a method of :class:`~coterie.training.rank.Rank` for the trainer ``name``
    rank -> driver    {value} or {refusal}; an empty message is a sign of life
"""

import errno
import logging
import os
import queue
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import from_json, to_json

from coterie.config.plugins import at_place
from coterie.engines.child_guard import guarded
from coterie.engines.connections import STRANGERS
from coterie.engines.vllm import HOST
from coterie.errors import UserError
from coterie.models.adapters import ModelSource
from coterie.training.distributed import accelerate_config
from coterie.training.losses import Objective
from coterie.training.settings import TrainingSettings

if TYPE_CHECKING:
    from coterie.training.rank_trainer import RankTrainer

logger = logging.getLogger(__name__)
ADDRESS, TOKEN, STORE = "COTERIE_DRIVER", "COTERIE_TOKEN", "COTERIE_STORE"
"""Environment variables of a rank: address of the driver, secret of its connection, and on one machine the file by
which ranks find each other."""
JOIN_SECONDS = 300.0
"""Time limit for all ranks to start and connect."""
GREETING_SECONDS = 30.0
"""Time limit for a new connection to show the secret, and for the first message of its rank."""
RESTARTS = 3
"""Starts after the first one, in a row without a finished request."""
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL for a rank that has to end."""
POLL = 0.25
"""Seconds between two looks at the processes of the ranks."""
LAST_LINES = 15
"""Lines of the log in an error message."""

Arrival = tuple[Connection, dict[str, Any]]
"""Connection of a rank, and the first message of the rank."""
Launch = Callable[[Mapping[str, str], int, Path], AbstractContextManager[Callable[[], str]]]
"""Starts ranks inside a block: environment of all ranks, their number, log file.

Each is a process ``python -m coterie.training.rank`` that also has ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``,
``MASTER_ADDR``, and ``MASTER_PORT`` or ``COTERIE_STORE``. The value is a function that returns why the ranks ended,
or "".
"""


@contextmanager
def local_ranks(
    environment: Mapping[str, str], count: int, log: Path
) -> Iterator[Callable[[], str]]:
    """Start ranks on this machine, each under a guard that ends it with this process."""
    # They meet in a file of a private folder, because torch's TCPStore listens on all interfaces, and so does gloo.
    private = tempfile.TemporaryDirectory(prefix="coterie-")
    shared = {**environment, "WORLD_SIZE": str(count), "MASTER_ADDR": HOST}
    shared |= {STORE: f"{private.name}/store", "GLOO_SOCKET_IFNAME": LOOPBACK}
    processes: list[subprocess.Popen[bytes]] = []

    def problem() -> str:
        statuses = [(n, process.poll()) for n, process in enumerate(processes)]
        return ", ".join(f"rank {n} ended with status {s}" for n, s in statuses if s is not None)

    try:
        for rank in range(count):
            number = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(start_rank({**shared, **number}, log))
        yield problem
    finally:
        end_ranks(processes)
        private.cleanup()


def start_rank(
    environment: Mapping[str, str], log: Path, prefix: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """Start a rank, or all by a command that ``prefix`` begins, under a guard; the log gets its output."""
    command = [*prefix, sys.executable, "-m", "coterie.training.rank"]
    with log.open("ab") as output:
        return subprocess.Popen(
            guarded(command, GRACE),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def end_ranks(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End processes of :func:`start_rank`, and wait for them."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        process.wait()


class RanksGone(Exception):
    """A rank ended or closed its connection."""


@dataclass(frozen=True, slots=True)
class Job:
    """Training of a rank. Classes are import paths from :func:`~coterie.config.plugins.place_of`."""

    source: ModelSource
    settings: TrainingSettings
    folder: Path
    objective: str
    objective_settings: tuple[str, str] | None
    """Class and JSON of the objective's settings."""
    item: str
    steps: int | None
    identity: Mapping[str, str]
    keep_last: int | None
    at: int | None
    """Number of optimizer steps to resume at, for which later checkpoints are removed; ``None`` for the newest."""

    def make_objective(self) -> Objective[Any]:
        arguments = []
        if self.objective_settings:
            class_path, text = self.objective_settings
            arguments.append(at_place(class_path).model_validate_json(text))
        objective: Objective[Any] = at_place(self.objective)(*arguments)
        return objective


class Ranks:
    """Ranks of a training, or of several that are open together. A context manager.

    ``folder`` gets the log; all ranks must see it. ``launch`` starts the processes, which connect to ``host``; ``key``
    is the group of the settings, for error messages.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        device: str,
        folder: Path,
        launch: Launch = local_ranks,
        host: str = HOST,
    ) -> None:
        self._config = accelerate_config(settings)
        self.count: int = self._config["num_processes"]
        self._threads = settings.threads or max(1, (os.cpu_count() or 1) // self.count)
        self.device = device
        self.folder = folder
        self._launch, self._host = launch, host
        self._stall = settings.stall_seconds
        self._links: list[Connection] = []
        """Connections by rank; empty while no ranks run."""
        self._running: AbstractContextManager[Callable[[], str]] | None = None
        self._problem: Callable[[], str] = str
        """Returns why the processes ended, or "", as ``str()`` does before they start."""
        self._failures = 0
        self._lock = threading.Lock()
        self.trainers: list[RankTrainer[Any]] = []

    def __enter__(self) -> "Ranks":
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        while not self._links:
            try:
                self._start()
            except RanksGone as gone:
                self._count_failure(gone)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def log(self) -> Path:
        return self.folder / "ranks.log"

    def call(self, message: bytes) -> list[Any]:
        """Send a :func:`request` to all ranks and return their replies, in order. Threads take turns.

        Starts the ranks again if one is gone. Raises :class:`UserError` as the trainer does, or if they fail again.
        """
        with self._lock:
            while True:
                try:
                    # After a failure: new ranks take the trainers to where they were.
                    if not self._links:
                        self._start()
                        for trainer in self.trainers:
                            trainer.reopen()
                    replies = self.exchange(message)
                except RanksGone as gone:
                    self._count_failure(gone)
                else:
                    self._failures = 0
                    return replies

    def exchange(self, message: bytes) -> list[Any]:
        """Send a request once. Raises :class:`RanksGone`, and ``UserError`` as the trainer does."""
        replies: dict[Connection, Any] = {}
        rank = 0
        try:
            for rank in range(self.count):
                self._links[rank].send_bytes(message)
            last_heard = dict.fromkeys(self._links, time.monotonic())
            while waiting := [link for link in self._links if link not in replies]:
                for ready in wait(waiting, POLL):
                    assert isinstance(ready, Connection)
                    rank = self._links.index(ready)
                    content = ready.recv_bytes()
                    last_heard[ready] = time.monotonic()
                    if content:  # else it is a sign of life
                        replies[ready] = reply = from_json(content)
                        if "refusal" in reply:
                            raise UserError(*reply["refusal"])
                if problem := self._problem():
                    raise RanksGone(problem)
                # A stopped rank also keeps the ranks that wait for it from replying; they are still heard.
                rank = self._links.index(min(waiting, key=lambda link: last_heard[link]))
                if time.monotonic() - last_heard[self._links[rank]] > self._stall:
                    raise BlockingIOError
        # Raised above, or by a read or write that took too long (`_set_limit`).
        except BlockingIOError as error:
            raise RanksGone(f"rank {rank} has not answered for {self._stall:g} s") from error
        except (EOFError, OSError) as error:
            time.sleep(POLL)  # for the status of the process
            raise RanksGone(self._problem() or f"rank {rank} closed its connection") from error
        return [replies[link]["value"] for link in self._links]

    def _start(self) -> None:
        """Start the ranks and wait for all. Raises :class:`RanksGone`, and ``UserError`` for ranks that can't work."""
        token = secrets.token_hex(16)
        # A file that only a rank with this very folder can see.
        nonce = self.folder / f".nonce-{secrets.token_hex(8)}"
        nonce.touch()
        listener = socket.create_server((self._host, 0))
        arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        greet = partial(_greet, token.encode(), nonce, self._stall, arrivals)
        threading.Thread(target=_accept, args=(listener, greet), daemon=True).start()
        host, port = listener.getsockname()
        environment = {
            **_launch_variables(self._config),
            ADDRESS: f"{host}:{port}",
            TOKEN: token,
            "OMP_NUM_THREADS": str(self._threads),
            "OMP_WAIT_POLICY": "PASSIVE",  # ranks share cores, and a waiting thread must not spin
        }
        if self.device == "cpu":
            environment["ACCELERATE_USE_CPU"] = "true"
        try:
            self._running = self._launch(environment, self.count, self.log)
            self._problem = self._running.__enter__()
            links = self._join(arrivals, nonce)
            self._links = [links[rank] for rank in range(self.count)]
            self.exchange(b"{}")  # joins the process group
        except BaseException:
            self._stop()
            raise
        finally:
            nonce.unlink()
            listener.shutdown(socket.SHUT_RDWR)  # ends the thread, whose call would keep it open
            listener.close()

    def _join(self, arrivals: "queue.SimpleQueue[Arrival]", nonce: Path) -> dict[int, Connection]:
        links: dict[int, Connection] = {}
        until = time.monotonic() + JOIN_SECONDS
        while len(links) < self.count:
            with suppress(queue.Empty):
                link, hello = arrivals.get(timeout=POLL)
                self._links.append(link)  # closed if the start fails
                links[hello["rank"]] = link
                _check_hello(hello, nonce)
            if problem := self._problem():
                raise RanksGone(problem)
            if time.monotonic() > until:
                absent = ", ".join(str(n) for n in range(self.count) if n not in links)
                raise UserError(
                    f"ranks {absent} of {self.count} did not connect within {JOIN_SECONDS:g} s",
                    self._advice(),
                )
        return links

    def _stop(self) -> None:
        for link in self._links:
            link.close()
        self._links = []
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None

    def _count_failure(self, error: RanksGone) -> None:
        self._stop()
        self._failures += 1
        logger.warning("%s; all ranks start again", error)
        if self._failures > RESTARTS:
            raise UserError(
                f"the {self.count} ranks ended {self._failures} times in a row: {error}",
                self._advice(),
            ) from error

    def _advice(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return (
            f"run it again to resume from the last checkpoint. The log {self.log} ends with:\n  "
            + "\n  ".join(lines)
        )


def _accept(listener: socket.socket, greet: Callable[[Connection], None]) -> None:
    """Greet each connection in a thread, since a stranger's may stay silent. Too many of them end the oldest."""
    greetings: list[tuple[threading.Thread, Connection]] = []
    while True:
        try:
            link = Connection(listener.accept()[0].detach())
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EBADF):  # closed
                return
            time.sleep(POLL)  # a stranger's connection was reset, or there are too many
        else:
            thread = threading.Thread(target=greet, args=(link,), daemon=True)
            thread.start()
            greetings = [*(pair for pair in greetings if pair[0].is_alive()), (thread, link)]
            if len(greetings) > STRANGERS:
                _, oldest = greetings.pop(0)
                # Its thread then reads the end. A `close()` would not wake it.
                with suppress(OSError), socket.socket(fileno=os.dup(oldest.fileno())) as copy:
                    copy.shutdown(socket.SHUT_RDWR)


def _greet(
    key: bytes, nonce: Path, stall: float, arrivals: "queue.SimpleQueue[Arrival]", link: Connection
) -> None:
    """Queue a connection that shows the secret; reads and writes of it then end after ``stall`` seconds."""
    with suppress(AuthenticationError, EOFError, OSError, ValueError):  # not one of ours
        _set_limit(link, GREETING_SECONDS)
        deliver_challenge(link, key)
        answer_challenge(link, key)
        link.send_bytes(str(nonce.absolute()).encode())
        hello = from_json(link.recv_bytes())
        _set_limit(link, stall)
        arrivals.put((link, hello))


def _set_limit(link: Connection, seconds: float) -> None:
    """Let a read or write raise ``BlockingIOError`` when the other side did nothing for this time."""
    with socket.socket(fileno=os.dup(link.fileno())) as copy:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            copy.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), 0))


def _check_hello(hello: Mapping[str, Any], nonce: Path) -> None:
    """Raise ``UserError`` for a rank with another version of coterie, or without access to the run folder."""
    rank, driver_version = f"rank {hello['rank']} on {hello['host']}", version("coterie")
    if hello["version"] != driver_version:
        raise UserError(
            f"{rank} has coterie {hello['version']}, but this process has {driver_version}",
            "install the same version on all machines",
        )
    if not hello["sees"]:
        raise UserError(
            f"{rank} can't see the folder {nonce.parent.absolute()}",
            "use a run folder that all machines share, under the same path",
        )


def _launch_variables(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that Accelerate reads for FSDP, from its configuration file."""
    if config["distributed_type"] != "FSDP":
        return {}
    options = {name.upper(): str(value) for name, value in config["fsdp_config"].items()}
    # The variable of this key has another name.
    layers = options.pop("FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP", None)
    if layers is not None:
        options["FSDP_TRANSFORMER_CLS_TO_WRAP"] = layers
    return {"ACCELERATE_USE_FSDP": "true", **options}


def request(name: str, do: str, **values: Any) -> bytes:
    """Return a request to the trainer ``name`` on the ranks, as JSON."""
    return to_json({"name": name, "do": do, "values": values}, fallback=plain_numbers)


def plain_numbers(value: Any) -> Any:
    """Convert a NumPy scalar or array for JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"items for ranks are sent as JSON, which has no {type(value).__name__}")
