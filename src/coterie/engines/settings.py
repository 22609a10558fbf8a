"""Which engine samples, and how it runs."""

from typing import Literal

from coterie.config.settings import Settings, key
from coterie.engines.servers.settings import OptionValue, VLLMSettings

Attention = Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"]


class EngineSettings(Settings):
    """How a policy is sampled. Where the in-process engine runs a model by compiled loops (Llama and Qwen2 on
    CPU in float32) nothing here changes what is sampled; elsewhere rounding may. vLLM's tokens are its own."""

    kind: Literal["inprocess", "vllm"] = key(
        "inprocess", "The embedded engine, or vLLM servers (for what samples, not for rewards)."
    )
    max_batch: int = key(128, "Most sequences that the embedded engine decodes at a time.", ge=1)
    cache_gib: float = key(
        4.0,
        "Memory (GiB) for kept keys and values of prompts: too little, and every turn of a long "
        "dialogue reads all that came before anew.",
        ge=0,
    )
    timeout: float = key(600.0, "Seconds after which one call to the engine fails.", gt=0)
    device: str = key(
        "auto",
        "Of the embedded engine and of training: `auto` (a GPU if there is one), `cpu`, `cuda`, "
        "`cuda:1`, ...",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
    )
    attention: Attention | None = key(
        None,
        "Attention of models in this process, as Transformers calls it; default: Transformers' choice (sdpa). The "
        "embedded engine's own passes are eager or sdpa.",
    )
    keep_servers: bool = key(
        True,
        "Servers stay up while training, and new weights are loaded into them; false ends them and "
        "starts them anew, for where they share devices with the trainer.",
    )
    vllm: VLLMSettings = VLLMSettings()
    template_args: dict[str, OptionValue] = key(
        {},
        "Arguments of the model's chat template, such as `enable_thinking: false` or `reasoning_effort: low`.",
    )

    def identity(self) -> tuple[object, ...]:
        """The part that what is sampled depends on."""
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
