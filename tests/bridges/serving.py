"""Servers of other frameworks, run by the environments that ``make test-bridges`` makes."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest


def python_of(venv: str) -> Path:
    """Return the Python of an environment; skip the tests without it."""
    folder = Path(__file__).parents[2] / venv
    if not (folder / ".ready").exists():
        pytest.skip(f"no {venv}; make test-bridges makes it", allow_module_level=True)
    return folder / "bin/python"


@contextmanager
def serving(
    command: list[str | Path], folder: Path, path: str, **environment: str
) -> Iterator[str]:
    """Run a server that takes ``--port``; yield its URL when ``path`` answers."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=folder,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            end = time.monotonic() + 120
            while True:
                with contextlib.suppress(httpx2.HTTPError):
                    httpx2.get(f"{url}/{path}", trust_env=False)
                    break
                assert process.poll() is None and time.monotonic() < end, log.name
                time.sleep(0.2)
            yield url
        finally:
            process.kill()
            process.wait()
