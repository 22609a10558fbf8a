"""Examples in configs/: `coterie config` and `coterie run --dry-run` accept each, with a model of the same sizes."""

import json
import os
from pathlib import Path

import pytest
from safetensors.torch import save_file

from tests.conftest import Cli
from tests.helpers.published_templates import published_tokenizer
from tests.training.test_memory import QWEN3_8B

CONFIGS = Path(__file__).parents[2] / "configs"
EXAMPLES = sorted(CONFIGS.glob("*.yaml"))
SIZES = {
    "one-gpu": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
                "num_attention_heads": 16, "tie_word_embeddings": True},
}  # fmt: skip
"""Sizes of Qwen3-1.7B, where they differ."""


@pytest.fixture
def qwen3(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with Qwen3's template and sizes, but no weights."""
    folder = tmp_path / "qwen3"
    published_tokenizer("qwen3").save_pretrained(folder)
    own = QWEN3_8B.to_dict() | SIZES.get(request.node.callspec.params["file"].stem, {})
    del own["layer_types"]
    save_file({}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(own))
    return folder


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_listed_and_planned(
    file: Path, qwen3: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = cli("config", file, "engine.vllm.servers")
    assert listed.code == 0, listed.err
    monkeypatch.setenv("COLUMNS", "200")
    os.chdir(CONFIGS.parent)  # the launch file is named from the root of the repository
    planned = cli("run", file, f"model={qwen3}", "dataset.source=sample", "--dry-run")
    assert planned.code == 0, planned.err
    out = planned.out + planned.err  # standard output has only the batch file of Slurm
    assert "It may not fit" not in out
    servers = {"one-gpu": 1, "one-plus-seven-gpus": 7}.get(file.stem, 8)
    assert [line.split()[4] for line in out.splitlines() if "vLLM server of policy" in line] == [
        str(servers)
    ]
    ranks = [line for line in out.splitlines() if "rank of train" in line]
    assert [line.split()[3] for line in ranks] == ["8"] * ("two-nodes" in file.stem)
