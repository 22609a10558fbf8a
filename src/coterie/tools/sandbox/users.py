"""Users that answers run as. As root, every worker of the machine has its own user.

The kernel counts processes and locks by user, across jails. So two answers with the same user would share their limits.
"""

import os
import random
import socket
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import UserError

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
    """Return a user for a worker: as root a unique user, else ``NOBODY`` in a user namespace.

    Raises ``UserError`` if all are taken.
    """
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
