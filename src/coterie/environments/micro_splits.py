"""Splits of generated micro-worlds: a hash of a task's key decides its split."""

import hashlib
from typing import Literal

MicroSplit = Literal["train", "heldout", "corpus"]
"""``corpus`` is the pre-training data of the micro-world's model."""
SPLIT_SHARES: dict[MicroSplit, range] = {
    "train": range(30),
    "heldout": range(30, 55),
    "corpus": range(55, 100),
}
"""Residues of the key's hash modulo 100, by split."""


def split_of_key(key: str) -> MicroSplit:
    residue = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % 100
    return next(name for name, residues in SPLIT_SHARES.items() if residue in residues)


def check_split(split: str) -> None:
    """Raise ``ValueError`` for an unknown split."""
    if split not in SPLIT_SHARES:
        raise ValueError(f"unknown split {split!r}: choose one of {', '.join(SPLIT_SHARES)}")
