"""Settings of engines."""

from typing import Literal

from coterie.config.settings import Settings, key
from coterie.engines.servers.settings import OptionValue, VLLMSettings

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
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
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

    def identity(self) -> tuple[object, ...]:
        """Return the settings that the sampled tokens depend on."""
        template = [sorted(self.template_args.items())] if self.template_args else []
        if self.kind == "inprocess":
            attention = (self.attention,) if self.attention else ()
            device = self.device_name.partition(":")[0]
            return (self.kind, device, *attention, *template)
        own = self.vllm
        arguments = sorted(own.arguments.items())
        sampled = (own.urls, own.served_name, own.dtype, own.max_model_len, arguments)
        return (self.kind, *sampled, *template)

    @property
    def device_name(self) -> str:
        if self.device != "auto":
            return self.device
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"
