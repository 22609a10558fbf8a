"""A worker of vLLM on a CPU that reads new weights into the output layer too.

On a CPU vLLM 0.32 keeps a copy of each layer's weights, packed for its kernels. ``reload_weights`` packs anew the
layers that the checkpoint names. The output layer of a model with tied embeddings is not among them: its copy stays the
old one, and the server speaks by new layers under an old output layer. ``vllm serve --worker-extension-cls`` adds this
class to the worker.
"""

from typing import Any

from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead


class WholeReload:
    """Added to vLLM's worker; ``collective_rpc`` calls its methods."""

    reload_weights: Any
    get_model: Any

    def reload_all_weights(self, weights_path: str) -> None:
        """Read a checkpoint into the running model, and pack the output layer anew."""
        self.reload_weights(weights_path=weights_path)
        for layer in self.get_model().modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)
