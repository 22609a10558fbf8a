"""The command ``coterie serve``, on real sockets."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def serve_command(*words: str, logs: bool = False) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A child that runs ``coterie serve`` with these words, and the first line that it prints.

    With ``logs`` its standard error goes to ours: more than a pipe holds.
    """
    root = Path(__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-m", "coterie", "serve", *words],
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "2"},
        stdout=subprocess.PIPE,
        stderr=None if logs else subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        yield child, child.stdout.readline().strip()
    finally:
        child.kill()
        child.communicate()
