"""Command, environment and weights of vLLM servers, without vLLM (``tests/vllm`` runs it)."""

import ast
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.server_process import ServerProcess
from coterie.engines.settings import EngineSettings, VLLMSettings
from coterie.engines.vllm import INSIDE, VLLMBackend, device_lists
from coterie.errors import UserError
from coterie.runs.engines import RunEngines

SOCKET = {"uds": "/private/server"}


def test_a_server_has_the_extension_that_loads_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    for devices in ([], ["0"]):
        backend = VLLMBackend(VLLMSettings(), devices)
        words = list(backend.command("model", "policy", SOCKET))
        module, _, name = words[words.index("--worker-extension-cls") + 1].partition(".")
        assert backend.environment(0)["PYTHONPATH"] == f"{INSIDE}{os.pathsep}elsewhere"
        body = ast.parse((INSIDE / f"{module}.py").read_text()).body
        assert name in {node.name for node in body if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize(
    ("transfer", "engine"), [("disk", "files"), ("shm", "files"), ("nccl", "nccl")]
)
def test_a_server_has_the_transfer_of_the_settings(transfer: Any, engine: str) -> None:
    words = list(
        VLLMBackend(VLLMSettings(transfer=transfer), []).command("model", "policy", SOCKET)
    )
    assert words[words.index("--weight-transfer-config") + 1] == f'{{"backend": "{engine}"}}'


def test_weights_in_shared_memory_are_in_a_new_folder_that_only_this_user_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, training = tmp_path / "shared", tmp_path / "run"
    shared.mkdir()
    monkeypatch.setattr("coterie.runs.engines.SHARED_MEMORY", shared)
    settings = EngineSettings(kind="vllm", vllm=VLLMSettings(transfer="shm"))

    def publish() -> tuple[RunEngines, Path]:
        engines = RunEngines(settings, tmp_path)
        folder = engines.weights_folder(training)
        assert engines.weights_folder(training) == folder and not list(folder.iterdir())
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "weights").touch()
        return engines, folder

    _, killed = publish()
    prefix = killed.name.rpartition("-")[0]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").touch()
    (shared / f"{prefix}-link").symlink_to(tmp_path / "theirs")
    engines, folder = publish()
    assert {path.name for path in shared.iterdir()} == {folder.name, f"{prefix}-link"}
    engines.close()
    assert [path.name for path in shared.iterdir()] == [f"{prefix}-link"]
    assert (tmp_path / "theirs" / "file").exists()


class ListeningBackend(VLLMBackend):
    """A server that only listens on its socket."""

    def command(self, model: str, name: str, listen: Any) -> list[str]:
        listens = "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1])"
        return [sys.executable, "-c", f"{listens}; s.listen(); time.sleep(100)", listen["uds"]]


def test_a_server_listens_in_a_folder_that_only_this_user_can_enter(tmp_path: Path) -> None:
    backend = ListeningBackend(VLLMSettings(grace_seconds=1), [])

    async def launch() -> Path:
        process = ServerProcess(backend, 0, tmp_path / "server.log")
        try:
            address = await process.launch("model", "policy")
            folder = Path(address.url.removeprefix("unix:")).parent
            assert folder.stat().st_mode & 0o777 == 0o700 and folder.stat().st_uid == os.getuid()
        finally:
            await process.end()
        return folder

    assert not asyncio.run(launch()).exists()


@pytest.mark.parametrize(
    ("change", "error"),
    [({"lora_rank": 4}, "has rank 8"),
     ({"lora_rank": 8, "lora_modules": ("k_proj",)}, "in q_proj, but .* in k_proj")],
)  # fmt: skip
def test_an_adapter_that_servers_do_not_support_is_refused(
    change: dict[str, Any], error: str, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "target_modules": ["q_proj"]}')
    VLLMBackend(VLLMSettings(lora_rank=8), []).check_adapter(tmp_path)
    with pytest.raises(UserError, match=error):
        VLLMBackend(VLLMSettings(**change), []).check_adapter(tmp_path)


def test_devices_are_dealt_out_and_too_few_are_refused() -> None:
    pair = VLLMSettings(servers=2, tensor_parallel_size=2)
    assert device_lists(pair, ["4", "5", "6", "7"]) == ["4,5", "6,7"]
    assert device_lists(pair, []) == []
    with pytest.raises(UserError, match="2 servers with 2 devices each need 4, but 3 are"):
        device_lists(pair, ["0", "1", "2"])
    with pytest.raises(ValueError, match="give 2 devices to each of 2 servers"):
        VLLMSettings(servers=2, tensor_parallel_size=2, devices=("0,1", "2"))
