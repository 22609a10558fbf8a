"""Draw mutmut's mutants of the core files and print how many of them the tests kill.

    make mutmut                        # python -m tests.mutation.core --sample 25 --seed 0

mutmut writes a copy of each file that holds all its mutants; the processes of :mod:`tests.mutation`
run them. ``mutmut run`` itself spends 1.5 s of pytest's start on every mutant, and first one run of
all tests that records every call.
"""

import argparse
import ast
import difflib
import os
import random
import resource
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = 0.85
"""Share of mutants that should be killed."""
CPU_SECONDS = 60
"""After which a mutant's tests are killed."""
CONTRACT = "tests/contract/test_"
VIEWS = "tests/record/test_views.py"
TRAINING, TRAINER = "tests/training/test_training.py", "tests/training/test_trainer.py"
PAIRS, TRIES = f"{CONTRACT}05_preferences.py", f"{CONTRACT}06_tries.py"
LOSSES = (
    "tests/training/test_value_head.py::test_the_bradley_terry_loss_is_that_of_the_margin",
    "tests/training/test_value_head.py::test_losses_of_given_values_are_those_worked_out_by_hand",
    PAIRS,
)
POLICY = ("tests/training/test_policy_terms.py",)
STORE = ("tests/record/test_store.py", "tests/record/test_jsonl.py")
CHAT = (
    "tests/models/test_chat.py",
    f"{CONTRACT}09_templates_with_tools.py",
    f"{CONTRACT}15_chat_templates.py",
)
BRANCHES = ("tests/rollout/test_branches.py", "tests/rollout/test_grower.py")
TURNS = (f"{CONTRACT}04_parallel_tool_results.py", f"{CONTRACT}07_secrets.py")
CORE: dict[str, tuple[str, ...]] = {
    "models/chat.py": CHAT,
    "models/logprobs.py": (f"{CONTRACT}08_logprobs.py", TRIES, *POLICY),
    "models/prefix_trie.py": (TRIES, "tests/models/test_trie_blocks.py"),
    "rewards/advantages.py": ("tests/rewards/test_advantages.py",),
    "rollout/branches.py": BRANCHES,
    "rollout/positions.py": BRANCHES,
    "selection.py": ("tests/test_selection.py", "tests/rollout/test_tree_search.py"),
    "training/batches.py": (TRAINING, *LOSSES),
    "training/losses.py": (*LOSSES, TRAINING, "tests/training/test_value_head.py"),
    "training/policy_gradient.py": POLICY,
    "training/distributed.py": (TRAINING,),
    "training/trainer.py": (TRAINING, TRAINER),
    "record/rows.py": (VIEWS, PAIRS, TRAINING, *POLICY),
    "record/store.py": STORE,
    "record/store_file.py": STORE,
    "record/tables.py": STORE,
    "record/tree.py": (VIEWS, *STORE),
    "record/turn.py": (VIEWS, *TURNS, *STORE),
}
"""By file, the tests that should kill its mutants, the fast ones first."""
SLOW = "not two_ranks and not interrupt and not ctrl_c"
"""Tests that start many processes are left out."""


@dataclass(frozen=True)
class Mutant:
    """One of mutmut's mutants; stands where the runner takes a fault."""

    name: str

    def apply(self) -> None:
        """Make it the active one in this process."""
        from mutmut.mutation.trampoline import set_mutant_under_test

        set_mutant_under_test(self.name)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))


def mutate(file: str, package: Path, count: int, seed: str) -> list[str]:
    """Write a file of the copied package with its mutants; return up to ``count`` of their names."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    path = package / file
    mutated = mutate_file_contents(str(path), path.read_text(encoding="utf-8"))
    path.write_text(mutated.code, encoding="utf-8")
    module = ".".join(("coterie", *Path(file).with_suffix("").parts))
    names = sorted(mutated.mutant_names)
    chosen = random.Random(f"{seed}/{file}").sample(names, min(count, len(names)))
    return [f"{module}.{name}" for name in chosen]


def edit_of(name: str, package: Path) -> str:
    """Return the lines that a mutant changes, as ``- before`` and ``+ after``."""
    module, _, function = name.rpartition(".")
    path = package.joinpath(*module.split(".")[1:]).with_suffix(".py")
    defined = {
        node.name: ast.unparse(node).replace(node.name, "name", 1).splitlines()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    before = defined[function.rpartition("__mutmut_")[0] + "__mutmut_orig"]
    lines = difflib.unified_diff(before, defined[function], n=0, lineterm="")
    return "\n".join(f"    {line}" for line in lines if line[:3] not in ("---", "+++", "@@ "))


def main() -> int:
    """Return 0 if the share of killed mutants reaches the target."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.core", description=__doc__)
    parser.add_argument("--sample", type=int, default=25, metavar="N", help="mutants of each file")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--only", default="", metavar="WORD", help="files with WORD in the path")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    words = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        package = shutil.copytree("src/coterie", Path(folder, "coterie"))
        files = [file for file in CORE if words.only in file]
        drawn = {file: mutate(file, package, words.sample, words.seed) for file in files}
        sys.path.insert(0, folder)
        os.environ |= {"PYTHONPATH": folder, "MUTANT_UNDER_TEST": ""}
        return _run(drawn, package, words.workers)


def _run(drawn: dict[str, list[str]], package: Path, workers: int) -> int:
    from tests.mutation import __main__ as runner  # imports the package: the copy

    runner.LONGEST = 15 * 60.0  # seconds of CPU are limited, too
    runner.prepare()
    options = ("-x", "-k", SLOW)
    green = [runner.Job(None, CORE[file], options) for file in drawn]
    for _, outcome, _ in runner.run(green, workers):
        if why := _failures(outcome):
            print("tests fail without a mutant:", why)
            return 1
    files = {name: file for file, names in drawn.items() for name in names}
    jobs = [runner.Job(Mutant(name), CORE[file], options) for name, file in files.items()]  # type: ignore[arg-type]
    counts = {file: Counter[str]() for file in drawn}
    for job, outcome, seconds in runner.run(jobs, workers):
        assert job.fault is not None
        failures = _failures(outcome)
        status = "timeout" if "child" in failures else "killed" if failures else "survived"
        counts[files[job.fault.name]][status] += 1
        print(f"{status:8} {seconds:5.1f} s  {job.fault.name}")
        if status != "killed":
            print(edit_of(job.fault.name, package))
    counts["all"] = sum(counts.values(), Counter())
    for file, count in counts.items():
        print(f"{file}: {count['killed']} of {count.total()} killed, {count['timeout']} timeouts")
    share = 1 - counts["all"]["survived"] / counts["all"].total()
    print(f"{share:.1%} killed or timed out, target {TARGET:.0%}")
    return int(share < TARGET)


def _failures(outcome: Any) -> dict[str, str]:
    failures: dict[str, str] = outcome.asserted | outcome.broken
    return {test: why for test, why in failures.items() if why != "skipped"}


if __name__ == "__main__":
    sys.exit(main())
