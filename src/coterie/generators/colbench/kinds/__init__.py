"""Kinds of personal function that tasks of Backend Programming are drawn of, all of them coterie's own."""

from coterie.generators.colbench.kinds.easy import EASY
from coterie.generators.colbench.kinds.heldout import HELDOUT
from coterie.generators.colbench.kinds.kind import FunctionKind, Level
from coterie.generators.colbench.kinds.train import TRAIN
from coterie.generators.colbench.kinds.train_records import TRAIN_RECORDS

KINDS: tuple[FunctionKind, ...] = (*TRAIN, *TRAIN_RECORDS, *HELDOUT, *EASY)
"""Each of one split and one level; no function name is in both splits."""

__all__ = ["KINDS", "FunctionKind", "Level"]
