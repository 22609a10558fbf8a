"""Our servers on real sockets: on the loop of the test, or as the command ``coterie serve``."""

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from coterie.engines.serving.app import make_app
from coterie.engines.serving.policies import Policies
from tests.listening import listening


@contextlib.asynccontextmanager
async def served(policies: Policies, *, allow_loading: bool = False) -> AsyncIterator[str]:
    """The URL of a model server that runs in the meantime."""
    async with listening(make_app(policies, allow_loading=allow_loading)) as url:
        yield url


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
