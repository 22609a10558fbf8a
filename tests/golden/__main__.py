"""Golden runs: every method at a base commit and here, with the same settings, and what differs.

``make golden`` (``METHODS=optima/isft,rl/grpo``, ``BASE=COMMIT``) ends with status 1 if anything does.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.golden import methods

BASE = "767985d"
"""The commit whose results are the right ones. CONTRIBUTING.md says how it is moved."""
ROOT = Path(__file__).resolve().parents[2]
PROBE = Path(__file__).with_name("probe.py")
EXPECTED = Path(__file__).with_name("expected.json")
WORK = ROOT / "build/golden"
CACHE = Path(os.environ.get("GOLDEN_CACHE") or WORK / "cache")
WIKI = "src/coterie/assets/data/2wiki"
LIBRARIES = ("torch", "transformers", "tokenizers", "numba", "numpy", "safetensors", "minigrid")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "COTERIE_HOME": "home",
}  # fmt: skip
ROWS = "training rows or pairs"
Result = dict[str, Any]
Runs = dict[str, list[list[str]]]


def git(*words: str) -> str:
    return subprocess.check_output(["git", "-C", str(ROOT), *words], text=True).strip()


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Check a commit out into a worktree, and remove that afterwards."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        git("worktree", "add", "--detach", "--quiet", f"{folder}/base", commit)
        try:
            yield Path(folder) / "base"
        finally:
            git("worktree", "remove", "--force", f"{folder}/base")


def translated(text: str) -> str:
    """Return a command or an input with the names of HEAD."""
    for old, new in methods.RENAMED.items():
        text = text.replace(old, new)
    return text


def commands(method: str, *, renamed: bool) -> list[list[str]]:
    """Return the words of a method's commands, at the base or at HEAD."""
    run = f"run {method} --folder {method.replace('/', '-')} {methods.METHODS[method]}"
    lines = (methods.BEFORE.get(method, ""), run)
    words = ((translated(line) if renamed else line).split() for line in lines)
    return [line for line in words if line]


def start(name: str, root: Path, runs: Runs) -> subprocess.Popen[bytes]:
    """Start the process of one side, which writes ``WORK/NAME/METHOD.json`` for each method."""
    shutil.rmtree(WORK / name, ignore_errors=True)
    shutil.copytree(WORK / "inputs", WORK / name)
    (WORK / name / "runs.json").write_text(json.dumps(runs))
    for file in (WORK / name).glob("*.yaml") if name == "head" else ():
        file.write_text(translated(file.read_text()))
    with (WORK / name / "log.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(PROBE), str(root / "src")],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(root / "src")},
            cwd=WORK / name,
            stdout=log,
            stderr=log,
        )


def finish(name: str, process: subprocess.Popen[bytes]) -> None:
    if process.wait():
        raise SystemExit(f"{name}: {(WORK / name / 'log.txt').read_text()[-3000:]}")


def result(folder: Path, method: str) -> Result:
    """Return what the probe wrote of a method; nothing if there is no file."""
    file = folder / f"{method.replace('/', '-')}.json"
    found: Result = json.loads(file.read_text()) if file.is_file() else {}
    return found


def cache(commit: str) -> Path:
    """Return the folder of the base's results, which depend on processor, libraries, inputs and probe."""
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name.*", info.read_text()) if info.exists() else None
    machine = model[0] if model else platform.processor()
    parts = [commit, machine, sys.version, *map(version, LIBRARIES)]
    digest = hashlib.sha256(json.dumps([parts, ENVIRONMENT]).encode())
    for file in (PROBE, *sorted(file for file in (WORK / "inputs").rglob("*") if file.is_file())):
        digest.update(file.read_bytes())
    return CACHE / digest.hexdigest()[:16]


def run_sides(commit: str, wanted: list[str]) -> Path:
    """Run both sides at once, the base only where its results are not kept; return the folder of these."""
    kept = cache(commit)
    kept.mkdir(parents=True, exist_ok=True)
    here: Runs = {one: commands(one, renamed=True) for one in wanted}
    base: Runs = {one: commands(one, renamed=False) for one in wanted}
    for method, said in list(base.items()):
        before = result(kept, method)
        if before and before["commands"] == said and not before["stopped"]:
            del base[method]
    process = start("head", ROOT, here)
    try:
        if base:
            with worktree(commit) as place:
                finish("base", start("base", place, base))
        finish("head", process)
    finally:
        process.kill()
    for method, said in base.items():
        found = {**result(WORK / "base", method), "commands": said}
        (kept / f"{method.replace('/', '-')}.json").write_text(json.dumps(found))
    return kept


def differences(base: Any, head: Any, place: str = "") -> Iterator[str]:
    """Yield the places at which two sides differ, and how."""
    if isinstance(base, dict) and isinstance(head, dict):
        for name in sorted({*base, *head}):
            if name in head and name in base:
                yield from differences(base[name], head[name], f"{place} {name}".strip())
            else:
                yield f"{place} {name} is {'missing' if name in base else 'new'}".strip()
    elif isinstance(base, list) and isinstance(head, list):
        if len(base) != len(head):
            yield f"{place or 'all'}: {len(base)} entries at the base, {len(head)} here"
        for number, (one, other) in enumerate(zip(base, head, strict=False)):
            found = list(differences(one, other, f"{place}[{number}]"))
            yield from found
            if found and not isinstance(one, dict | list):
                return  # of a list of numbers, only the first that differs
    elif base != head or type(base) is not type(head):
        texts = str(base), str(head)
        start = next((n for n, pair in enumerate(zip(*texts, strict=False)) if len({*pair}) > 1), 0)
        one, other = (repr(text[max(start - 30, 0) : start + 50]) for text in texts)
        yield f"{place}: {one} at the base, {other} here"


def by_training(sections: dict[str, Any]) -> dict[str, Any]:
    """Return the sections with the rows of steps under the folders of their trainings."""
    found: dict[str, list[Any]] = {}
    for step in sections[ROWS]:
        found.setdefault(step["folder"].partition("/")[2], []).append(step["items"])
    return {**sections, ROWS: found}


def compare(base: Result, head: Result) -> list[str]:
    """Return how two runs differ: the first difference of each section, those of early iterations first."""
    found = []
    one, other = by_training(base["sections"]), by_training(head["sections"])
    for name in one:
        here = list(differences(one[name], other.get(name)))
        found += [f"{name} ({len(here)} differences): {here[0]}"] if here else []
    found.sort(key=lambda text: re.findall(r"(?:iteration-|: )(\d+)", text)[:1] or ["99"])
    for side, result in (("at the base", base), ("here", head)):
        if end := " ".join(result["stopped"].split())[-200:]:
            found.insert(0, f"stopped {side}: {end}")
    return found


def summary(base: Result, head: Result) -> str:
    """Return the amount of compared results, and the seconds of each side."""
    sections = head["sections"]
    rows = sum(len(step["items"]) for step in sections[ROWS])
    counts = f"{len(sections.get('items of work', ()))} items, {rows} rows or pairs"
    return (
        f"{counts}, {len(sections['weights'])} weights; {base['seconds']} and {head['seconds']} s"
    )


def portable(sections: dict[str, Any]) -> dict[str, str]:
    """Return what no processor changes: hashes of first prompts, and of rows that nobody sampled, with their number."""
    found: dict[str, list[Any]] = {}
    for place, prompts in sections.get("prompts", {}).items():
        stage = "/".join(place.split("/")[:2])
        if stage in ("0/evaluate", "0/rollout"):
            ids = [one["ids"] for one in prompts if one["previous"] is None]
            found.setdefault(f"prompts of {stage}", []).append([place, min(ids, key=len)])
    for step in sections[ROWS]:
        if "iteration-00" in step["folder"] and "@" not in json.dumps(step["items"]):
            found.setdefault(f"rows of {step['folder']}", []).extend(step["items"])
    return {
        name: f"{len(some)}: {hashlib.sha256(json.dumps(some).encode()).hexdigest()}"
        for name, some in found.items()
    }


def main() -> int:
    """Run both sides, compare them, and check what is committed."""
    parser = argparse.ArgumentParser(prog="make golden")
    parser.add_argument("--base", default=BASE)
    parser.add_argument("--methods", default="")
    parser.add_argument("--write", action="store_true", help="write expected.json anew")
    given = parser.parse_args()
    wanted = list(filter(None, given.methods.split(","))) or list(methods.METHODS)
    if unknown := set(wanted) - set(methods.METHODS):
        parser.error(f"unknown methods: {', '.join(sorted(unknown))}")
    commit = git("rev-parse", f"{given.base or BASE}^{{commit}}")
    shutil.rmtree(WORK / "inputs", ignore_errors=True)
    (WORK / "inputs").mkdir(parents=True)
    wiki = [git("show", f"{commit}:{WIKI}/{split}.jsonl") for split in ("train", "heldout")]
    methods.write_inputs(
        WORK / "inputs", [json.loads(row) for rows in wiki for row in rows.split("\n")]
    )
    kept = run_sides(commit, wanted)
    expected, differing = json.loads(EXPECTED.read_text()), 0
    for method in wanted:
        base, head = result(kept, method), result(WORK / "head", method)
        now = portable(head["sections"])
        if given.write:
            expected[method] = now
        committed = list(differences(expected.get(method, {}), now))
        found = compare(base, head)[:5] + [f"{EXPECTED.name}: {one}" for one in committed[:2]]
        differing += bool(found)
        print(f"{method:18} {'DIFFERS' if found else 'equal':8} {summary(base, head)}")
        for one in found:
            print(f"    {one}")
    if given.write:
        EXPECTED.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    print(f"{len(wanted) - differing} of {len(wanted)} methods are equal to {given.base or BASE}")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
