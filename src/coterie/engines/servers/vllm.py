"""vLLM as the servers of a pool: its settings, its command line, how it takes new weights.

``vllm serve`` runs in an interpreter that has vLLM, which need not be ours. It refuses options that it does not have by
itself when it is started: the end of its log is in the pool's error.
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import torch
from pydantic import BaseModel, model_validator

from coterie.config.folders import expanded
from coterie.config.settings import key
from coterie.engines.servers.backend import Backend
from coterie.engines.servers.child import HOST
from coterie.engines.servers.client import ServerClient
from coterie.engines.servers.opening import own_servers, running_servers
from coterie.engines.servers.pool import ServerPool
from coterie.engines.servers.settings import ServerPoolSettings
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import ADAPTER_FILE

OptionValue = bool | int | float | str
DEVICES = "CUDA_VISIBLE_DEVICES"
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM makes room for."""
FIXED: dict[str, OptionValue] = {
    "host": HOST,
    "enable-prefix-caching": True,
    "enable-prompt-tokens-details": True,
    "logprobs-mode": "processed_logprobs",
    "generation-config": "vllm",
}
"""What exact tokens and log-probs need: no sampling defaults of the model, log-probs after temperature."""


INSIDE = Path(__file__).parent / "inside_vllm"
"""On the path of servers without devices."""
WITHOUT_DEVICES: dict[str, OptionValue] = {
    "enable-chunked-prefill": False,
    "worker-extension-cls": "coterie_worker.WholeReload",
}
"""On CPU vLLM 0.32 dies ("CPU Generator does not use offset") when it reads a seeded request's prompt in
two chunks, so prompts are read whole there. By itself it keeps an old output layer when it loads new weights."""
IN_ITS_PROCESS: dict[str, OptionValue] = {"distributed-executor-backend": "uni"}
"""On CPU vLLM 0.32 has the model in a child of its engine process, which spins while it waits for each step. On two
busy cores its thread that takes in new requests then got hardly any through, for seconds at a time
(``bench/results/rollout-2026-11-21.md``). In one process nothing spins."""
IN_ITS_PROCESS_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Without this the choice is not taken on CPU; ``vllm serve`` does nothing else with it."""
THREADS = "OMP_NUM_THREADS"


class VLLMSettings(ServerPoolSettings):
    """A pool of vLLM servers: started by us, or (``urls``) running already."""

    urls: tuple[str, ...] = key((), "servers that run already; they are used and never ended")
    served_name: str | None = key(
        None, "the model's name on them; default: the only one they serve"
    )
    python: str | None = key(
        None, "the interpreter that has vLLM; default: the one that runs coterie"
    )
    devices: tuple[str, ...] = key(
        (), 'devices of each server, such as ("0,1", "2,3"); default: the visible ones in turn'
    )
    tensor_parallel_size: int = key(1, "devices over which one server spreads the model", ge=1)
    gpu_memory_utilization: float | None = key(
        None, "share of each device's memory that a server takes; default: vLLM's", gt=0, le=1
    )
    max_model_len: int | None = key(None, "longest sequence; default: the model's", ge=1)
    dtype: str = key("auto", "of weights and activations; auto: as the checkpoint says")
    enforce_eager: bool = key(False, "no captured graphs: starts sooner, runs slower")
    lora_rank: int = key(
        0, "largest rank of adapters that are to be loaded; 0: none", ge=0, le=LORA_RANKS[-1]
    )
    lora_modules: tuple[str, ...] = key(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        "layers that adapters may change; not lm_head, which vLLM leaves out of log-probs of prompts",
        min_length=1,
    )
    arguments: dict[str, OptionValue] = key(
        {}, "any other option of vllm serve, by its name, such as max_num_seqs: 64"
    )

    @model_validator(mode="after")
    def _devices_fit(self) -> "VLLMSettings":
        sizes = {len(devices.split(",")) for devices in self.devices}
        if self.devices and (
            len(self.devices) != self.servers or sizes != {self.tensor_parallel_size}
        ):
            raise ValueError(
                f"devices={self.devices} do not give {self.tensor_parallel_size} to each of "
                f"{self.servers} servers"
            )
        if "lm_head" in self.lora_modules:
            raise ValueError("lora_modules: vLLM can't score with adapters of lm_head")
        return self


@asynccontextmanager
async def vllm_pool(
    model: str | Path,
    renderer: ChatRenderer,
    settings: VLLMSettings,
    log_folder: Path,
    *,
    policy: str,
    version: str,
) -> AsyncIterator[ServerPool]:
    """An engine over vLLM servers of ``model`` (a folder or name); what was started ends with it.

    ``renderer`` is the model's; text is cut with it. Raises ``UserError`` for all that a person can fix.
    """
    backend: Backend = VLLMBackend(settings, [])
    if settings.urls:
        opened = running_servers(
            backend, settings.urls, settings.served_name, renderer, settings,
            policy=policy, version=version,
        )  # fmt: skip
    else:
        check_vllm(settings)
        backend = VLLMBackend(settings, device_lists(settings, visible_devices()))
        opened = own_servers(
            backend, model, renderer, settings, log_folder, policy=policy, version=version
        )
    async with opened as pool:
        yield pool


def check_vllm(settings: VLLMSettings) -> None:
    """Refuse (``UserError``) a missing vLLM, options that coterie sets itself, too few devices."""
    if settings.urls:
        return
    for given in settings.arguments:
        if dashed(given) in managed():
            raise UserError(
                f"arguments.{given}: coterie sets --{dashed(given)} by itself",
                "use the setting of that name, if there is one, and leave the argument out",
            )
    _check_installed(interpreter(settings.python))
    device_lists(settings, visible_devices())


def _check_installed(python: str) -> None:
    """Refuse (``UserError``) an interpreter that is not there or has no vLLM."""
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
            f"{python} has no vLLM that works: {last}",
            "pip install vllm there, or set engine.vllm.python to the interpreter of an environment that has it",
        )


class VLLMBackend:
    """``vllm serve``; ``devices`` has an entry per server, or none at all."""

    kind = "vllm"

    def __init__(self, settings: VLLMSettings, devices: Sequence[str]) -> None:
        self._settings = settings
        self._devices = devices
        self._interpreter = interpreter(settings.python)
        self._in_one_process = not devices and settings.tensor_parallel_size == 1

    def command(self, model: str, name: str, port: int) -> Sequence[str]:
        """The command line."""
        options: dict[str, OptionValue | None] = {
            **FIXED,
            "port": port,
            "served-model-name": name,
            "tensor-parallel-size": self._settings.tensor_parallel_size,
            "gpu-memory-utilization": self._settings.gpu_memory_utilization,
            "max-model-len": self._settings.max_model_len,
            "dtype": self._settings.dtype,
            "enforce-eager": self._settings.enforce_eager or None,
        }
        if not self._devices:
            options |= WITHOUT_DEVICES
        if self._in_one_process:
            options |= IN_ITS_PROCESS
        if rank := self._settings.lora_rank:
            room = next(size for size in LORA_RANKS if size >= rank)
            options |= {"enable-lora": True, "max-lora-rank": room}
        options |= {dashed(key): value for key, value in self._settings.arguments.items()}
        words = [self._interpreter, "-m", "vllm.entrypoints.cli.main", "serve", model]
        for option, value in options.items():
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{option}")
            elif value is not None:
                words += [f"--{option}", str(value)]
        if self._settings.lora_rank:
            words += ["--lora-target-modules", *self._settings.lora_modules]
        return words

    def environment(self, index: int) -> Mapping[str, str]:
        """Its devices or threads; routes to load weights and adapters (it listens on this machine only)."""
        found = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if self._settings.lora_rank:
            found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        if self._devices:
            found[DEVICES] = self._devices[index]
        else:
            paths = [str(INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
            found["PYTHONPATH"] = os.pathsep.join(paths)
        if self._in_one_process:
            found |= IN_ITS_PROCESS_ENVIRONMENT
            found[THREADS] = os.environ.get(THREADS) or str(threads(self._settings.servers))
        return found

    async def reload(self, client: ServerClient, path: str, version: str) -> None:
        """Read other weights into the running model."""
        whole = not self._devices and not self._settings.urls
        method = "reload_all_weights" if whole else "reload_weights"
        call = {"method": method, "kwargs": {"weights_path": path}}
        await client.post("/collective_rpc", call)

    def check_adapter(self, folder: Path) -> None:
        """Its rank and layers must be among those that the servers were started for."""
        config = AdapterConfig.model_validate_json((folder / ADAPTER_FILE).read_bytes())
        others = set(config.target_modules) - set(self._settings.lora_modules)
        if self._settings.urls:  # started by someone else, who knows what for
            return
        if config.r > self._settings.lora_rank:
            raise UserError(
                f"the adapter {folder} has rank {config.r}, and the vLLM servers take up to "
                f"{self._settings.lora_rank}",
                f"set lora_rank={config.r}",
            )
        if others:
            raise UserError(
                f"the adapter {folder} changes {', '.join(sorted(others))}, and the vLLM servers "
                f"take adapters of {', '.join(self._settings.lora_modules)}",
                "set lora_modules, or merge the adapter into a checkpoint",
            )


class AdapterConfig(BaseModel):
    """What matters here of a PEFT adapter's configuration."""

    r: int
    target_modules: list[str]


def managed() -> set[str]:
    """Options that coterie sets by itself."""
    own = {"port", "served-model-name", "model", "api-key"}
    own |= {"enable-lora", "max-lora-rank", "lora-target-modules", "worker-extension-cls"}
    keyed = {dashed(name) for name in VLLMSettings.model_fields}
    return {*FIXED, *own, *keyed}


def dashed(name: str) -> str:
    """An option as vLLM spells it."""
    return name.replace("_", "-")


def interpreter(python: str | None) -> str:
    """The interpreter to run vLLM with."""
    return sys.executable if python is None else str(expanded(python).absolute())


def threads(servers: int) -> int:
    """Threads of each of ``servers`` on CPU: one core is left to whoever asks them."""
    return max(1, (torch.get_num_threads() - 1) // servers)


def visible_devices() -> list[str]:
    """Names of the CUDA devices that this process may use."""
    if listed := os.environ.get(DEVICES):
        return listed.split(",")
    return [str(index) for index in range(torch.cuda.device_count())]


def device_lists(settings: VLLMSettings, visible: Sequence[str]) -> list[str]:
    """The devices of each server; empty where there are none (CPU).

    Raises ``UserError`` if there are too few.
    """
    if settings.devices or not visible:
        return list(settings.devices)
    size, servers = settings.tensor_parallel_size, settings.servers
    if size * servers > len(visible):
        raise UserError(
            f"{servers} servers of {size} devices need {size * servers}, and {len(visible)} are there",
            "lower servers or tensor_parallel_size, or give devices",
        )
    return [",".join(visible[i * size : (i + 1) * size]) for i in range(servers)]
