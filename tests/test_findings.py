"""What ``coterie reproduce`` prints: a table of policies, and what the grades of the newest ones say besides."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.cli.findings import print_findings
from coterie.recipes.findings import ClaimResults, Findings, PolicyResult

Said = Callable[..., list[str]]

METHODS = ("base", "sft", "more_sft", "more_epochs", "rejection", "dapo", "grpo", "ppo")
MEASURES = [f"a_measure_with_a_long_name_{number}" for number in range(30)]


def result(
    method: str, seed: int = 0, iteration: int = 1, value: float = 0.5, n: int = 500, **means: float
) -> PolicyResult:
    return PolicyResult(method, seed, iteration, n, value, 40.0, 1000, 125, means)


@pytest.fixture
def said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Said:
    monkeypatch.setenv("COLUMNS", "60")

    def lines(*rows: PolicyResult) -> list[str]:
        print_findings(tmp_path, ClaimResults(Findings(list(rows)), []))
        return capsys.readouterr().out.splitlines()

    return lines


def values_of(lines: list[str], measure: str) -> list[str]:
    """The values in the row of a measure."""
    name = f" {measure} ".replace("_", " ")
    found = [line.removeprefix(name).split() for line in lines if line.startswith(name)]
    assert len(found) == 1, measure
    return found[0]


def test_means_are_of_each_methods_newest_policies(said: Said) -> None:
    rows = [result("base", seed, 0, share=0.1 + 0.2 * seed) for seed in (0, 1)]
    rows += [result("ours", 0, 1, 0.9, share=0.9), result("ours", 0, 2, share=0.5)]
    rows += [result("ours", 1, 2, share=0.6)]
    lines = said(*rows)
    assert values_of(lines, "share") == ["0.20", "0.55"]
    assert ["ours", "0", "2", "500", "0.500", "40.0", "1000", "125"] in [
        line.split() for line in lines
    ]
    assert json.loads(lines[-1])["rows"][2]["share"] == 0.9


def test_no_figure_is_cut_in_a_narrow_terminal(said: Said) -> None:
    lines = said(*(result(method, **dict.fromkeys(MEASURES, 0.25)) for method in METHODS))
    assert all(values_of(lines, measure) == ["0.25"] * len(METHODS) for measure in MEASURES)
    assert "…" not in "".join(lines)
    for method in METHODS:
        counts = ["0", "1", "500", "0.500", "40.0", "1000", "125"]
        assert [method, *counts] in [line.split() for line in lines]


def test_what_was_not_measured_is_left_empty(said: Said) -> None:
    lines = said(result("base"), result("sft", share=0.25), result("dapo", rounds=2.0))
    heads = [line.split() for line in lines]
    assert ["sft", "dapo"] in heads, "a method without means has no column"
    assert values_of(lines, "share") == ["0.25"]
    assert values_of(lines, "rounds") == ["2.00"]
    assert not any("means of" in line for line in said(result("base")))
    newer = [result("sft", share=0.25), result("sft", iteration=2), result("dapo", share=0.5)]
    heads = [line.split() for line in said(*newer)]
    assert ["dapo"] in heads, "the newest policy of sft has none"


def test_few_tasks_are_said_not_to_be_a_test(said: Said) -> None:
    assert any("fewer than 500 tasks" in line for line in said(result("base", n=499)))
    assert not any("fewer than" in line for line in said(result("base", n=500)))
