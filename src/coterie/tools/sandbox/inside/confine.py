"""Confinement of a process in the jail: namespaces, limits, rights, and a filter of system calls.

The supervisor prepares with ``hide_processes`` and ``clean_folder``; the forked process calls ``limits`` and
``give_up_rights``. Each raises ``OSError`` if the kernel refuses; the answer does not run then.

The filter refuses system calls that no honest answer needs, by their numbers on each machine:

* tracing and reading other processes, namespaces and mounts, administration of the machine;
* keyrings, System V objects and descriptors in flight (``sendmsg``), which would outlive the answer;
* memory that no limit counts (``memfd_create``, ``vmsplice``);
* timers that send any signal (``timer_create``), such as SIGCONT to a stopped process;
* limits on CPU time, at which the kernel sends SIGKILL as it does when memory runs out;
* scheduling priorities, by which an answer extends its time;
* resources that all users of the machine share (inotify, asynchronous I/O);
* large parts of the kernel that need no exposure (bpf, io_uring, perf, userfaultfd, landlock).
"""

import ctypes
import os
import platform
import resource
import struct
import sys
from functools import cache
from typing import Any, BinaryIO, NamedTuple


class Numbers(NamedTuple):
    """System calls of one machine."""

    refused: tuple[int, ...]
    clone: int
    socket: int
    mmap: int
    fcntl: int
    sigaction: int
    prlimit: int
    browser: tuple[int, ...]
    """Refused calls without which Chromium does not start: sendmsg, memfd_create."""
    clone3: int = 435
    unknown: int = 449
    """First number that is newer than this list."""


_EVERYWHERE = (
    424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438,  # pidfd_send_signal, io_uring (3), open_tree,
    # move_mount, fsopen, fsconfig, fsmount, fspick, pidfd_open, pidfd_getfd
    440, 442, 443, 444, 445, 446, 447, 448,  # process_madvise, mount_setattr, quotactl_fd, landlock (3),
    # memfd_secret, process_mrelease
)  # fmt: skip

_X86_64 = (
    29, 30, 31, 67, 64, 65, 66, 220, 68, 69, 70, 71,  # shm, sem, msg
    101, 103, 135, 153, 155, 159, 161, 163, 164, 165, 166,  # ptrace, syslog, personality, vhangup, pivot_root,
    # adjtimex, chroot, acct, settimeofday, mount, umount2
    167, 168, 169, 170, 171, 172, 173, 175, 176, 179,  # swap, reboot, names, ports, modules, quotactl
    227, 240, 241, 242, 243, 244, 245, 246, 248, 249, 250,  # clock_settime, mq, kexec_load, keys
    238, 256, 272, 279, 298, 300, 303, 304, 305, 308,  # NUMA, unshare, perf, fanotify, handles, clock, setns
    310, 311, 312, 313, 319, 320, 321, 323,  # other processes' memory, modules, memfd, kexec, bpf, userfaultfd
    46, 307, 278, 206, 207, 208, 209, 210, 333, 253, 254, 255, 294,  # sendmsg, vmsplice, asynchronous I/O, inotify
    141, 142, 144, 203, 251, 314, 134, 139, 154,  # priorities and processors, uselib, sysfs, modify_ldt
    222, 160,  # timer_create, setrlimit
)  # fmt: skip
_AARCH64 = (
    186, 187, 188, 189, 190, 191, 192, 193, 194, 195, 196, 197,  # msg, sem, shm
    39, 40, 41, 51, 58, 60, 89, 92, 97, 104, 105, 106,  # umount2, mount, pivot_root, chroot, vhangup, quotactl,
    # acct, personality, unshare, kexec_load, modules
    112, 116, 117, 142, 161, 162, 170, 171,  # clock_settime, syslog, ptrace, reboot, names, time
    180, 181, 182, 183, 184, 185, 217, 218, 219, 224, 225,  # mq, keys, swap
    237, 238, 239, 241, 262, 264, 265, 266, 268,  # NUMA, perf, fanotify, handles, clock, setns
    270, 271, 272, 273, 279, 280, 282, 294,  # other processes' memory, modules, memfd, bpf, userfaultfd, kexec
    211, 269, 75, 0, 1, 2, 3, 4, 292, 26, 27, 28,  # sendmsg, vmsplice, asynchronous I/O, inotify
    140, 118, 119, 122, 30, 274, 107, 164,  # priorities and processors, timer_create, setrlimit
)  # fmt: skip

NUMBERS: dict[str, tuple[int, Numbers]] = {
    "x86_64": (
        0xC000003E,
        Numbers(
            _X86_64 + _EVERYWHERE,
            clone=56, socket=41, mmap=9, fcntl=72, sigaction=13, prlimit=302, browser=(46, 319),
        ),
    ),
    "aarch64": (
        0xC00000B7,
        Numbers(
            _AARCH64 + _EVERYWHERE,
            clone=220, socket=198, mmap=222, fcntl=25, sigaction=134, prlimit=261, browser=(211, 279),
        ),
    ),
}  # fmt: skip
"""By ``platform.machine()``: the constant of ``linux/audit.h`` and the calls."""

AGAIN = "again"
"""Last argument of a program that restarted itself."""
ADDR_NO_RANDOMIZE = 0x0040000
CLONE_NEWPID = 0x20000000
CLONE_NEW_ANY = 0x7E020080
"""All flags of ``clone`` that make a namespace."""
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOATIME = 1, 2, 4, 8, 1024
MNT_DETACH = 2
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_CAP_AMBIENT = 38, 22, 24, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
RIGHTS = 64
"""Upper bound of capabilities in a kernel."""
CAPABILITY_VERSION = 0x20080522
EPERM, EACCES, ENOSYS = 1, 13, 38
MAP_SHARED, MAP_ANONYMOUS, MAP_HUGETLB = 0x01, 0x20, 0x40000
"""Shared anonymous memory stays allocated, but uncounted, when all but one page of it is unmapped."""
ANY = 0xFFFFFFFF
SIGCHLD = 17
"""If a process ignores it, the CPU time of its children is not counted."""
FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)
"""Allowed ``fcntl`` commands: copies of descriptors, flags, locks that end with the process, the size of a pipe. Not
leases, which block other openers of a file, nor attributes that stay with a file."""
WORK = "/tmp"
"""The answer's folder, the only one it can write to."""

_libc = ctypes.CDLL(None, use_errno=True)


def _must(result: int, action: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{action}: {os.strerror(code)}")


def new_process_tree() -> None:
    """Make the next forked child the first process of a new pid namespace, which ends with it."""
    _must(_libc.unshare(CLONE_NEWPID), "unshare(CLONE_NEWPID)")


def enter_namespace(namespace: int) -> None:
    """Fork further children into the pid namespace of this descriptor."""
    _must(_libc.setns(namespace, CLONE_NEWPID), "setns")


def pass_ending(pid: int, file: int) -> None:
    """Wait for a process, write its exit status to a descriptor, and clear it from this process."""
    status = ctypes.c_int()
    _libc.waitpid(pid, ctypes.byref(status), 0)
    _libc.write(file, ctypes.byref(status), ctypes.sizeof(status))
    status.value = 0


def fix_addresses() -> None:
    """Restart this program without address randomization, where the kernel allows it.

    ``hash(None)`` is an address before Python 3.12, so the order of a set that holds None would be random. The kernel
    ignores the request for a program that gains rights, so the rights that root could gain are dropped first.
    """
    if sys.argv[-1] == AGAIN:
        return
    with open("/proc/self/status") as file:
        permitted = int(next(line for line in file if line.startswith("CapPrm")).split()[1], 16)
    for right in range(RIGHTS):
        if not permitted >> right & 1:
            _libc.prctl(PR_CAPBSET_DROP, right, 0, 0, 0)
    if _libc.personality(ctypes.c_ulong(ADDR_NO_RANDOMIZE)) >= 0:
        os.execv(sys.executable, [*sys.orig_argv, AGAIN])


_proc = -1
"""The supervisor's descriptor of ``/proc``, which no other process has."""
_mounted = False


def hide_processes() -> None:
    """Keep ``/proc`` for this process, and hide it from all others in the jail."""
    global _proc
    _proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    hide("/proc")


def hide(folder: str) -> None:
    """Mount an empty folder over one that answers must not see."""
    _mount(folder, MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,mode=555")


def end_first() -> None:
    """Let the kernel end this process, or one forked from it, first when memory runs out."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def processes() -> int:
    return _proc


def threads(process: str) -> list[str]:
    folder = os.open(f"{process}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=_proc)
    try:
        return os.listdir(folder)
    finally:
        os.close(folder)


def process_file(name: str) -> BinaryIO:
    return open(name, "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=_proc))


def clean_folder(mebibytes: int, uid: int) -> None:
    """Mount a new, empty folder for the next answer over the last answer's."""
    global _mounted
    if _mounted:
        _must(_libc.umount2(WORK.encode(), MNT_DETACH), f"unmount {WORK}")
    options = f"size={mebibytes}m,nr_inodes=4096,mode=700,uid={uid},gid={uid}"
    _mount(WORK, MS_NOSUID | MS_NODEV | MS_NOATIME, options)
    _mounted = True


def _mount(where: str, flags: int, options: str) -> None:
    call = _libc.mount
    call.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
    _must(call(b"tmpfs", where.encode(), b"tmpfs", flags, options.encode()), f"mount {where}")


OURS = 2
"""Number of our own processes in the jail; they count against the limit if the answer runs as our user."""


def limits(of: Any, cpu_seconds: int | None = None) -> None:
    """Set hard limits of a ``Request``; without ``cpu_seconds`` CPU time is not limited."""
    values = {
        resource.RLIMIT_AS: of.memory_mib << 20,
        resource.RLIMIT_FSIZE: of.file_mib << 20,
        resource.RLIMIT_NPROC: of.processes + OURS * (os.getuid() == of.uid),
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 1,  # 0 would still allow dumps that are piped to a program
        resource.RLIMIT_MEMLOCK: 1 << 16,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_SIGPENDING: 1024,
    }
    if cpu_seconds is not None:
        values[resource.RLIMIT_CPU] = cpu_seconds
    for name, value in values.items():
        resource.setrlimit(name, (value, value))


def give_up_rights(uid: int) -> None:
    """Become ``uid``, enter its folder, drop all capabilities, and refuse system calls that no answer needs."""
    if os.getuid() != uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.chdir(WORK)
    _must(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _must(_libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient capabilities")
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    _must(_libc.capset(header, bytes(24)), "capset")
    code = system_calls()
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    _must(_libc.prctl(PR_SET_SECCOMP, 2, program, 0, 0), "seccomp")


@cache
def system_calls() -> bytes:
    return filter_program(*NUMBERS[platform.machine()])


def filter_program(audit: int, numbers: Numbers, *, for_browser: bool = False) -> bytes:
    """Return a seccomp filter in classic BPF, ``for_browser`` without what only counts resources of answers.

    It refuses ``numbers.refused``, unknown calls, new namespaces, all but Unix sockets, children whose time is not
    counted, memory that is not counted, a new limit on CPU time, and most ``fcntl`` commands. ``audit`` is the
    machine's constant in ``linux/audit.h``. Calls of another architecture (32-bit ones on x86-64) end the process.
    """
    load, equal, at_least, any_bit, done = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, refuse = 0x7FFF0000, 0x80000000, 0x00050000
    lines: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4), (equal, 1, 0, audit), (done, 0, 0, kill),
        (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), (done, 0, 0, kill),
    ]  # fmt: skip
    for number in set(numbers.refused).difference(numbers.browser if for_browser else ()):
        lines += [(equal, 0, 1, number), (done, 0, 0, refuse | EPERM)]
    lines += [
        # a filter can't read the flags of clone3; glibc falls back to clone
        (equal, 0, 1, numbers.clone3), (done, 0, 0, refuse | ENOSYS),
        (at_least, 0, 1, numbers.unknown), (done, 0, 0, refuse | ENOSYS),
        (equal, 0, 4, numbers.clone), (load, 0, 0, 16), (any_bit, 0, 1, CLONE_NEW_ANY),
        (done, 0, 0, refuse | EPERM), (done, 0, 0, allow),
        (equal, 0, 4, numbers.socket), (load, 0, 0, 16), (equal, 1, 0, 1),
        (done, 0, 0, refuse | EACCES), (done, 0, 0, allow),
    ]  # fmt: skip
    lines += [(done, 0, 0, allow)] if for_browser else [
        (equal, 0, 4, numbers.sigaction), (load, 0, 0, 16), (equal, 0, 1, SIGCHLD),
        (done, 0, 0, refuse | EPERM), (done, 0, 0, allow),
        (equal, 0, 6, numbers.mmap), (load, 0, 0, 40), (any_bit, 2, 0, MAP_HUGETLB),
        (any_bit, 0, 2, MAP_ANONYMOUS), (any_bit, 0, 1, MAP_SHARED),
        (done, 0, 0, refuse | EPERM), (done, 0, 0, allow),
        # reading the limit is allowed: then the pointer to a new limit, in two halves, is null
        (equal, 0, 8, numbers.prlimit), (load, 0, 0, 24), (equal, 0, 5, resource.RLIMIT_CPU),
        (load, 0, 0, 32), (any_bit, 2, 0, ANY), (load, 0, 0, 36), (any_bit, 0, 1, ANY),
        (done, 0, 0, refuse | EPERM), (done, 0, 0, allow),
        (equal, 0, len(FCNTL) + 2, numbers.fcntl), (load, 0, 0, 24),
        *((equal, len(FCNTL) - index, 0, request) for index, request in enumerate(FCNTL)),
        (done, 0, 0, refuse | EPERM), (done, 0, 0, allow),
    ]  # fmt: skip
    return b"".join(struct.pack("HBBI", *line) for line in lines)
