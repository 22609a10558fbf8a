"""What ``coterie reproduce`` prints: a table of policies, and what the grades of the newest ones say besides."""

import json
from pathlib import Path

import pytest

from coterie.cli.findings import print_findings
from coterie.recipes.findings import ClaimResults, Findings, PolicyResult


def test_means_are_of_each_methods_newest_policies_and_no_cell_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measures = [f"a_measure_with_a_name_{number}" for number in range(30)]

    def result(method: str, seed: int, iteration: int, value: float) -> PolicyResult:
        means = dict.fromkeys(measures, value)
        return PolicyResult(method, seed, iteration, 500, value, 40.0, 1000, 125, means)

    rows = [result("base", 0, 0, 0.1), result("base", 1, 0, 0.3)]
    rows += [result("ours", 0, 1, 0.9), result("ours", 0, 2, 0.5), result("ours", 1, 2, 0.6)]
    print_findings(tmp_path, ClaimResults(Findings(rows), []))
    said = capsys.readouterr().out
    assert "…" not in said
    assert ["ours", "0", "2", "500", "0.500", "40.0", "1000", "125"] in [
        line.split() for line in said.splitlines()
    ]
    for name in measures:
        (line,) = (line for line in said.splitlines() if line.startswith(f" {name} ".replace("_", " ")))  # fmt: skip
        assert line.split()[-2:] == ["0.20", "0.55"]
    assert json.loads(said.splitlines()[-1])["rows"][3][measures[0]] == 0.5
