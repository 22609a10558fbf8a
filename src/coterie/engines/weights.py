"""Detection of changes of a model's weights.

Cached keys and values and packed weights are valid only for the weights that they were computed with. Torch does not
record every change: a write through ``.data`` (as when PEFT merges adapters) and a step of a fused optimizer (as in
training) change neither the address nor the version of a weight. So checksums of all bytes are compared before prompts
are read or sequences scored, but not in each step (see :attr:`WatchedWeights.is_written`). That takes less time than
one token of one sequence: 0.5 ms for a model of 2 million weights in float32, 20 to 35 ms for 135 million.
"""

from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn

from coterie.models.checksums import checksums


class WatchedWeights:
    """Snapshot of the weights that a model uses, without inactive adapters."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        used, self._how = _look(model)
        self._sums = checksums(used)
        self._written = [(weight, _version(weight)) for weight in used]

    @property
    def is_same(self) -> bool:
        """True if the model uses the same weights now, byte for byte (by checksum)."""
        used, how = _look(self._model)
        return how == self._how and checksums(used) == self._sums

    @property
    def is_written(self) -> bool:
        """True if torch recorded a write or move: cheap enough for each step, but misses some writes."""
        return any(_version(weight) != version for weight, version in self._written)


def _look(model: nn.Module) -> tuple[list[Tensor], list[object]]:
    """Return the weights in use, each once, and how they are used: names, dtypes, shapes, devices and adapters.

    Weights are parameters and saved buffers. Other buffers (such as rotary angles) derive from the config, in some
    models in each forward pass.
    """
    used: dict[int, Tensor] = {}
    how: list[object] = []
    off: set[int] = set()
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)):
            on = [] if module.disable_adapters else list(module.active_adapters)
            how += [on, list(getattr(module, "merged_adapters", ()))]
            how += [getattr(module, "scaling", {}).get(name) for name in on]
            parts = [getattr(module, kind) for kind in module.adapter_layer_names]
            off |= {id(one) for part in parts for name, one in part.items() if name not in on}
        for key, weight in (*module._parameters.items(), *module._buffers.items()):
            is_derived = key in module._non_persistent_buffers_set
            if weight is not None and not is_derived and id(weight) not in off:
                used[id(weight)] = weight
                how.append((key, weight.dtype, weight.shape, weight.device))
        waiting += (
            one for one in module._modules.values() if one is not None and id(one) not in off
        )
    return list(used.values()), how


def _version(weight: Tensor) -> tuple[int, int]:
    """Return the address of a weight and torch's count of its writes."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version
