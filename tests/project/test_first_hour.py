"""What a person gets wrong in the first hour: places, names, files, settings. It is refused with what to do."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from unittest.mock import Mock

import pytest

from coterie.cli.app import INTERRUPTED
from coterie.recipes import plan as plan_of_run
from coterie.record.store import Store
from coterie.runs import loop
from coterie.runs import run as run_folder
from tests.conftest import FEW, SMALL, Cli, refused


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., object] = socket.getaddrinfo

    def local(host: str | None, *words: object, **more: object) -> object:
        assert host in (None, "127.0.0.1", "localhost", "::1"), f"{host} was looked up"
        return real(host, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", local)


PROBLEMS = (
    ("run optima/isft model=tiny-exchang", "did you mean 'tiny-exchange'?"),
    ("run optima/isf", "did you mean 'optima/isft'?"),
    ("run optima/isft rollout.rollout_per_task=4", "rollout.rollouts_per_task"),
    ("run optima/isft --folder beside/finished", "gap/sft"),
    ("run optima/isft model=gpt2", "OWNER/NAME"),
    ("run optima/isft model=note.txt", "note.txt is a file"),
    ("run optima/isft dataset=gsm9k", "did you mean 'gsm8k'?"),
    ("evaluate a-new-run", "no benchmark or run folder"),
    ("run optima/isft train.max_length=8", "train.max_length=8 leaves nothing to train on"),
    ("run optima/isft seed=1 seed=2", "seed is given twice: seed=1 and seed=2"),
    ("quickstart dataset=gsm8k", "--task"),
    ("run optima/isft --model tiny-exchange", "settings are written as key=value, without dashes"),
    ("evaluate --folder runs/x", "give the run folder as an argument, without --folder"),
    ("stage rollout runs/x --iteration one", "must be a valid whole number"),
    ("run", "no recipe is given"),
)  # fmt: skip


@pytest.mark.parametrize(("line", "problem"), PROBLEMS)
def test_names_and_settings_that_cannot_work_are_refused_before_anything_is_made(
    cli: Cli, tmp_path: Path, line: str, problem: str
) -> None:
    (tmp_path / "beside/finished").mkdir(parents=True)
    (tmp_path / "beside/finished/config.yaml").write_text("recipe: gap/sft\n")
    (tmp_path / "runs").mkdir()
    (tmp_path / "note.txt").touch()
    message = refused(cli, *line.split())
    assert problem in message
    assert "Input should" not in message and "Value error" not in message
    assert len(list(tmp_path.iterdir())) == 3, "nothing was made"


def test_a_run_whose_record_is_gone_or_empty_is_refused(cli: Cli, run: Path) -> None:
    for path in run.glob("store.sqlite*"):
        path.unlink()
    for words in (
        ("run", "optima/isft", "--folder", "run"),
        ("stage", "train", "run"),
        ("export", "data", "run", "--to", "trl", "--out", "out"),
    ):
        message = refused(cli, *words)
        assert "store.sqlite" in message and "is gone" in message and "from a copy" in message
    assert "there is no store at" in refused(cli, "report", "run")
    assert not (run / "store.sqlite").exists()
    Store.open(run / "store.sqlite").close()
    assert "is empty" in refused(cli, "run", "optima/isft", "--folder", "run")


def test_a_run_is_a_model(cli: Cli, run: Path) -> None:
    assert cli("stage", "evaluate", "second", "model=run", *FEW).code == 0
    final = Path("run/training/policy/iteration-00/final").absolute()
    assert f"model: {final}" in Path("second/config.yaml").read_text()
    assert cli("evaluate", "exchange", "policy=run", "tasks=2").code == 0


def test_the_report_is_there_after_every_stage_also_one_that_failed(cli: Cli) -> None:
    page = Path("mine/report.html")
    for stage in ("evaluate", "rollout", "reward", "select"):
        assert cli("stage", stage, "mine", *(FEW if stage == "evaluate" else ())).code == 0
        assert page.is_file(), stage
        page.unlink()
    none = [word.replace("threshold=-100", "threshold=1.3") for word in FEW]
    message = refused(cli, "run", "optima/isft", *none, "--folder", "none")
    assert "`coterie view`" in message and "select.threshold=1.3" in message and "--fork" in message
    assert Path("none/report.html").is_file(), "the error points to it"


def test_a_run_that_is_stopped_before_its_settings_are_written_can_begin_again(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(loop, "write_config", Mock(side_effect=KeyboardInterrupt))
        assert cli("run", "optima/isft", *FEW, "--folder", "mine").code == INTERRUPTED
    assert not Path("mine/config.yaml").exists()
    result = cli("stage", "evaluate", "mine", *FEW)
    assert result.code == 0, result.err


TINY = Path(str(resources.files("coterie") / "assets/tiny-exchange"))


def test_models_and_machines_that_cannot_train_are_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(TINY, tmp_path / "mute")
    for name in ("chat_template.jinja", "chat_template.json"):
        (tmp_path / "mute" / name).unlink(missing_ok=True)
    config = tmp_path / "mute/tokenizer_config.json"
    values = json.loads(config.read_text())
    values.pop("chat_template", None)
    config.write_text(json.dumps(values))
    assert "chat template" in refused(cli, "run", "optima/isft", "model=mute")
    with monkeypatch.context() as patch:
        patch.setattr(plan_of_run, "device_memory", lambda device: (0, 2**29 + 5 * 2**22))
        message = refused(cli, "run", "optima/isft", "engine.device=cpu")
    assert "on cpu, which has 0.52 GiB" in message and "train.method=lora" in message
    monkeypatch.setattr(run_folder, "MIN_FREE", 2**60)  # no disk has that much
    assert "MiB are free" in refused(cli, "run", "optima/isft", *SMALL)


def test_a_stage_whose_input_is_missing(cli: Cli) -> None:
    result = cli("stage", "evaluate", "mine", *SMALL)
    assert (
        result.code == 0 and "mine does not exist: starting a new run of optima/isft" in result.err
    )
    assert "starting a new run" not in cli("evaluate", "mine", "--iteration", 0).err
    assert "needs the rollout of iteration 0" in refused(cli, "stage", "reward", "mine")
    assert "out of range" in refused(cli, "stage", "reward", "mine", "--iteration", 5)
    assert "not a run folder" in refused(cli, "report", "nowhere")


def test_a_second_process_on_a_run_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c",
         "import sys; from coterie.record.store import Store; "
         "store = Store.open('mine/store.sqlite'); print('held', flush=True); sys.stdin.read()"],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdin and holder.stdout
    assert holder.stdout.readline() == "held\n"
    try:
        message = refused(cli, "run", "optima/isft", *SMALL, "--folder", "mine")
        assert str(holder.pid) in message
    finally:
        holder.stdin.close()
        holder.wait(timeout=30)
