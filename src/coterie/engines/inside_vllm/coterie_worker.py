"""Extension of vLLM's CPU worker that also reloads a tied output layer.

On a CPU vLLM 0.32 has a copy of each layer's weights, packed for its kernels. ``reload_weights`` repacks only the
layers of the checkpoint. The output layer of a model with tied embeddings is not among them, so the server would sample
from new layers with an old output layer. ``vllm serve --worker-extension-cls`` adds this class to the worker.
"""

from typing import Any

from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead


class WholeReload:
    """Methods of vLLM's worker for ``collective_rpc``."""

    reload_weights: Any
    get_model: Any

    def reload_all_weights(self, weights_path: str) -> None:
        """Load a checkpoint into the running model, and repack the output layer."""
        self.reload_weights(weights_path=weights_path)
        for layer in self.get_model().modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)
