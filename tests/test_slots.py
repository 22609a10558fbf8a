"""Slots grow without copying, or touching, what no running sequence uses."""

import resource
from pathlib import Path

import torch

from coterie.engines.padded import Slots

LIKE = torch.zeros(1)


def _resident() -> float:
    """MiB of memory that this process has touched and still holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def test_growth_in_length_touches_no_rows_that_are_not_in_use() -> None:
    slots = Slots(8, 4, 64, LIKE)
    slots.reserve(600, 64)  # 4 x 16, 4 x 64, ...: room for 600 rows
    slots.reserve(2, 64, only=True)
    before = _resident()
    for length in (1000, 2000, 4000):
        slots.reserve(2, length, only=True)
    grown = _resident() - before
    whole = slots.keys.nbytes * 2 / 2**20
    assert whole > 10_000 and grown < 300, (whole, grown)  # MiB
