"""Weight transfer ``files`` of vLLM's workers: load the safetensors files of a folder, on disk or in shared memory.

``vllm serve --worker-extension-cls coterie_worker.Extension`` imports this module, which registers the transfer. On a
CPU vLLM 0.32 has a copy of each layer's weights, packed for its kernels. Loading repacks only the layers of the
checkpoint. The output layer of a model with tied embeddings is not among them, so it is repacked here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)


@dataclass
class Folder(WeightTransferUpdateInfo):
    """Folder of a checkpoint."""

    folder: str


class FilesTransfer(WeightTransferEngine[WeightTransferInitInfo, Folder]):
    """Loads the files of a folder into the running model."""

    init_info_cls = WeightTransferInitInfo
    update_info_cls = Folder
    model: Any
    model_config: Any

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None:
        """Do nothing: there is no connection."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Folder) -> None:
        files = sorted(Path(update_info.folder).glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{update_info.folder} has no *.safetensors on this machine")
        for file in files:
            with safe_open(file, "pt") as weights:
                self.model.load_weights((name, weights.get_tensor(name)) for name in weights.keys())  # noqa: SIM118

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            for layer in self.model.modules():
                if isinstance(layer, ParallelLMHead):
                    layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        """Do nothing: there is no connection."""


WeightTransferEngineFactory.register_engine("files", FilesTransfer)


class Extension:
    """Extension of a worker, without methods."""
