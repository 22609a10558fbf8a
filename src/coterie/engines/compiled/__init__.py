"""Llama-shaped models in float32 on CPU, by loops that numba compiles, over pages of keys and values.

Other folders import what is here, and none of the modules beside it. Where numba can't be imported no model
:func:`fits`, so that all run by Transformers.
"""

from typing import Any

import numpy as np

from coterie.engines.rows import ScoringRows
from coterie.models.compiling import NUMBA_ERROR

if not NUMBA_ERROR:
    from coterie.engines.compiled import kernels
    from coterie.engines.compiled.llama import CompiledLlama
    from coterie.engines.compiled.paged import PagedRows


def fits(model: Any) -> bool:
    """Whether a model can run by compiled loops, as it is now."""
    return not NUMBA_ERROR and CompiledLlama.fits(model)


def compiled_rows(model: Any, cache_bytes: int) -> ScoringRows:
    """Rows for a model that :func:`fits`, with its present weights. ``cache_bytes`` bounds the kept beginnings of
    prompts."""
    return PagedRows(CompiledLlama(model), cache_bytes)


def draw(logits: np.ndarray, settings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What :func:`coterie.engines.drawing.draw` says; needs numba. ``logits`` float32 ``[N, V]``."""
    ids, logprobs = np.empty(len(logits), np.int64), np.empty(len(logits), np.float32)
    kernels.draw(np.ascontiguousarray(logits), settings, ids, logprobs)
    return ids, logprobs
