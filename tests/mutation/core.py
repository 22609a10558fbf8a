"""Draw mutmut's mutants of the core files, run them, and print how many the tests kill.

    make mutmut                                  # python -m tests.mutation.core --sample 30 --seed 0

The files and their tests are in ``[tool.mutmut]`` of pyproject.toml; the working copy is ``mutants/``.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from mutmut.configuration import config
from mutmut.mutation.file_mutation import mutate_file_contents

TARGET = 0.85
"""Share of mutants that should be killed."""
KILLED, SURVIVED, NO_TESTS = "killed", "survived", "no tests"
STATUS = {0: SURVIVED, 1: KILLED, 3: KILLED, 5: NO_TESTS, 33: NO_TESTS}
"""By exit code of a mutant's tests; any other is a timeout or a crash."""


def core_files() -> list[Path]:
    """Return the files that the configuration names."""
    return [path for path in sorted(Path("src").rglob("*.py")) if config().should_mutate(path)]


def draw(files: list[Path], count: int, seed: str) -> dict[Path, list[str]]:
    """Return up to ``count`` mutants of each file, by names that ``mutmut run`` takes."""
    drawn = {}
    for path in files:
        module = ".".join(path.with_suffix("").parts[1:])
        names = list(mutate_file_contents(str(path), path.read_text(encoding="utf-8")).mutant_names)
        chosen = random.Random(f"{seed}/{module}").sample(names, min(count, len(names)))
        drawn[path] = [f"{module}.{name}" for name in chosen]
    return {path: names for path, names in drawn.items() if names}


def main() -> int:
    """Return 0 if the share of killed mutants reaches the target."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.core", description=__doc__)
    parser.add_argument("--sample", type=int, default=30, metavar="N", help="mutants of each file")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--only", default="", metavar="WORD", help="files with WORD in the path")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    words = parser.parse_args()
    files = [path for path in core_files() if words.only in str(path)]
    drawn = draw(files, words.sample, words.seed)
    names = [name for some in drawn.values() for name in some]
    environment = {**os.environ, "PYTHONPATH": str(Path("mutants/src").absolute())}
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(words.processes)]
    subprocess.run([*command, *names], env=environment, check=True)

    total = Counter[str]()
    print("| file | run | killed | survived | no tests | timeout |\n|---|--:|--:|--:|--:|--:|")
    for path, some in drawn.items():
        meta = json.loads(Path("mutants", f"{path}.meta").read_text(encoding="utf-8"))
        codes = {name: meta["exit_code_by_key"][name] for name in some}
        found = Counter(STATUS.get(code, "timeout") for code in codes.values())
        total += found
        print(f"| {path.relative_to('src/coterie')} | {_row(found)} |")
        survivors = [name for name, code in codes.items() if STATUS.get(code) == SURVIVED]
        Path("mutants", f"{path}.survivors").write_text("\n".join(survivors), encoding="utf-8")
    share = total[KILLED] / max(sum(total.values()), 1)
    print(
        f"| all | {_row(total)} |\n\n{share:.1%} killed (target {TARGET:.0%}); `mutmut show NAME`"
    )
    return int(share < TARGET)


def _row(found: Counter[str]) -> str:
    counts = (sum(found.values()), *(found[one] for one in (KILLED, SURVIVED, NO_TESTS, "timeout")))
    return " | ".join(map(str, counts))


if __name__ == "__main__":
    sys.exit(main())
