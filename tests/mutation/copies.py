"""Copies of the package: one of ``src``, and from it, by hard links, one for each fault."""

import os
import shutil
from pathlib import Path

from tests.mutation.mutant import PACKAGE


def base_copy(folder: Path) -> Path:
    """Copy the package, with what Python and numba compiled of it, into ``folder``; the path to import from."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name)
    return folder


def mutated_copy(base: Path, folder: Path, file: str, text: str) -> Path:
    """A copy of ``base`` in which one file reads ``text``; the path to import from."""
    shutil.copytree(base, folder, copy_function=os.link)
    changed = folder / PACKAGE.name / file
    changed.unlink()
    changed.write_text(text, encoding="utf-8")
    for compiled in (changed.parent / "__pycache__").glob(f"{changed.stem}.*"):
        compiled.unlink()
    return folder
