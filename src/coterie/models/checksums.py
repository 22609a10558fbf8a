"""Checksums of tensors at memory speed: numba on CPU, torch on a GPU or without numba."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from coterie.models.compiling import NUMBA_ERROR

STEP = 0x9E3779B97F4A7C15
LOW = 0xFFFFFFFF
CHUNK = 1 << 22
"""8-byte words per torch operation, which bounds the memory for temporary copies."""
_STEP, _LOW, _HALF = np.uint64(STEP), np.uint64(LOW), np.uint64(32)


def checksums(weights: Iterable[Tensor]) -> list[int]:
    """Return a position-dependent checksum of the bytes of each tensor.

    Adds a multiple of its position to each 8-byte word and sums the products of the two halves (NH, Black et al.
    1999).
    """
    sums: list[np.int64 | Tensor] = []
    for weight in weights:
        raw = weight.detach().reshape(-1).view(torch.uint8)
        if len(raw) % 8 or raw.data_ptr() % 8 or raw.storage_offset() % 8:
            raw = torch.cat([raw, raw.new_zeros(-len(raw) % 8)])
        by_torch = NUMBA_ERROR or raw.device.type != "cpu"
        sums.append(sum_by_torch(raw) if by_torch else _sum(raw.numpy().view(np.uint64)))
    return [int(total) for total in sums]  # synchronize a GPU once, after all kernels are queued


def sum_by_torch(raw: Tensor) -> Tensor:
    """Return the checksum of bytes (a multiple of 8) by torch, whose integers wrap around."""
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
