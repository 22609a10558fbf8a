"""A run that is stopped from outside (Ctrl-C, a full disk) says so, and the same command resumes it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.errors import UserError
from coterie.record.store import Store
from coterie.runs.run import StageKey
from tests.conftest import SMALL

ROOT = Path(__file__).parents[2]


def finished_dialogues(folder: Path) -> set[object]:
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        assert not store.finished(StageKey(0, "rollout").finished_key), (
            "it was interrupted too late"
        )
        return set(store.finished_keys(0, "rollout"))


def wait_for_dialogues(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the rollout has recorded a dialogue."""
    for _ in range(1200):
        assert process.poll() is None, "the run ended before it could be interrupted"
        try:
            if finished_dialogues(folder):
                return
        except (UserError, OSError):
            pass  # the store is being made
        time.sleep(0.05)
    raise AssertionError("no dialogue within a minute")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_says_that_the_run_resumes_and_it_does(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "run"
    overrides = [pair.replace("rollout.tasks=4", "rollout.tasks=64") for pair in SMALL]
    command = [
        sys.executable,
        "-m",
        "coterie",
        "run",
        "optima/isft",
        *overrides,
        "--folder",
        folder,
    ]
    # Scripts start commands in the background with Ctrl-C ignored.
    background = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"] if number != signal.SIGINT else []
    started = [*background, *command]
    process = subprocess.Popen(
        started,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Under nohup the tests inherit that it is ignored, and so would the run.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    wait_for_dialogues(folder, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "run the same command again" in err, err
    assert "Traceback" not in err and (folder / "report.html").is_file()
    kept = finished_dialogues(folder)
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        assert store.finished_keys(0, "rollout") > kept


@pytest.mark.slow
def test_a_disk_that_fills_while_training_is_named_and_the_run_resumes(tmp_path: Path) -> None:
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=300m none {tmp_path}"
    if not shutil.which("unshare") or subprocess.run([*inside, mount], check=False).returncode:
        pytest.skip("no permission to mount a small tmpfs in a namespace of one's own here")
    script = [sys.executable, "-m", "tests.crash.full_disk", str(tmp_path)]
    variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [*inside, f'{mount} && exec "$@"', "sh", *script]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["statuses"] == [2, 0] and "is full" in report["said"]
    assert "resumes where it stopped" in report["said"]
