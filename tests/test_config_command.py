"""`coterie config`: keys to be read at 80 columns, those that are asked for, those that are changed."""

from pathlib import Path

import pytest

from coterie.recipes.registry import names
from tests.conftest import Cli, refused


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
