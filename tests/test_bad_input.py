"""What a person gets wrong is refused at once, with what to do, and nothing is lost."""

import json
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from coterie.recipes import plan as plan_of_run
from coterie.runs import folder as run_folder
from tests.conftest import SMALL, Cli, refused

TINY = Path(str(resources.files("coterie") / "assets/tiny-exchange"))


def test_an_unknown_key_names_the_nearest(cli: Cli, tmp_path: Path) -> None:
    said = refused(cli, "run", "optima/isft", "rollout.sampels=4")
    assert "rollout.samples" in said
    assert not list(tmp_path.iterdir()), "nothing was made"


def test_an_unknown_recipe_is_told_the_nearest_one_if_any_is_near(cli: Cli) -> None:
    assert "did you mean 'optima/isft'?" in refused(cli, "run", "optima/isf")
    said = refused(cli, "run", "zzzzz")
    assert "did you mean" not in said
    assert "no recipe is called 'zzzzz'" in said and "there is: " in said and "optima/isft" in said


def test_a_combination_that_can_not_work(cli: Cli) -> None:
    said = refused(cli, "run", "optima/idpo", "train.method=lora")
    assert "each training continues from the last one" in said


def test_a_model_path_that_is_no_model(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(cli, "run", "optima/isft", "model=empty")
    assert "nowhere" in refused(cli, "run", "optima/isft", "model=./nowhere")


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


def test_a_run_folder_of_another_recipe(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.yaml").write_text("recipe: gap/sft\n")
    assert "gap/sft" in refused(cli, "run", "optima/isft", "--folder", "other")


def test_a_stage_whose_input_is_missing(cli: Cli) -> None:
    said = cli("stage", "evaluate", "mine", *SMALL)
    assert said.code == 0 and "mine does not exist: starting a new run of optima/isft" in said.err
    assert "starting a new run" not in cli("evaluate", "mine", "--iteration", 0).err
    assert "needs the rollout of iteration 0" in refused(cli, "reward", "mine")
    assert "out of range" in refused(cli, "reward", "mine", "--iteration", 5)
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


def test_a_threshold_that_nothing_reaches(cli: Cli) -> None:
    high = [word.replace("threshold=-100", "threshold=1.3") for word in SMALL]
    said = refused(cli, "run", "optima/isft", *high, "--folder", "mine")
    assert "select.threshold=1.3" in said and "--fork" in said


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
