"""One side of the comparison: run methods through the command line, and describe their run folders.

Of the package it uses the command line and the class in :data:`STEP`; run folders are read as files.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import re
import runpy
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy
from safetensors import safe_open

STEP = (("coterie.training.trainer", "Trainer"),)
"""Classes whose ``step`` gets the rows or pairs of an optimizer step: today's, and those before it."""
FIELDS = {"groups_informative": "groups_telling", "groups_equal": "groups_flat"}
"""Metrics, and fields of rows and pairs, with another name at HEAD: {name at HEAD: name at the base}."""
VOLATILE = re.compile("second|^began$|^settings$")
"""Metrics and fields that are not compared: times and speeds, and fingerprints of settings. Folders, the day of the run
and the settings themselves stand only in files that are not read."""
NUMBERS = {"ids": "<i4", "logprobs": "<f4"}
JSON = {"parts", "calls", "results", "messages"}
ROW_NUMBERS = {"key", "tree", "toolset", "digest", "position"}
"""Columns of the store: numbers, JSON, and numbers of rows, of which the order is compared."""
Values = dict[str, Any]
steps: list[Values] = []


def observe_steps() -> None:
    """Keep the rows or pairs of every optimizer step in :data:`steps`."""
    for module, trainer in STEP:
        with contextlib.suppress(ImportError, AttributeError):
            owner = getattr(import_module(module), trainer)
            owner.step = observed(owner.step)
            return
    raise SystemExit(f"none of {STEP} is there: add the new name to STEP in tests/golden/probe.py")


def observed(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a trainer's ``step`` that also writes down its items."""

    def observing(self: Any, items: Any, *rest: Any) -> Any:
        steps.append({"folder": str(self.folder), "items": plain(items)})
        return step(self, items, *rest)

    return observing


def plain(thing: Any) -> Any:
    """Return rows or pairs as JSON, without the names of classes and what is not set."""
    if dataclasses.is_dataclass(thing):
        values = ((field.name, getattr(thing, field.name)) for field in dataclasses.fields(thing))
        return {FIELDS.get(name, name): plain(one) for name, one in values if one is not None}
    if isinstance(thing, list | tuple):
        return [plain(one) for one in thing]
    return thing if isinstance(thing, str | int | float | bool | None) else str(thing)


def coterie(words: list[str]) -> str:
    """Run a command in this process; return the end of what it printed if it failed."""
    sys.argv = ["coterie", *words]
    printed, failed = io.StringIO(), False
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            runpy.run_module("coterie", run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            failed = bool(ended.code)
        except Exception:
            traceback.print_exc()
            failed = True
    return (printed.getvalue()[-1500:] or "no output") if failed else ""


def steady(value: Any) -> Any:
    """Return a value of JSON without what is :data:`VOLATILE`."""
    if isinstance(value, dict):
        kept = {name: steady(one) for name, one in value.items() if not VOLATILE.search(name)}
        return {FIELDS.get(name, name): one for name, one in kept.items()}
    return [steady(one) for one in value] if isinstance(value, list) else value


def cell(name: str, value: Any) -> Any:
    """Return a column of the store as plain values."""
    if isinstance(value, bytes):
        return numpy.frombuffer(value, NUMBERS[name]).tolist()
    return steady(json.loads(value)) if name in JSON else value


def weights(file: Path) -> str:
    """Return the SHA-256 of a file's tensors, in the order of their names."""
    digest = hashlib.sha256()
    with safe_open(file, framework="np") as opened:
        for name in sorted(opened.keys()):
            tensor = opened.get_tensor(name)
            digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode() + tensor.tobytes())
    return digest.hexdigest()


def record(db: sqlite3.Connection) -> tuple[Values, Values]:
    """Return what is compared of a store, and the metrics of its items; keys do not depend on any order of work."""

    def rows(select: str) -> list[Values]:
        return [dict(row) for row in db.execute(select)]

    db.row_factory = sqlite3.Row
    trees = {
        one["key"]: "{iteration}/{stage}/{task}".format(**one) for one in rows("SELECT * FROM tree")
    }
    items = rows("SELECT * FROM item ORDER BY iteration, stage, task, sample")
    names = {one["key"]: "{iteration}/{stage}/{task}/{sample}".format(**one) for one in items}
    found: Values = {
        "tasks": {one["id"]: one["public"] for one in rows("SELECT * FROM task ORDER BY id")},
        "items of work": {names[one["key"]]: one["failure"] or "finished" for one in items},
    }
    tables = {
        "prompts": "request ORDER BY id",
        "turns": "turn ORDER BY sample, position, id",
        "outcomes": "outcome ORDER BY leaf",
    }
    for section, table in tables.items():
        for one in rows(f"SELECT * FROM {table}"):
            shown = {
                name: cell(name, value) for name, value in one.items() if name not in ROW_NUMBERS
            }
            found.setdefault(section, {}).setdefault(trees[one["tree"]], []).append(shown)
    for one in rows(
        "SELECT * FROM credit JOIN credit_kind ON kind = credit_kind.key ORDER BY node, name, value"
    ):
        places = found.setdefault("credit", {}).setdefault(trees[one["tree"]], {})
        places.setdefault(f"{one['name']} of {one['node']}", []).append(one["value"])
    for one in rows("SELECT * FROM selection ORDER BY item, position"):
        one.pop("digest", None)
        found.setdefault("selections", {}).setdefault(names[one.pop("item")], []).append(one)
    return found, {names[one["key"]]: steady(json.loads(one["metrics"])) for one in items}


def described(folder: Path) -> Values:
    """Return what is compared of a run, by section, in the order in which a change spreads."""
    found, metrics = {}, {}
    if (folder / "store.sqlite").is_file():
        with contextlib.closing(sqlite3.connect(folder / "store.sqlite")) as db:
            found, metrics = record(db)
    found["training rows or pairs"] = steps
    found["metrics of training steps"] = {
        str(file.parent.relative_to(folder)): [steady(json.loads(line)) for line in file.open()]
        for file in sorted(folder.rglob("metrics.jsonl"))
    }
    files = sorted(folder.rglob("*.safetensors"))
    found["weights"] = {str(file.relative_to(folder)): weights(file) for file in files}
    return found | {"metrics of items": metrics}


def main() -> None:
    """Run the methods of ``runs.json`` in the working folder with the package under the folder that is named."""
    package = import_module("coterie")  # before torch: it says how torch's threads wait
    torch = import_module("torch")
    if not Path(str(package.__file__)).is_relative_to(sys.argv[1]):
        raise SystemExit(f"{package.__file__} is not in {sys.argv[1]}")
    torch.set_num_threads(1)
    observe_steps()
    for method, commands in json.loads(Path("runs.json").read_text()).items():
        began = time.monotonic()
        steps.clear()
        folder = Path(method.replace("/", "-"))
        stopped = next(filter(None, map(coterie, commands)), "")
        found = {
            "stopped": stopped,
            "sections": described(folder),
            "seconds": round(time.monotonic() - began),
        }
        Path(f"{folder}.json").write_text(json.dumps(found))
        print(f"{method}: {found['seconds']} s {stopped}", flush=True)


if __name__ == "__main__":
    main()
