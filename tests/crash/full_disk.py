"""Runs a small recipe on a small disk that is full when training begins, and again with room on it.

Started by the test in a mount namespace of its own, where ``FOLDER`` is a tmpfs. Prints one JSON
line: ``{"statuses": [first, second], "said": what they printed}``.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from coterie.cli import app
from tests.conftest import SMALL

FILLER = "filler"
LEFT = 2**19
"""Bytes left free: enough for metrics, too few for weights."""


class Filler:
    """Fills the disk when the first file of a training is opened for writing, once."""

    def __init__(self, disk: Path) -> None:
        self.disk, self.done = disk, False

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Look at what is opened."""
        if event != "open" or self.done or f"{self.disk}/run/training/" not in str(args[0]):
            return
        self.done = True
        with contextlib.suppress(OSError), (self.disk / FILLER).open("wb") as file:
            while True:
                file.write(bytes(2**16))
                file.flush()
        os.truncate(self.disk / FILLER, (self.disk / FILLER).stat().st_size - LEFT)


def run(folder: Path) -> int:
    """``coterie run`` in this process; its exit status."""
    sys.argv = ["coterie", "run", "optima/isft", *SMALL, "--folder", str(folder)]
    try:
        app.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def main() -> None:
    """Run, make room, run again."""
    disk = Path(sys.argv[1])
    sys.addaudithook(Filler(disk).audit)
    said = io.StringIO()
    app.console.file = said
    with contextlib.redirect_stdout(io.StringIO()):
        first = run(disk / "run")
        (disk / FILLER).unlink()
        second = run(disk / "run")
    print(json.dumps({"statuses": [first, second], "said": said.getvalue()}))


if __name__ == "__main__":
    main()
