"""Published trajectories: downloaded by name from a stub of the hub, counted, and read by the recipes."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants as hub
import pytest

from coterie.datasets.catalogue import CATALOGUE, PREFERENCE_SETS, TRAJECTORIES
from coterie.datasets.files import trajectory_file
from coterie.datasets.rows import SetRow
from coterie.progress import Silent
from coterie.runs.loop import run_stages
from coterie.runs.run import open_run
from tests.conftest import Cli
from tests.helpers.packaged_environments import wiki_tools
from tests.helpers.serve_hub import stub_hub
from tests.helpers.write_rows import write_jsonl, write_parquet
from tests.recipes.test_gap import ROLLOUT, SELECT, made
from tests.recipes.test_sweet_offline import ROWS
from tests.recipes.test_sweet_offline import made as sweet

SEARCHES = (
    "<think>a</think><plan>T1: a\n- Dependencies: none</plan><think>b</think>"
    "<wiki_search>Low Tide|Glass Harbour</wiki_search><observation>x</observation>\n\n"
    "<think>c</think><answer>Bergen</answer>"
)


def trace(question: str, output: str = SEARCHES) -> dict[str, Any]:
    """A row as GAP's conversion writes it."""
    fields = {"original_output": "", "conversion_status": "success"}
    return {
        "instruction": f"Answer.\n\nQuestion: {question}",
        "input": "",
        "output": output,
        **fields,
    }


TRACES = [
    trace("Where was Low Tide founded?"),
    trace("And Glass Harbour?"),
    trace("Why?", "Because."),
]


def test_every_entry_has_one_repository_and_a_type_of_rows() -> None:
    assert set(TRAJECTORIES) >= {"gap_traces", "afm_web_traces", "colbench_offline"}
    assert not set(TRAJECTORIES) & {*CATALOGUE, *PREFERENCE_SETS}
    for entry in TRAJECTORIES.values():
        (repo,) = entry.repos
        assert issubclass(entry.row, SetRow) and entry.licence and entry.train
        assert len(repo.train) <= 1 and not repo.heldout


def test_traces_are_downloaded_whatever_the_name_of_their_file_and_a_run_reads_them(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_parquet(tmp_path / "a.parquet", *TRACES)
    files = {"default/train/0000.parquet": file.read_bytes()}
    with stub_hub(files, tmp_path / "hub", monkeypatch, "refs/convert/parquet") as served:
        result = cli("data", "download", "gap_traces")
        assert (result.code, result.out) == (0, "train: 2 rows\n"), result.err
        assert "left out, 1: has no answer" in result.err
        assert any("Chtistina777/GAP-MHQA-SFT-7K/resolve/" in path for path in served.asked)
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    recipe = made(wiki_tools(tmp_path), "traces=gap_traces", "evaluate.tasks=1")
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        run_stages(recipe, run, Silent(), [ROLLOUT, SELECT])
        metrics = run.metrics(ROLLOUT)
        assert (metrics["n"], metrics["left out: can't be read"]) == (2, 1)
        assert run.metrics(SELECT)["selected"] == 2
    recipe.close()


def test_a_file_is_found_by_its_pattern(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"README.md": b"# About", "CodeTraces.json": json.dumps(TRACES).encode()}
    with stub_hub(files, tmp_path / "hub", monkeypatch, "main"):
        result = cli("data", "download", "afm_code_traces")
        assert (result.code, result.out) == (0, "train: 2 rows\n"), result.err
        assert trajectory_file("afm_code_traces").name == "CodeTraces.json"


def test_offline_dialogues_are_downloaded_and_a_run_reads_them(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "colbench_code_offline_15k_llama8b.jsonl"
    files = {f"/main/{name}": write_jsonl(tmp_path / name, *ROWS).read_bytes()}
    with stub_hub(files, tmp_path / "hub", monkeypatch) as served:
        result = cli("data", "download", "colbench_offline")
        assert (result.code, result.out) == (0, "train: 4 rows\n"), result.err
        assert any("facebook/collaborative_agent_bench/resolve/" in path for path in served.asked)
        recipe = sweet("offline=colbench_offline")
        recipe.plan()
        with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
            run_stages(recipe, run, Silent(), [ROLLOUT])
            assert run.metrics(ROLLOUT)["n"] == 4
        recipe.close()


def test_names_are_listed_with_license_and_rows(cli: Cli) -> None:
    result = cli("data", "list")
    (line,) = (line for line in result.out.splitlines() if line.startswith("colbench_offline"))
    assert "15,000" in line and "CC-BY-NC" in result.out
