"""The command ``coterie serve``, on real sockets."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A child that runs ``coterie serve`` with these words, and the first line that it prints."""
    root = Path(__file__).parents[1]
    child = subprocess.Popen(
        [sys.executable, "-m", "coterie", "serve", *words],
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        yield child, child.stdout.readline().strip()
    finally:
        child.kill()
        child.communicate()
