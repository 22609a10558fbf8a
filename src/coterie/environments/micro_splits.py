"""The splits of a generated micro-world: a task's own key says which one may contain it."""

import hashlib
from typing import Literal

MicroSplit = Literal["train", "heldout", "corpus"]
"""``corpus`` is what the micro-world's model was pre-trained on."""
SPLIT_SHARES: dict[MicroSplit, range] = {
    "train": range(30),
    "heldout": range(30, 55),
    "corpus": range(55, 100),
}
"""Which residues (of the key's hash, modulo 100) belong to which split."""


def split_of_key(key: str) -> MicroSplit:
    residue = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % 100
    return next(name for name, residues in SPLIT_SHARES.items() if residue in residues)


def check_split(split: str) -> None:
    """Raises ``ValueError`` for a split that there is not."""
    if split not in SPLIT_SHARES:
        raise ValueError(f"unknown split {split!r}: choose one of {', '.join(SPLIT_SHARES)}")
