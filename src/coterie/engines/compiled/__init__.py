"""Llama-shaped models in float32 on CPU, computed by loops that numba compiles, with paged keys and values.

Other packages import only this module. If numba can't be imported no model :func:`fits`, so all use Transformers.
"""

from typing import Any

import numpy as np

from coterie.engines.rows import ScoringRows
from coterie.models.adapters import NUMBA_ERROR

if not NUMBA_ERROR:
    from coterie.engines.compiled import kernels
    from coterie.engines.compiled.llama import CompiledLlama, PagedRows


def fits(model: Any) -> bool:
    """Return True if compiled loops support a model in its present state."""
    return not NUMBA_ERROR and CompiledLlama.fits(model)


def compiled_rows(model: Any, cache_bytes: int) -> ScoringRows:
    """Return rows of a model that :func:`fits`, with its present weights and a prefix cache of ``cache_bytes``."""
    return PagedRows(CompiledLlama(model), cache_bytes)


def draw(logits: np.ndarray, settings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Implement :func:`coterie.engines.sequence.draw` with numba. ``logits`` is float32 ``[N, V]``."""
    ids, logprobs = np.empty(len(logits), np.int64), np.empty(len(logits), np.float32)
    kernels.draw(np.ascontiguousarray(logits), settings, ids, logprobs)
    return ids, logprobs
