"""Settings of a pool of vLLM servers."""

from pydantic import model_validator

from coterie.config.settings import Settings, key

OptionValue = bool | int | float | str
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM makes room for."""


class VLLMSettings(Settings):
    """A pool of vLLM servers: started by us, or (``urls``) running already."""

    servers: int = key(1, "how many servers to start", ge=1)
    requests_per_server: int = key(128, "requests that one server is sent at a time", ge=1)
    attempts: int = key(6, "how often one request is tried, on whichever server", ge=1)
    restarts: int = key(3, "how often one server that died is started again", ge=0)
    stall_seconds: float = key(
        300.0,
        "after so long without an answer a request is tried elsewhere, and a server of ours that "
        "does not say that it is well is restarted",
        gt=0,
    )
    start_seconds: float = key(900.0, "how long a server may take to start", gt=0)
    grace_seconds: float = key(20.0, "how long a server may take to end before it is killed", ge=0)
    seed: int = key(0, "of the jitter of pauses between attempts; results do not depend on it")
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
