"""`coterie config` and files of settings: what is listed, what wins, and where a file is wrong."""

from pathlib import Path

import pytest
import yaml

from coterie.cli.arguments import read_arguments
from coterie.recipes.registry import names
from tests.conftest import FEW, Cli, refused


@pytest.mark.parametrize("recipe", names())
def test_every_key_is_whole_at_80_columns(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = cli("config", recipe)
    assert said.code == 0
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 80
    if recipe == "optima/isft":
        assert any(line.startswith("rollout.samples = ") for line in lines)
        assert any(
            line.strip() == "Sampling temperature. Source: Optima section 3." for line in lines
        )


def keys_of(out: str) -> list[str]:
    return [line.split(" = ")[0] for line in out.splitlines() if " = " in line and line[0] != " "]


def test_the_ten_keys_that_matter_come_first(cli: Cli) -> None:
    first = cli("config", "rl/grpo").out.split("All other keys")[0]
    assert len(keys_of(first)) == 10
    assert {"model", "rollout.samples", "steps.count", "update.learning_rate"} <= set(
        keys_of(first)
    )


def test_keys_are_found_by_name_by_group_and_by_a_part_of_their_name(cli: Cli) -> None:
    assert keys_of(cli("config", "optima/isft", "rollout.samples").out) == ["rollout.samples"]
    rollout = keys_of(cli("config", "optima/isft", "rollout").out)
    assert "rollout.samples" in rollout and all(key.startswith("rollout.") for key in rollout)
    dataset = keys_of(cli("config", "optima/isft", "dataset=gsm8k", "dataset").out)
    assert "dataset.source" in dataset
    found = keys_of(cli("config", "optima/idpo", "learning_rate").out)
    assert found == ["train.learning_rate", "dpo.train.learning_rate"]
    said = refused(cli, "config", "optima/isft", "rolout.sampels")
    assert "did you mean 'rollout.samples'" in said


def test_only_what_is_changed(cli: Cli, tmp_path: Path) -> None:
    before = keys_of(cli("config", "optima/isft", "--changed").out)
    after = cli("config", "optima/isft", "evaluate.temperature=0.5", "--changed").out
    assert set(keys_of(after)) - set(before) == {"evaluate.temperature"}
    assert "evaluate.temperature = 0.5   (default: 0.0)" in after
    (tmp_path / "mine.yaml").write_text("recipe: optima/isft\nevaluate.temperature: 0.5\n")
    assert cli("config", "--config", "mine.yaml", "--changed").out == after
    assert keys_of(cli("config", "evaluate", "--config", "mine.yaml", "--changed").out) == [
        key for key in keys_of(after) if key.startswith("evaluate.")
    ]


FILE = """\
# my own
recipe: optima/isft
seed: 3
iterations: 1
rollout:
  samples: 4
  tasks: 5
train.epochs: 1
evaluate: {tasks: 6}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of settings, in the working folder."""
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    return path


def test_a_file_lies_over_the_preset_and_words_over_the_file(file: Path) -> None:
    own = read_arguments(None, ["rollout.samples=8"], file).resolve()
    assert (own.recipe, own.seed, own.train.epochs) == ("optima/isft", 3, 1)
    assert (own.rollout.samples, own.rollout.tasks, own.evaluate.tasks) == (8, 5, 6)
    assert own.model == "tiny-exchange", "what neither says is the preset's"


def test_a_file_lies_over_what_the_run_folder_has(file: Path) -> None:
    own = read_arguments(None, [], file).resolve(
        {"environment": {"name": "exchange"}, "seed": 1, "evaluate": {"tasks": 9}}
    )
    assert (own.seed, own.evaluate.tasks) == (3, 6)
    assert read_arguments("optima/isft", [], None).resolve({"seed": 1}).seed == 1


def test_the_data_set_decides_over_which_preset_the_file_lies(file: Path) -> None:
    file.write_text("recipe: optima/isft\ndataset: gsm8k\nmodel: tiny-exchange\nseed: 9\n")
    preset = read_arguments("optima/isft", ["dataset=gsm8k"], None).resolve()
    own = read_arguments(None, [], file).resolve(
        {"environment": {"name": "exchange"}, "seed": 1, "iterations": 7}
    )
    assert own.iterations == preset.iterations and own.seed == 9
    other = read_arguments(None, ["environment=exchange"], file).resolve()
    assert (other.played, other.seed) == ("exchange", 9), "the file's other keys still hold"


@pytest.mark.slow
def test_a_run_is_done_by_a_file_and_its_stored_settings_are_one(cli: Cli, tmp_path: Path) -> None:
    tree = {"recipe": "optima/isft", **dict(word.split("=") for word in FEW)}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree))
    assert cli("run", "--config", "mine.yaml", "--folder", "first").code == 0
    assert cli("run", "--config", "first/config.yaml", "--folder", "second", "--dry-run").code == 0
    stored = yaml.safe_load((tmp_path / "first/config.yaml").read_text())
    own = read_arguments(None, [], tmp_path / "first/config.yaml").resolve().model_dump(mode="json")
    assert own == {key: value for key, value in stored.items() if key not in ("recipe", "made")}
    said = cli("run", "--config", "mine.yaml", "--folder", "first")
    assert said.code == 0 and ": rollout" not in said.err, "all was done"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed: 1\nseed: 2\n", ("'seed'", "line 1", "line 2")),
        ("rollout: {samples: 2}\nrollout.samples: 3\n", ("'rollout.samples'", "line 1", "line 2")),
        ("rollout:\n  tasks: 2\nrollout:\n  samples: 3\n", ("'rollout'", "line 1", "line 3")),
        ("seed: 1\nrollout:\n  sample: 2\n", ("line 3", "'rollout.sample'", "'rollout.samples'")),
        ("seeds: 1\n", ("line 1", "'seeds'", "did you mean 'seed'")),
        ("rollout:\n\tsamples: 2\n", ("line 2",)),
        ("seed: [1\n", ("line",)),
        ("seed: 1\nrollout:\n  samples: none\n", ("rollout.samples", "mine.yaml, line 3")),
        ("rollout: 4\n", ("rollout", "group of keys")),
        ("- seed\n", ("no settings",)),
        ("? [a]\n: 1\n", ("line 1", "not a word")),
        ("recipe: optima/isff\n", ("optima/isff", "optima/isft")),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(
    cli: Cli, file: Path, text: str, said: tuple[str, ...]
) -> None:
    file.write_text(text)
    recipe = () if "recipe" in text else ("optima/isft",)
    found = refused(cli, "config", *recipe, "--config", "mine.yaml")
    for part in said:
        assert part in found, found


def test_a_file_that_is_not_there_and_one_without_a_recipe(cli: Cli, tmp_path: Path) -> None:
    assert "none.yaml" in refused(cli, "run", "--config", "none.yaml")
    (tmp_path / "mine.yaml").write_text("seed: 1\n")
    assert "recipe:" in refused(cli, "run", "--config", "mine.yaml")
    assert "no recipe is given" in refused(cli, "run")
    assert "given twice" in refused(cli, "run", "seed=1", "seed=2", "--config", "mine.yaml")
