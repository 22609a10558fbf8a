"""Settings of engines and of pools of vLLM servers."""

import os
import sys
from typing import Literal
from urllib.parse import urlsplit

from pydantic import model_validator

from coterie.config.settings import Settings, key

OptionValue = bool | int | float | str
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's ``max-lora-rank``."""
TransferKind = Literal["disk", "shm", "nccl", "ipc"]
DRIVERS = ("/dev/nvidiactl", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu", "/dev/kfd", "/dev/dxg")
"""Devices of drivers on Linux: NVIDIA (also Jetson), AMD, and WSL."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", None)
"""Hosts of URLs of this machine; ``unix:PATH`` has no host."""


class VLLMSettings(Settings):
    """Settings of a pool of vLLM servers, started by coterie or external (``urls``)."""

    servers: int = key(1, "number of servers to start", ge=1)
    requests_per_server: int = key(128, "maximum number of concurrent requests to a server", ge=1)
    attempts: int = key(6, "maximum number of attempts for a request, on any server", ge=1)
    restarts: int = key(3, "maximum number of restarts of a server that died", ge=0)
    stall_seconds: float = key(
        300.0,
        "seconds without an answer after which a request is retried on another server, and a server started "
        "by coterie is restarted unless it is healthy",
        gt=0,
    )
    start_seconds: float = key(900.0, "maximum seconds for the start of a server", gt=0)
    grace_seconds: float = key(20.0, "seconds from terminating to killing a server", ge=0)
    urls: tuple[str, ...] = key(
        (), "external servers to use (http://HOST:PORT or unix:PATH); coterie never stops them"
    )
    served_name: str | None = key(
        None, "name of the model on external servers; default: their only model"
    )
    python: str | None = key(
        None, "Python interpreter with vLLM; default: the interpreter of coterie"
    )
    devices: tuple[str, ...] = key(
        (), 'devices of each server, such as ("0,1", "2,3"); default: the visible ones in turn'
    )
    tensor_parallel_size: int = key(1, "number of devices per server", ge=1)
    gpu_memory_utilization: float | None = key(
        None, "share of each device's memory for a server; default: vLLM's", gt=0, le=1
    )
    max_model_len: int | None = key(None, "maximum sequence length; default: the model's", ge=1)
    dtype: str = key("auto", "dtype of weights and activations; auto: the dtype of the checkpoint")
    enforce_eager: bool = key(False, "disable CUDA graphs: faster start, slower sampling")
    lora_rank: int = key(0, "maximum rank of adapters; 0: no adapters", ge=0, le=LORA_RANKS[-1])
    lora_modules: tuple[str, ...] = key(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        "layers that adapters may change; not lm_head, whose adapter vLLM ignores in log-probs of prompts",
        min_length=1,
    )
    transfer: TransferKind = key(
        "disk",
        "how servers get new weights: from the run folder, from shared memory (servers on this machine), or from the "
        "trainer's GPU by vLLM's `nccl`, or `ipc` (servers on the trainer's GPU)",
    )
    arguments: dict[str, OptionValue] = key(
        {}, "other options of vllm serve by name, such as max_num_seqs: 64"
    )

    @model_validator(mode="after")
    def _devices_fit(self) -> "VLLMSettings":
        sizes = {len(devices.split(",")) for devices in self.devices}
        if self.devices and (
            len(self.devices) != self.servers or sizes != {self.tensor_parallel_size}
        ):
            raise ValueError(
                f"devices={self.devices} is invalid; give {self.tensor_parallel_size} devices to each of "
                f"{self.servers} servers"
            )
        remote = [url for url in self.urls if urlsplit(url).hostname not in LOCAL_HOSTS]
        if remote and self.transfer in ("shm", "ipc"):
            raise ValueError(
                f"transfer={self.transfer} needs servers on this machine, unlike {remote[0]}; use disk or nccl"
            )
        if "lm_head" in self.lora_modules:
            raise ValueError("lora_modules: vLLM can't score with adapters of lm_head; remove it")
        return self


DEVICE = r"^(auto|cpu|cuda(:\d+)?)$"
Attention = Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"]


class EngineSettings(Settings):
    """Settings of the engine that samples a policy.

    With the compiled loops of the in-process engine (Llama and Qwen2 on CPU in float32) no setting changes the sampled
    tokens. Otherwise rounding may change them, and vLLM samples different tokens.
    """

    kind: Literal["inprocess", "vllm"] = key(
        "inprocess", "The embedded engine, or vLLM servers (for sampling, not for rewards)."
    )
    max_batch: int = key(
        128, "Maximum number of sequences that the embedded engine decodes at a time.", ge=1
    )
    cache_gib: float = key(
        4.0,
        "Memory (GiB) for cached keys and values of prompts. If it is too small, every turn of a long "
        "dialogue recomputes its history.",
        ge=0,
    )
    timeout: float = key(600.0, "Seconds after which one call to the engine fails.", gt=0)
    device: str = key(
        "auto",
        "Device of the embedded engine and of training: `auto` (a GPU if there is one), `cpu`, `cuda`, "
        "`cuda:1`, ...",
        pattern=DEVICE,
    )
    attention: Attention | None = key(
        None,
        "Attention implementation of models in this process; default: Transformers' choice (sdpa). The embedded "
        "engine itself uses eager or sdpa.",
    )
    keep_servers: bool = key(
        True,
        "Keep servers running while training, and load new weights into them; false: stop and restart "
        "them, if they share devices with the trainer.",
    )
    vllm: VLLMSettings = VLLMSettings()
    template_args: dict[str, OptionValue] = key(
        {},
        "Arguments of the model's chat template, such as `enable_thinking: false` or `reasoning_effort: low`.",
    )
    reasoning_parser: Literal["auto", "template"] = key(
        "auto",
        "Thoughts in replies, which only their agent sees: as the chat template marks them (`template`); if it marks "
        "none, also `<think>...</think>` at the beginning (`auto`).",
    )

    @property
    def template(self) -> dict[str, OptionValue]:
        """Arguments of the chat template, and the reasoning parser if it is not the default."""
        parser = {} if self.reasoning_parser == "auto" else {"reasoning_parser": "template"}
        return {**self.template_args, **parser}

    def identity(self) -> tuple[object, ...]:
        """Return the settings that the sampled tokens depend on."""
        template = [sorted(self.template.items())] if self.template else []
        if self.kind == "inprocess":
            attention = (self.attention,) if self.attention else ()
            device = self.device_name.partition(":")[0]
            return (self.kind, device, *attention, *template)
        vllm = self.vllm
        arguments = sorted(vllm.arguments.items())
        sampled = (vllm.urls, vllm.served_name, vllm.dtype, vllm.max_model_len, arguments)
        return (self.kind, *sampled, *template)

    @property
    def device_name(self) -> str:
        return device_name(self.device)


def device_name(device: str) -> str:
    """Resolve ``auto`` to ``cuda`` if there is a GPU, else to ``cpu``."""
    if device != "auto":
        return device
    # Without a driver there is no GPU, which torch would say after seconds of imports.
    if sys.platform == "linux" and not any(map(os.path.exists, DRIVERS)):
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
