"""`coterie export model --push`, as a process of its own that finds the fake of the hub by HF_ENDPOINT.

The fake has no Xet storage, so the client is told to do without.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hub import Account, take

TOKEN = "hf_right"


@contextmanager
def command(account: Account, place: Path, token: str | None, *words: str) -> Iterator[str]:
    """What the command prints on both streams, after its exit status."""
    server = take(account)
    ours = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(place / "home"),
            "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": token or ""}  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, "-m", "coterie", "export", "model", "run", "--out", "mine", *words],
            cwd=place, env={**os.environ, **ours}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        yield f"{done.returncode}\n{done.stdout}\n{' '.join(done.stderr.split())}"
    finally:
        server.shutdown()


def test_the_files_of_the_export_arrive(run: Path, tmp_path: Path) -> None:
    account = Account(TOKEN)
    with command(account, tmp_path, TOKEN, "--push", "team/mine", "--private") as said:
        assert said.startswith("0\nmine\n"), said
        assert "uploaded to http://127.0.0.1" in said and "/team/mine" in said
    written = {file.name: file.read_bytes() for file in (tmp_path / "mine").iterdir()}
    assert account.repos == {"team/mine": written} and "model.safetensors" in written
    assert account.private == ["team/mine"]
    assert list(account.stored.values()) == [written["model.safetensors"]], "as a large file"


def test_a_push_without_a_token_is_refused_before_anything_is_written(
    run: Path, tmp_path: Path
) -> None:
    account = Account(TOKEN)
    with command(account, tmp_path, None, "--push", "me/mine") as said:
        assert said.startswith("2\n") and "HF_TOKEN" in said, said
    assert not (tmp_path / "mine").exists() and not account.repos


def test_an_upload_that_fails_says_so_and_how_to_go_on(run: Path, tmp_path: Path) -> None:
    account = Account(TOKEN, full=True)
    with command(account, tmp_path, TOKEN, "--push", "me/mine") as said:
        assert said.startswith("2\n") and "403" in said, said
        assert "mine is written" in said and "hf upload me/mine mine" in said
    assert (tmp_path / "mine/model.safetensors").is_file() and not account.repos["me/mine"]
