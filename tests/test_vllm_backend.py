"""How vLLM servers are started and given weights, as far as that can be said without vLLM (``tests/vllm`` runs it)."""

import ast
import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.servers.vllm import INSIDE, VLLMBackend
from coterie.engines.settings import VLLMSettings
from coterie.errors import UserError


class Client:
    """Notes what is posted."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, Any]] = []

    async def post(self, path: str, body: Any) -> None:
        self.posted.append((path, body))


def method(backend: VLLMBackend) -> str:
    """By which method of its workers a server reads new weights."""
    client: Any = Client()
    asyncio.run(backend.reload(client, "runs/x/final"))
    ((path, body),) = client.posted
    assert path == "/collective_rpc" and body["kwargs"] == {"weights_path": "runs/x/final"}
    return str(body["method"])


def test_a_server_on_a_cpu_reads_new_weights_into_a_tied_output_layer_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    on_cpu, on_gpu = (VLLMBackend(VLLMSettings(), devices) for devices in ([], ["0"]))
    words = list(on_cpu.command("model", "policy", 8000))
    added = words[words.index("--worker-extension-cls") + 1]
    assert on_cpu.environment(0)["PYTHONPATH"] == f"{INSIDE}{os.pathsep}elsewhere"
    module, _, name = added.partition(".")
    (written,) = [
        node
        for node in ast.parse((INSIDE / f"{module}.py").read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    functions = {node.name for node in written.body if isinstance(node, ast.FunctionDef)}
    assert written.name == name and method(on_cpu) in functions
    assert "--worker-extension-cls" not in on_gpu.command("model", "policy", 8000)
    assert method(on_gpu) == "reload_weights" and "PYTHONPATH" not in on_gpu.environment(0)


def test_servers_that_somebody_else_started_are_asked_for_what_all_vllm_servers_have() -> None:
    assert method(VLLMBackend(VLLMSettings(urls=("http://host:8000",)), [])) == "reload_weights"


def test_an_adapter_of_too_high_a_rank_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "target_modules": ["q_proj"]}')
    VLLMBackend(VLLMSettings(lora_rank=8), []).check_adapter(tmp_path)
    with pytest.raises(UserError, match="has rank 8, but the vLLM servers support up to 4"):
        VLLMBackend(VLLMSettings(lora_rank=4), []).check_adapter(tmp_path)
