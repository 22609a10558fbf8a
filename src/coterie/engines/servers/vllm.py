"""vLLM servers of a pool: command line, environment and loading of weights.

``vllm serve`` may run in another interpreter. It checks its options itself at the start; the end of its log is in the
pool's error.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from pydantic import BaseModel

from coterie.config.folders import expanded
from coterie.engines.servers.child import HOST
from coterie.engines.servers.client import ServerClient
from coterie.engines.settings import LORA_RANKS, OptionValue, VLLMSettings
from coterie.errors import UserError
from coterie.models.loading import ADAPTER_FILE

DEVICES = "CUDA_VISIBLE_DEVICES"
FIXED: dict[str, OptionValue] = {
    "host": HOST,
    "enable-prefix-caching": True,
    "enable-prompt-tokens-details": True,
    "logprobs-mode": "processed_logprobs",
    "generation-config": "vllm",
}
"""Options for exact tokens and log-probs: no sampling defaults of the model, log-probs after temperature."""


INSIDE = Path(__file__).parent / "inside_vllm"
"""Folder in the ``PYTHONPATH`` of servers without devices."""
WITHOUT_DEVICES: dict[str, OptionValue] = {
    "enable-chunked-prefill": False,
    "worker-extension-cls": "coterie_worker.WholeReload",
}
"""Options on CPU. There vLLM 0.32 dies ("CPU Generator does not use offset") when it reads the prompt of a seeded
request in two chunks, and does not reload a tied output layer without the extension."""
IN_ITS_PROCESS: dict[str, OptionValue] = {"distributed-executor-backend": "uni"}
"""Option to run the model in the engine process. By default vLLM 0.32 on CPU has a child process for it that busy-waits
for each step, which starved the thread for new requests for seconds on two busy cores
(``bench/results/rollout-2026-11-21.md``)."""
IN_ITS_PROCESS_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Environment that makes this option effective on CPU; it has no other effect on ``vllm serve``."""
THREADS = "OMP_NUM_THREADS"


def check_vllm(settings: VLLMSettings) -> None:
    """Raise ``UserError`` if vLLM is missing, an argument is managed by coterie, or there are too few devices."""
    if settings.urls:
        return
    for name in settings.arguments:
        if dashed(name) in managed():
            raise UserError(
                f"arguments.{name}: coterie sets --{dashed(name)} itself",
                "remove the argument, and use the setting of that name if there is one",
            )
    _check_installed(interpreter(settings.python))
    device_lists(settings, visible_devices())


def _check_installed(python: str) -> None:
    """Raise ``UserError`` if the interpreter does not exist or has no vLLM."""
    command = [python, "-c", "from importlib.metadata import version; version('vllm')"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise UserError(
            f"can't run {python}: {error.strerror}", "correct engine.vllm.python"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"{python} has no working vLLM: {last}",
            "pip install vllm there, or set engine.vllm.python to an interpreter with vLLM",
        )


class VLLMBackend:
    """Backend of ``vllm serve``; ``devices`` has an entry per server, or is empty on CPU."""

    def __init__(self, settings: VLLMSettings, devices: Sequence[str]) -> None:
        self.settings = settings
        self._devices = devices
        self._interpreter = interpreter(settings.python)
        self._in_one_process = not devices and settings.tensor_parallel_size == 1

    def command(self, model: str, name: str, port: int) -> Sequence[str]:
        options: dict[str, OptionValue | None] = {
            **FIXED,
            "port": port,
            "served-model-name": name,
            "tensor-parallel-size": self.settings.tensor_parallel_size,
            "gpu-memory-utilization": self.settings.gpu_memory_utilization,
            "max-model-len": self.settings.max_model_len,
            "dtype": self.settings.dtype,
            "enforce-eager": self.settings.enforce_eager or None,
        }
        if not self._devices:
            options |= WITHOUT_DEVICES
        if self._in_one_process:
            options |= IN_ITS_PROCESS
        if rank := self.settings.lora_rank:
            room = next(size for size in LORA_RANKS if size >= rank)
            options |= {"enable-lora": True, "max-lora-rank": room}
        options |= {dashed(key): value for key, value in self.settings.arguments.items()}
        words = [self._interpreter, "-m", "vllm.entrypoints.cli.main", "serve", model]
        for option, value in options.items():
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{option}")
            elif value is not None:
                words += [f"--{option}", str(value)]
        if self.settings.lora_rank:
            words += ["--lora-target-modules", *self.settings.lora_modules]
        return words

    def environment(self, index: int) -> Mapping[str, str]:
        """Return the environment of a server: devices or threads, and routes to load weights and adapters."""
        variables = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if self.settings.lora_rank:
            variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if self._devices:
            variables[DEVICES] = self._devices[index]
        else:
            paths = [str(INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
            variables["PYTHONPATH"] = os.pathsep.join(paths)
        if self._in_one_process:
            variables |= IN_ITS_PROCESS_ENVIRONMENT
            variables[THREADS] = os.environ.get(THREADS) or str(threads(self.settings.servers))
        return variables

    async def reload(self, client: ServerClient, path: str) -> None:
        """Load other weights into the running model. Raises a ``ServerFault``."""
        whole = not self._devices and not self.settings.urls
        method = "reload_all_weights" if whole else "reload_weights"
        call = {"method": method, "kwargs": {"weights_path": path}}
        await client.post("/collective_rpc", call)

    def check_adapter(self, folder: Path) -> None:
        """Raise ``UserError`` if the servers do not support the rank or the layers of an adapter."""
        if self.settings.urls:  # the options of external servers are unknown
            return
        config = AdapterConfig.model_validate_json((folder / ADAPTER_FILE).read_bytes())
        others = set(config.target_modules) - set(self.settings.lora_modules)
        if config.r > self.settings.lora_rank:
            raise UserError(
                f"the adapter {folder} has rank {config.r}, but the vLLM servers support up to "
                f"{self.settings.lora_rank}",
                f"set lora_rank={config.r}",
            )
        if others:
            raise UserError(
                f"the adapter {folder} changes {', '.join(sorted(others))}, but the vLLM servers "
                f"support adapters of {', '.join(self.settings.lora_modules)}",
                "set lora_modules, or merge the adapter into a checkpoint",
            )


class AdapterConfig(BaseModel):
    """Fields of a PEFT adapter configuration that are checked."""

    r: int
    target_modules: list[str]


def managed() -> set[str]:
    own = {"port", "served-model-name", "model", "api-key"}
    own |= {"enable-lora", "max-lora-rank", "lora-target-modules", "worker-extension-cls"}
    keyed = {dashed(name) for name in VLLMSettings.model_fields}
    return {*FIXED, *own, *keyed}


def dashed(name: str) -> str:
    """Return the name of an option in vLLM's spelling."""
    return name.replace("_", "-")


def interpreter(python: str | None) -> str:
    """Return the interpreter that runs vLLM."""
    return sys.executable if python is None else str(expanded(python).absolute())


def threads(servers: int) -> int:
    """Return the threads of each of ``servers`` on CPU; one core is reserved for the client."""
    return max(1, (torch.get_num_threads() - 1) // servers)


def visible_devices() -> list[str]:
    """Return the names of the CUDA devices that this process may use."""
    if listed := os.environ.get(DEVICES):
        return listed.split(",")
    return [str(index) for index in range(torch.cuda.device_count())]


def device_lists(settings: VLLMSettings, visible: Sequence[str]) -> list[str]:
    """Return the devices of each server; empty on CPU.

    Raises ``UserError`` if there are too few.
    """
    if settings.devices or not visible:
        return list(settings.devices)
    size, servers = settings.tensor_parallel_size, settings.servers
    if size * servers > len(visible):
        raise UserError(
            f"{servers} servers with {size} devices each need {size * servers}, but {len(visible)} are available",
            "lower servers or tensor_parallel_size, or set devices",
        )
    return [",".join(visible[i * size : (i + 1) * size]) for i in range(servers)]
