"""Numbers of the system calls that no honest answer needs, by machine.

* tracing and reading other processes, namespaces and mounts, administration of the machine;
* keyrings, System V objects and descriptors in flight (``sendmsg``), which would outlive the answer;
* memory that no limit counts (``memfd_create``, ``vmsplice``);
* timers that send any signal (``timer_create``), such as SIGCONT to a stopped process;
* limits on CPU time, at which the kernel sends SIGKILL as it does when memory runs out;
* scheduling priorities, by which an answer extends its time;
* resources that all users of the machine share (inotify, asynchronous I/O);
* large parts of the kernel that need no exposure (bpf, io_uring, perf, userfaultfd, landlock).
"""

from typing import NamedTuple


class Numbers(NamedTuple):
    """System calls of one machine."""

    refused: tuple[int, ...]
    clone: int
    socket: int
    mmap: int
    fcntl: int
    sigaction: int
    prlimit: int
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
            clone=56, socket=41, mmap=9, fcntl=72, sigaction=13, prlimit=302,
        ),
    ),
    "aarch64": (
        0xC00000B7,
        Numbers(
            _AARCH64 + _EVERYWHERE,
            clone=220, socket=198, mmap=222, fcntl=25, sigaction=134, prlimit=261,
        ),
    ),
}  # fmt: skip
"""By ``platform.machine()``: the constant of ``linux/audit.h`` and the calls."""
