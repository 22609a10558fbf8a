"""What a person gets wrong in the first hour: places, names, files, settings. It is refused with what to do."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from coterie.cli.app import INTERRUPTED
from coterie.recipes import plan as plan_of_run
from coterie.record.store import Store
from coterie.runs import folder as run_folder
from coterie.runs import loop
from tests.conftest import FEW, SMALL, Cli, refused

SERVER = ("endpoint.url=http://127.0.0.1:9/v1", "endpoint.model=x")


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """A folder in which nothing can be made; root is bound too, by the system's own file system."""
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o555)
        return tmp_path / "locked"
    if not os.path.ismount("/sys"):
        pytest.skip("there is no folder here that root can't write in")
    return Path("/sys")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., object] = socket.getaddrinfo

    def local(host: str | None, *words: object, **more: object) -> object:
        assert host in (None, "127.0.0.1", "localhost", "::1"), f"{host} was looked up"
        return real(host, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", local)


PLACES = (
    ("run", "optima/isft", *FEW, "--folder", "{}/new"),
    ("stage", "rollout", "{}/new", *FEW),
    ("quickstart", *FEW, "--folder", "{}/new"),
    ("reproduce", "optima", "--folder", "{}/new"),
    ("run", "optima/isft", "--folder", "run", "seed=5", "--fork", "{}/new"),
    ("export", "data", "run", "--to", "jsonl", "--out", "{}/files"),
    ("data", "prompt-pool", "--out", "{}/pool.jsonl", *SERVER),
)  # fmt: skip


@pytest.mark.parametrize("words", PLACES, ids=lambda words: "-".join(words[:2]))
def test_a_place_that_cannot_be_written_is_named(
    cli: Cli, run: Path, tmp_path: Path, locked: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "some.jsonl").write_text("{}\n")
    (tmp_path / "file").touch()
    assert "file" in refused(cli, *(word.format("file") for word in words))
    assert str(locked) in refused(cli, *(word.format(locked) for word in words))
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train.parquet"])
def test_an_empty_file_is_named(cli: Cli, tmp_path: Path, name: str) -> None:
    for file in (name, name.replace("train", "test")):
        (tmp_path / file).touch()
    (tmp_path / "rows").mkdir()
    for split in ("train", "heldout"):
        (tmp_path / f"rows/{split}.jsonl").touch()
    assert "train." in refused(cli, "run", "optima/isft", "dataset=gsm8k", f"dataset.source={name}")
    source = ("dataset.source=rows", "model=tiny-exchange")
    assert "rows/train.jsonl is empty" in refused(
        cli, "run", "optima/isft", "dataset=gsm8k", *source
    )
    assert "is empty" in refused(cli, "evaluate", "gsm8k", "policy=tiny-exchange", source[0])
    (tmp_path / "empty.jsonl").touch()
    check = ("data", "check", "colbench_code", "--source", "empty.jsonl")
    assert "empty.jsonl is empty" in refused(cli, *check)


NAMES = (
    ("run optima/isft model=tiny-exchang", "did you mean 'tiny-exchange'?"),
    ("evaluate exchange policy=smolm2", "did you mean 'smollm2'?"),
    ("serve model tiny_exchange --port 0", "did you mean 'tiny-exchange'?"),
    ("run optima/isf", "did you mean 'optima/isft'?"),
    ("run zzzzz", "no recipe is called 'zzzzz'"),
    ("run optima/isft rollout.sampels=4", "rollout.samples"),
    ("run optima/isft --folder beside/finished", "gap/sft"),
    ("run optima/isft model=beside", "beside"),
    ("run optima/isft model=gpt2", "OWNER/NAME"),
    ("run optima/isft model=./x", "there is no folder x"),
    ("run optima/isft model=owner/weights.gguf", "there is no folder owner/weights.gguf"),
    ("run optima/isft model=beside/finishd", "did you mean beside/finished?"),
    ("run optima/isft model=~nobody-at-all/model", "~nobody-at-all/model: there is no such user"),
    ("run optima/isft model=note.txt", "note.txt is a file"),
    ("run optima/isft model=", "no model is named"),
    (
        "run sweet_rl/backend user_simulator=smolm2",
        "user_simulator=smolm2: there is no model 'smolm2'",
    ),
    ("run sweet_rl/backend user_simulator=scrpt", "did you mean 'script'?"),
    ("run optima/isft dataset=gsm9k", "did you mean 'gsm8k'?"),
    ("data download gsm9k", "did you mean 'gsm8k'?"),
    ("evaluate hotpotqa", "did you mean 'hotpot_qa'?"),
    ("models get smolm2", "did you mean 'smollm2'?"),
    ("reproduce optim", "did you mean 'optima'?"),
    ("stage reward beside/finishd", "did you mean beside/finished?"),
)


@pytest.mark.parametrize(("line", "said"), NAMES)
def test_a_misspelt_name_is_refused_at_once_with_the_nearest(
    cli: Cli, tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "beside/finished").mkdir(parents=True)
    (tmp_path / "beside/finished/config.yaml").write_text("recipe: gap/sft\n")
    (tmp_path / "note.txt").touch()
    assert said in refused(cli, *line.split())
    assert not (tmp_path / "runs").exists()
    assert len(list(tmp_path.iterdir())) == 2, "nothing was made"


SETTINGS = (
    ("run optima/isft train.max_length=8", "train.max_length=8 leaves nothing to train on"),
    ("run optima/isft select.threshold=1e7", "select.threshold=1e+07 is above"),
    (
        "run optima/idpo dpo.select.theta_filter=2 dpo.reward.lambda_loss=0.5 "
        "dpo.reward.loss_term=bounded",
        "dpo.select.theta_filter=2 is not below",
    ),
    ("run optima/isft seed=1 seed=2", "seed is given twice: seed=1 and seed=2"),
    ("quickstart dataset=gsm8k", "--task"),
    ("run optima/isft --model tiny-exchange", "settings are written as key=value, without dashes"),
    ("serve model tiny-exchange --port 99999", "must be at most 65535"),
    ("stage rollout runs/x --iteration one", "must be a valid whole number"),
    ("reproduce optima seed=3", "--seeds"),
    ("run", "no recipe is given"),
)


@pytest.mark.parametrize(("line", "said"), SETTINGS)
def test_settings_that_cannot_work_are_refused_in_plain_words(
    cli: Cli, line: str, said: str
) -> None:
    told = refused(cli, *line.split())
    assert said in told
    assert "Input should" not in told and "Value error" not in told


def test_a_run_whose_record_is_gone_or_empty_is_refused(cli: Cli, run: Path) -> None:
    for path in run.glob("store.sqlite*"):
        path.unlink()
    for words in (
        ("run", "optima/isft", "--folder", "run"),
        ("stage", "train", "run"),
        ("report", "run"),
        ("export", "data", "run", "--to", "trl", "--out", "out"),
    ):
        said = refused(cli, *words)
        assert "store.sqlite" in said and "is gone" in said and "from a copy" in said
    assert not (run / "store.sqlite").exists()
    Store.open(run / "store.sqlite").close()
    assert "is empty" in refused(cli, "run", "optima/isft", "--folder", "run")


def test_a_run_is_a_model(cli: Cli, run: Path) -> None:
    assert cli("stage", "evaluate", "second", "model=run", *FEW).code == 0
    final = "run/training/policy/iteration-00/final"
    assert f"model: {final}" in Path("second/config.yaml").read_text()
    assert cli("evaluate", "exchange", "policy=run", "tasks=2").code == 0


def test_the_report_is_there_after_every_stage_also_one_that_failed(cli: Cli) -> None:
    page = Path("mine/report.html")
    for stage in ("evaluate", "rollout", "reward", "select"):
        assert cli("stage", stage, "mine", *(FEW if stage == "evaluate" else ())).code == 0
        assert page.is_file(), stage
        page.unlink()
    none = [word.replace("threshold=-100", "threshold=1.3") for word in FEW]
    said = refused(cli, "run", "optima/isft", *none, "--folder", "none")
    assert "the report" in said and "select.threshold=1.3" in said and "--fork" in said
    assert Path("none/report.html").is_file(), "the error points to it"


def test_a_run_that_is_stopped_before_its_settings_are_written_can_begin_again(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(loop, "write_config", _stopped)
        assert cli("run", "optima/isft", *FEW, "--folder", "mine").code == INTERRUPTED
    assert not Path("mine/config.yaml").exists()
    said = cli("stage", "evaluate", "mine", *FEW)
    assert said.code == 0, said.err


def _stopped(*_: object) -> None:
    raise KeyboardInterrupt


TINY = Path(str(resources.files("coterie") / "assets/tiny-exchange"))


def test_a_tokenizer_without_a_chat_template(cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "mute")
    for name in ("chat_template.jinja", "chat_template.json"):
        (tmp_path / "mute" / name).unlink(missing_ok=True)
    config = tmp_path / "mute/tokenizer_config.json"
    values = json.loads(config.read_text())
    values.pop("chat_template", None)
    config.write_text(json.dumps(values))
    assert "chat template" in refused(cli, "run", "optima/isft", "model=mute")


def test_more_memory_than_there_is(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_of_run, "device_memory", lambda device: (0, 2**24))
    said = refused(cli, "run", "optima/isft", "engine.device=cpu")
    assert "on cpu, which has 0.02 GiB" in said and "train.method=lora" in said


def test_a_stage_whose_input_is_missing(cli: Cli) -> None:
    said = cli("stage", "evaluate", "mine", *SMALL)
    assert said.code == 0 and "mine does not exist: starting a new run of optima/isft" in said.err
    assert "starting a new run" not in cli("evaluate", "mine", "--iteration", 0).err
    assert "needs the rollout of iteration 0" in refused(cli, "stage", "reward", "mine")
    assert "out of range" in refused(cli, "stage", "reward", "mine", "--iteration", 5)
    assert "not a run folder" in refused(cli, "report", "nowhere")


def test_evaluate_starts_no_run(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "runs/mine").mkdir(parents=True)
    (tmp_path / "runs/mine/config.yaml").touch()
    assert "did you mean 'gsm8k'?" in refused(cli, "evaluate", "gms8k")
    assert "did you mean 'runs/mine'?" in refused(cli, "evaluate", "runs/mien")
    assert "no benchmark or run folder" in refused(cli, "evaluate", "a-new-run", *SMALL)
    said = refused(cli, "evaluate", "hotpot_qa", "policy=runs/mien", "dataset.source=nowhere")
    assert "did you mean runs/mine?" in said
    assert not (tmp_path / "a-new-run").exists()


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
        said = refused(cli, "run", "optima/isft", *SMALL, "--folder", "mine")
        assert str(holder.pid) in said
    finally:
        holder.stdin.close()
        holder.wait(timeout=30)


def test_a_full_disk_is_refused_before_the_start(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "MIN_FREE", 2**60)  # no disk has that much
    assert "MiB are free" in refused(cli, "run", "optima/isft", *SMALL)
