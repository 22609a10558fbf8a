"""Users that answers run as: where we are root, every worker of the machine has one of its own.

The kernel counts a user's processes and locks together, whatever jail they are in. So with one user two answers would
share their limits.
"""

import os
import random
import socket
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import UserError

NOBODY = 65534
UIDS = range(61184, 65520)
"""Users that no account has; systemd hands them out for a while."""
HANDED_OUT = Path("/run/systemd/dynamic-uid")


@dataclass(frozen=True, slots=True)
class User:
    """A user for one worker, until it is released or this process ends."""

    uid: int
    held: socket.socket | None = None
    """Has a name that only one socket of the machine has, and that is free again when this process is gone."""

    def release(self) -> None:
        if self.held is not None:
            self.held.close()


def claim_user() -> User:
    """A user for a worker: as root one that no other worker has, else ``NOBODY``, who has an own namespace.

    Raises ``UserError`` if all are taken.
    """
    if os.geteuid() != 0:
        return User(NOBODY)
    for uid in random.SystemRandom().sample(UIDS, len(UIDS)):
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            held.bind(f"\0coterie/sandbox/user/{uid}")
        except OSError:
            held.close()
            continue
        if not (HANDED_OUT / str(uid)).exists():
            return User(uid, held)
        held.close()
    raise UserError(
        f"all {len(UIDS)} users that answers may run as are taken by workers of sandboxes",
        "end other runs on this machine, or set fewer workers",
    )
