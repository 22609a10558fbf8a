"""A checksum of all bytes of a tensor, about as fast as memory gives them: by numba on CPU, by torch on a GPU and where
numba is missing."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from coterie.models.compiling import NUMBA_ERROR

STEP = 0x9E3779B97F4A7C15
LOW = 0xFFFFFFFF
CHUNK = 1 << 22
"""Words (of 8 bytes) that a GPU sums at a time, for it needs room for some copies of them."""
_STEP, _LOW, _HALF = np.uint64(STEP), np.uint64(LOW), np.uint64(32)


def checksums(weights: Iterable[Tensor]) -> list[int]:
    """Of all bytes of each, which depends on their places: the sum of the products of both halves of each word
    of 8 bytes, to which a multiple of its place is added (as NH does, Black et al. 1999)."""
    found: list[np.int64 | Tensor] = []
    for weight in weights:
        raw = weight.detach().reshape(-1).view(torch.uint8)
        if len(raw) % 8 or raw.data_ptr() % 8 or raw.storage_offset() % 8:
            raw = torch.cat([raw, raw.new_zeros(-len(raw) % 8)])
        by_torch = NUMBA_ERROR or raw.device.type != "cpu"
        found.append(sum_by_torch(raw) if by_torch else _sum(raw.numpy().view(np.uint64)))
    return [int(one) for one in found]  # of a GPU only here: it has its work by now


def sum_by_torch(raw: Tensor) -> Tensor:
    """The sum of bytes, a multiple of 8, by torch, whose integers wrap around."""
    words = raw.view(torch.int64)
    total = words.new_zeros(())
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        places = torch.arange(start, start + len(part), device=words.device)
        mixed = part + (places + 1) * (STEP - (1 << 64))
        total += ((mixed & LOW) * ((mixed >> 32) & LOW)).sum()
    return total


def _sum(words: np.ndarray) -> np.int64:
    total = np.uint64(0)
    for i in range(len(words)):
        mixed = words[i] + np.uint64(i + 1) * _STEP
        total += (mixed & _LOW) * (mixed >> _HALF)
    return np.int64(total)


if not NUMBA_ERROR:
    from numba import njit

    _sum = njit(cache=True, nogil=True)(_sum)
