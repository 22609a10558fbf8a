"""What numba compiled of an earlier version of a file does not break the next one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from pathlib import Path
from typing import NamedTuple
from numba import njit
from coterie.engines.compiled.kernels import drop_stale

class {name}(NamedTuple):
    one: float

@njit(cache=True)
def doubled(pair):
    return {factor} * pair.one

drop_stale(Path(__file__), doubled.stats.cache_path)
print(doubled({name}(3.0)), sum(doubled.stats.cache_hits.values()))
"""


def run(folder: Path, name: str, factor: int, age: int) -> str:
    """What the module says, whose file was written ``age`` seconds ago."""
    file = folder / "loops.py"
    file.write_text(MODULE.format(name=name, factor=factor))
    when = file.stat().st_mtime - age
    os.utime(file, (when, when))
    done = subprocess.run(
        [sys.executable, "-c", "import loops"], cwd=folder, capture_output=True, text=True
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.slow
def test_a_renamed_class_is_compiled_anew_and_what_is_current_is_kept(tmp_path: Path) -> None:
    before = {"name": "Weights", "factor": 2, "age": 100}
    assert run(tmp_path, **before) == "6.0 0"
    os.utime(tmp_path / "loops.py")  # only for the next write to have a time of its own
    assert run(tmp_path, name="PackedWeights", factor=3, age=-100) == "9.0 0"
    (index,) = (tmp_path / "__pycache__").glob("loops.*.nbi")
    later = (tmp_path / "loops.py").stat().st_mtime + 1
    os.utime(index, (later, later))
    again = subprocess.run(
        [sys.executable, "-c", "import loops"], cwd=tmp_path, capture_output=True, text=True
    )
    assert again.stdout.strip() == "9.0 1", again.stderr
