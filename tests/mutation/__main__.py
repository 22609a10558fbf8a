"""Apply each fault alone and see whether the tests notice.

    python -m tests.mutation                       all faults of tests/mutants
    python -m tests.mutation --drawn 120           and so many that mutmut makes (tests/mutation/drawn.py)
    python -m tests.mutation --only NAME           one of them
    python -m tests.mutation --match trie          those whose name (if drawn, or file) has "trie"
    python -m tests.mutation --sample 30 --seed X  thirty of them, drawn by X (a commit)
    python -m tests.mutation --check               only whether the edits fit the code

First the named tests run on a copy without faults, and must pass. The exit status is not zero if a
fault survives, or if a fault is no good (it does not import, it takes too long, no assertion fails); of
those that mutmut makes, if fewer than 80% are killed, or one survives that is not in
``tests/mutants/survivors.md``. The last line is JSON.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch, as the package itself does
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# isort: split

import argparse
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutation.child import Job, Result, module_of
from tests.mutation.copies import base_copy, mutated_copy
from tests.mutation.mutant import Fault, Mutant, all_mutants, known_survivors, misfits
from tests.mutation.pool import Prepared, import_large, run_all

UNMUTATED_SECONDS = 600
DRAWN_SECONDS = 300
"""A drawn fault for which tests take longer hangs, and is so noticed."""
DRAWN_SEED = "coterie"
MIN_KILLED = 0.8
VOID = "void: does not import"


def main() -> int:
    """Run what the command line asks for; the exit status."""
    words = _parser().parse_args()
    chosen = _chosen(words)
    if lines := misfits(chosen if words.only else all_mutants()):
        print("\n".join(("These faults do not fit the code; write them anew:", *lines)))
        return 1
    if words.check:
        print(f"{len(chosen)} faults fit the code")
        return 0
    start = time.monotonic()
    faults = [*chosen, *(_drawn(words.drawn, words.match) if words.drawn else ())]
    import_large()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        base = base_copy(Path(name) / "base")
        if red := _unmutated(faults, base, Path(name), words.workers):
            print("\n".join(("Without a fault these tests must pass:", *red)))
            return 1
        verdicts = _mutated(faults, base, Path(name), words)
    return _summary(faults, verdicts, time.monotonic() - start)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", metavar="NAME", action="append", help="this fault (repeatable)")
    parser.add_argument(
        "--match",
        metavar="TEXT",
        default="",
        help="faults with TEXT in the name, drawn ones also in the file",
    )
    parser.add_argument("--sample", metavar="N", type=int, help="draw N of them")
    parser.add_argument("--seed", default="", help="what draws the sample")
    parser.add_argument("--drawn", metavar="N", type=int, default=0, help="and N that mutmut makes")
    parser.add_argument("--workers", type=int, default=2, help="how many at a time")
    parser.add_argument("--limit", type=float, default=30, help="seconds for a fault")
    parser.add_argument("--check", action="store_true", help="only see whether the edits fit")
    return parser


def _chosen(words: argparse.Namespace) -> list[Mutant]:
    every = all_mutants()
    if words.only:
        if missing := set(words.only) - {one.name for one in every}:
            sys.exit(f"no such fault: {', '.join(sorted(missing))}")
        return [one for one in every if one.name in words.only]
    found = [one for one in every if words.match in one.name]
    if words.sample is None or words.sample >= len(found):
        return found
    return random.Random(words.seed).sample(found, words.sample)


def _drawn(count: int, match: str) -> list[Fault]:
    from tests.mutation.drawn import draw  # mutmut is large, and few uses need it

    return [one for one in draw(count, DRAWN_SEED) if match in f"{one.name} {one.file}"]


def _unmutated(faults: Sequence[Fault], base: Path, folder: Path, workers: int) -> list[str]:
    """Run all named tests, file by file, on the package as it is; a line for each that does not pass."""
    files: dict[str, dict[str, None]] = defaultdict(dict)
    for test in (test for one in faults for test in one.tests):
        files[test.partition("::")[0]][test] = None
    named = {
        Path(file).stem: (file,) if file in tests else tuple(tests) for file, tests in files.items()
    }
    jobs = [_as_is(name, base, tests) for name, tests in named.items()]
    red = []
    for name, result, _ in run_all(jobs, folder, workers):
        print(f"unmutated  {result.seconds:5.1f} s  {name}", flush=True)
        red += [f"{name}: {result.broken}"] if result.broken else []
        red += [f"{test}: {said}" for test, said in (result.asserted | result.crashed).items()]
        for test in named[name]:
            stands = [id_ for id_ in result.passed if _names(test, id_)]
            if not stands and not result.broken:
                red.append(f"{test}: nothing of it was run")
    return red


def _as_is(name: str, base: Path, tests: tuple[str, ...]) -> Prepared:
    return Prepared(name, lambda _: Job(name, base, "coterie", tests, False), UNMUTATED_SECONDS)


def _names(test: str, id_: str) -> bool:
    """Whether a node id as a person wrote it covers one that pytest ran."""
    return id_ == test or id_.startswith((f"{test}[", f"{test}::"))


def _mutated(
    faults: Sequence[Fault], base: Path, folder: Path, words: argparse.Namespace
) -> dict[str, str]:
    """What became of each fault: ``killed``, ``survived``, or why it is no good."""
    of_name = {one.name: one for one in faults}
    verdicts = {}
    jobs = [_with_fault(one, base, words.limit) for one in faults]
    for number, (name, result, log) in enumerate(run_all(jobs, folder, words.workers), 1):
        fault = of_name[name]
        verdicts[name] = verdict = _verdict(fault, result)
        print(f"[{number}/{len(faults)}] {result.seconds:5.1f} s  {name}: {verdict}", flush=True)
        if verdict == "survived":
            print(f"    {fault.file}: {fault.breaks}")
            print(f"    still green: {', '.join(fault.tests)}")
        elif verdict != "killed" and words.only:
            print(log()[-3000:])
    return verdicts


def _with_fault(one: Fault, base: Path, limit: float) -> Prepared:
    def make(own: Path) -> Job:
        copy = mutated_copy(base, own / "package", one.file, one.text())
        return Job(
            one.name, copy, module_of(one.file), one.tests, True, stop_at_crash=not one.by_hand
        )

    return Prepared(one.name, make, limit if one.by_hand else DRAWN_SECONDS)


def _verdict(fault: Fault, result: Result) -> str:
    if not fault.by_hand:
        if result.broken.startswith("does not import"):
            return VOID
        return "killed" if result.asserted or result.crashed or result.broken else "survived"
    if result.broken:
        return f"no good: {result.broken}"
    if result.asserted:
        return "killed"
    if result.crashed:
        test, said = next(iter(result.crashed.items()))
        return f"no good: tests crash, and none says what is wrong: {test}: {said}"
    return "survived"


def _summary(faults: Sequence[Fault], verdicts: dict[str, str], seconds: float) -> int:
    """Print what happened; the exit status."""
    drawn = {one.name: one for one in faults if not one.by_hand}
    by_hand = {name: verdict for name, verdict in verdicts.items() if name not in drawn}
    survived = [name for name, verdict in by_hand.items() if verdict == "survived"]
    no_good = {n: verdict for n, verdict in by_hand.items() if verdict.startswith("no good")}
    killed = len(by_hand) - len(survived) - len(no_good)
    for name in survived:
        print(f"SURVIVED {name}")
    for name, why in no_good.items():
        print(f"NO GOOD {name}: {why[9:300]}")
    told, fine = _drawn_summary(drawn, verdicts)
    counts = f"{killed} killed, {len(survived)} survived, {len(no_good)} no good"
    if drawn:
        counts += f"; {told['killed']} of {told['run']} drawn ones killed"
    print(f"===== {counts} in {seconds:.1f}s =====")
    summary = {"mutants": len(by_hand), "killed": killed, "survived": survived}
    summary |= {"no_good": sorted(no_good), "drawn": told, "seconds": round(seconds, 1)}
    print(json.dumps(summary))
    return 0 if fine and not survived and not no_good else 1


def _drawn_summary(
    drawn: dict[str, Fault], verdicts: dict[str, str]
) -> tuple[dict[str, Any], bool]:
    """Numbers of the drawn faults, and whether they are good enough; prints survivors that are not listed."""
    run = [name for name in drawn if verdicts[name] != VOID]
    survived = [name for name in run if verdicts[name] == "survived"]
    unlisted = [name for name in survived if name not in known_survivors()]
    for name in unlisted:
        change = drawn[name].breaks.replace("|", "\\|")
        print(f"NOT LISTED: | `{name}` | {drawn[name].file} | `{change}` | why no test notices |")
    killed = len(run) - len(survived)
    told = {"run": len(run), "killed": killed, "survived": survived, "unlisted": unlisted}
    return told, killed >= MIN_KILLED * len(run) and not unlisted


if __name__ == "__main__":
    sys.exit(main())
