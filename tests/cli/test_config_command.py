"""`coterie config` and files of settings: what is listed, what wins, and where a file is wrong."""

from pathlib import Path

import pytest
import yaml

from coterie.cli.arguments import read_arguments
from tests.conftest import FEW, Cli, refused


def keys_of(out: str) -> list[str]:
    return [line.split(" = ")[0] for line in out.splitlines() if " = " in line and line[0] != " "]


def test_main_keys_come_first_and_names_choose_keys(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = cli("config", "optima/isft").out
    assert max(map(len, out.splitlines())) <= 80
    assert "Sampling temperature. Source: Optima section 3." in out
    main = keys_of(cli("config", "rl/grpo").out.split("All other keys")[0])
    per_task = "rollout.rollouts_per_task"
    assert len(main) == 10 and {"model", per_task, "train.learning_rate"} <= set(main)
    assert keys_of(cli("config", "optima/isft", per_task).out) == [per_task]
    rollout = keys_of(cli("config", "optima/isft", "rollout").out)
    assert per_task in rollout and all(key.startswith("rollout.") for key in rollout)
    rates = keys_of(cli("config", "optima/idpo", "learning_rate").out)
    assert rates == ["train.learning_rate", "dpo.train.learning_rate"]
    near = refused(cli, "config", "optima/isft", "rolout.rollout_per_task")
    assert "did you mean 'rollout.rollouts_per_task'" in near


def test_a_recipe_of_a_file_lists_its_keys_before_it_can_run(cli: Cli, tmp_path: Path) -> None:
    """It has neither a default model nor an environment, and a key whose name the recipe also uses."""
    (tmp_path / "mine.py").write_text(
        "from typing import ClassVar\nfrom coterie.config.settings import key\n"
        "from coterie.recipes.base import Recipe\nfrom coterie.recipes.settings import RecipeSettings\n"
        "class MineSettings(RecipeSettings):\n    recipe: ClassVar[str] = 'mine'\n"
        "    max_tokens: int = key(64, 'Maximum tokens of a reply.')\n"
        "class Mine(Recipe):\n    settings_type = MineSettings\n    def stages(self): return []\n"
    )
    listed = cli("config", "mine.py:Mine")
    assert listed.code == 0 and "max_tokens = 64" in listed.out, listed.err
    assert {"model", "environment.name"} <= set(keys_of(listed.out))
    overrides = ("environment=exchange", "model=tiny-exchange", "max_tokens=9")
    assert "max_tokens = 9   (default: 64)" in cli("config", "mine.py:Mine", *overrides).out


def test_only_what_is_changed(cli: Cli, tmp_path: Path) -> None:
    before = keys_of(cli("config", "optima/isft", "--changed").out)
    after = cli("config", "optima/isft", "evaluate.temperature=0.5", "--changed").out
    assert set(keys_of(after)) - set(before) == {"evaluate.temperature"}
    assert "evaluate.temperature = 0.5   (default: 0.0)" in after
    (tmp_path / "mine.yaml").write_text("recipe: optima/isft\nevaluate.temperature: 0.5\n")
    assert cli("config", "--config", "mine.yaml", "--changed").out == after
    group = cli("config", "evaluate", "--config", "mine.yaml", "--changed").out
    assert keys_of(group) == [key for key in keys_of(after) if key.startswith("evaluate.")]


FILE = """\
recipe: optima/isft
seed: 3
rollout:
  rollouts_per_task: 4
  tasks: 5
train.epochs: 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of settings, in the working folder."""
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    return path


def test_overrides_come_before_the_file_stored_settings_and_the_preset(file: Path) -> None:
    stored = {"environment": {"name": "exchange"}, "seed": 1, "evaluate": {"tasks": 9}}
    own = read_arguments(None, ["rollout.rollouts_per_task=8"], file).resolve(stored)
    assert (own.recipe, own.seed, own.train.epochs) == ("optima/isft", 3, 1)
    assert (own.rollout.rollouts_per_task, own.rollout.tasks, own.evaluate.tasks) == (8, 5, 9)
    assert own.model == "tiny-exchange", "the preset's"


def test_the_data_set_decides_over_which_preset_the_file_lies(file: Path) -> None:
    file.write_text("recipe: optima/isft\ndataset: gsm8k\nmodel: tiny-exchange\nseed: 9\n")
    preset = read_arguments("optima/isft", ["dataset=gsm8k"], None).resolve()
    stored = {"environment": {"name": "exchange"}, "seed": 1, "iterations": 7}
    own = read_arguments(None, [], file).resolve(stored)
    assert own.iterations == preset.iterations and own.seed == 9
    other = read_arguments(None, ["environment=exchange"], file).resolve()
    assert (other.benchmark, other.seed) == ("exchange", 9), "the file's other keys still hold"


@pytest.mark.slow
def test_a_run_is_done_by_a_file_and_its_stored_settings_are_one(cli: Cli, tmp_path: Path) -> None:
    tree = {"recipe": "optima/isft", **dict(word.split("=") for word in FEW)}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree))
    assert cli("run", "--config", "mine.yaml", "--folder", "first").code == 0
    assert cli("run", "--config", "first/config.yaml", "--folder", "second", "--dry-run").code == 0
    stored = yaml.safe_load((tmp_path / "first/config.yaml").read_text())
    own = read_arguments(None, [], tmp_path / "first/config.yaml").resolve().model_dump(mode="json")
    assert own == {key: value for key, value in stored.items() if key not in ("recipe", "made")}
    again = cli("run", "--config", "mine.yaml", "--folder", "first")
    assert again.code == 0 and ": rollout" not in again.err, "all was done"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rollout: {tasks: 2}\nrollout.tasks: 3\n", "'rollout.tasks' is in line 1 and again in line 2"),
        ("seed: 1\nrollout:\n  sample: 2\n", "line 3: unknown key 'rollout.sample'"),
        ("rollout:\n\tsamples: 2\n", "line 2"),
        ("seed: 1\nrollout:\n  rollouts_per_task: none\n", "rollout.rollouts_per_task=none: Input should be"),
        ("rollout: 4\n", "group of keys"),
        ("- seed\n", "no settings"),
        ("? [a]\n: 1\n", "line 1 is not a word"),
        ("recipe: optima/isff\n", "optima/isft"),
    ],
)  # fmt: skip
def test_a_wrong_line_of_a_file_is_named(cli: Cli, file: Path, text: str, problem: str) -> None:
    file.write_text(text)
    recipe = () if "recipe" in text else ("optima/isft",)
    assert problem in refused(cli, "config", *recipe, "--config", "mine.yaml")
