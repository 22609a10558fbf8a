"""Results of ``coterie reproduce``: what was measured, the file that it is kept in, and the tables.

The results of an experiment are two files. ``X-tiny.json`` has the rows and claims, and what is needed to repeat them:
commit, machine, versions, settings, tuning, gate and decodes. ``X-tiny.tasks.json.gz`` beside it has the result of each
held-out task, from which ``--from`` computes the claims again.
"""

import gzip
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.table import Table

from coterie.errors import UserError
from coterie.terminal import results as console
from experiments.claims import Claim, HeldOutResult, Hypothesis, Results, above

CHECKOUT = Path(__file__).parents[1]
MIN_TASKS = 500
"""Held-out tasks a seed that a claim needs, and the maximum."""
BEST = ", best decode"
"""Suffix of a policy's results at the temperature at which the base is best."""


class Training(NamedTuple):
    """Cost of a policy: of the trainings so far of the roles that play, and of the rollouts that they need."""

    rows: int = 0
    steps: int = 0
    """Optimizer steps."""
    trained_tokens: int = 0
    """Target tokens."""
    sampled_tokens: int = 0
    """Tokens sampled for the trainings; in candidates equal turns count once."""
    seconds: float = 0.0
    """Seconds of these trainings and rollouts."""


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy of one method and seed on the held-out tasks."""

    method: str
    seed: int
    iteration: int
    temperature: float
    n: int
    score: float
    tokens: float
    """Mean sampled tokens of a dialogue."""
    rows: int
    steps: int
    trained_tokens: int
    sampled_tokens: int
    seconds: float
    grades: Mapping[str, float] = field(default_factory=dict)
    """Means of the environment's other grades. Kept apart, because a grade may have the name of a count."""


class Measurements:
    """Rows and per-task results, from which claims are computed."""

    def __init__(self, *, partial: bool = False) -> None:
        self.partial = partial
        """True if methods are missing, so that claims about them are left out."""
        self.rows: list[PolicyResult] = []
        self.tasks: dict[tuple[str, int], Mapping[str, HeldOutResult]] = {}
        """Results of each method's newest policy, and other values of each task, by (method, seed)."""

    def add(
        self,
        method: str,
        seed: int,
        iteration: int,
        temperature: float,
        tasks: Mapping[str, HeldOutResult],
        grades: Mapping[str, float] | None = None,
        training: Training | None = None,
    ) -> None:
        """Record the held-out results of one policy."""
        score, tokens = means_of(tasks)
        rounded = {name: round(value, 4) for name, value in (grades or {}).items()}
        if turns := (grades or {}).get("turns"):
            rounded["tokens_a_turn"] = round(tokens / turns, 2)
        self.rows.append(
            PolicyResult(
                *(method, seed, iteration, temperature, len(tasks)),
                *(round(score, 4), round(tokens, 2)),
                **(training or Training())._asdict(),
                grades=rounded,
            )
        )
        self.tasks[method, seed] = tasks

    def of(self, method: str) -> Results:
        """Return the newest results of a method by seed."""
        tasks = {seed: tasks for (name, seed), tasks in self.tasks.items() if name == method}
        # Without results of its own, the best decode is the one that the method was evaluated at.
        return tasks or (self.of(method.removesuffix(BEST)) if method.endswith(BEST) else {})

    def test(self, *hypotheses: Hypothesis) -> list[Claim]:
        """Test each hypothesis at the decode of the experiment and, where it differs, at the base's best one."""
        claims, methods = list[Claim](), {method for method, _ in self.tasks}
        for hypothesis in hypotheses:
            ours, theirs = self.of(hypothesis.ours), self.of(hypothesis.theirs)
            if self.partial and not (ours and theirs):
                continue
            claims.append(above(hypothesis, ours, theirs))
            if hypothesis.ours + BEST in methods:
                # The base's results at its best decode are the rival at both decodes.
                ours, theirs = (self.of(name.removesuffix(BEST) + BEST) for name in hypothesis[2:4])
                name, text = f"{hypothesis.id}_best_decode", hypothesis.claim + BEST
                claims.append(above(hypothesis._replace(id=name, claim=text), ours, theirs))
        return claims


def means_of(tasks: Mapping[str, HeldOutResult]) -> tuple[float, float]:
    """Return the mean score and the mean tokens."""
    score, tokens = (
        sum(values) / len(tasks)
        for values in zip(*((task.score, task.tokens) for task in tasks.values()), strict=True)
    )
    return score, tokens


# -- files -----------------------------------------------------------------------------------------


def protocol_commit() -> dict[str, Any]:
    """Return the commit of the checkout and its date, and whether the code has uncommitted changes."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(CHECKOUT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit, date = git("log", "-1", "--format=%H %cs").split()
        return {
            "commit": commit,
            "commit_date": date,
            "changed": bool(git("status", "--porcelain", "src", "experiments")),
        }
    except (OSError, subprocess.CalledProcessError):
        # A checkout without its history still gives results, but they name no protocol.
        return {"commit": "unknown", "commit_date": "", "changed": True}


def machine() -> dict[str, Any]:
    """Return the hardware, the threads and the versions that results depend on."""
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("coterie", "torch", "transformers", "numpy")},
        },
    }


def tasks_file(file: Path) -> Path:
    """Return the path of the per-task results of a result file."""
    return file.with_suffix(".tasks.json.gz")


def write(
    file: Path,
    protocol: Mapping[str, Any],
    measurements: Measurements,
    claims: Sequence[Claim],
) -> None:
    """Write the result file and the compressed per-task results beside it."""
    rows = [asdict(row) for row in measurements.rows]
    values = {
        **protocol,
        "partial": measurements.partial,
        "claims": [asdict(c) for c in claims],
        "rows": rows,
    }
    file.write_text(json.dumps(values, indent=1) + "\n")
    tasks = [
        [
            method,
            seed,
            [*by_task],
            *zip(*((r.score, r.tokens) for r in by_task.values()), strict=True),
        ]
        for (method, seed), by_task in measurements.tasks.items()
        if by_task
    ]
    # Without the time in its header, equal results make equal files.
    tasks_file(file).write_bytes(gzip.compress(json.dumps(tasks).encode(), mtime=0))


def read(file: Path) -> tuple[dict[str, Any], Measurements]:
    """Return what a result file says, and its measurements.

    Raises ``UserError`` for files without per-task results, or with results of other runs.
    """
    if not (file.is_file() and tasks_file(file).is_file()):
        missing = tasks_file(file) if file.is_file() else file
        raise UserError(
            f"there is no file {missing}", "name a result file that has its tasks beside it"
        )
    values = json.loads(file.read_text())
    measurements = Measurements(partial=values["partial"])
    measurements.rows = [PolicyResult(**row) for row in values.pop("rows")]
    for method, seed, names, scores, tokens in json.loads(
        gzip.decompress(tasks_file(file).read_bytes())
    ):
        pairs = map(HeldOutResult, scores, tokens)
        measurements.tasks[method, seed] = dict(zip(names, pairs, strict=True))
    # Tasks of another run beside a result file would give other claims than its rows.
    for (method, seed), row in {(row.method, row.seed): row for row in measurements.rows}.items():
        tasks = measurements.tasks.get((method, seed), {})
        if len(tasks) != row.n or round(means_of(tasks)[0], 4) != row.score:
            problem = f"the tasks of {method}, seed {seed}, are not those of its row in {file}"
            raise UserError(problem, "take both files of one run")
    return values, measurements


# -- tables ----------------------------------------------------------------------------------------


def show(protocol: Mapping[str, Any], measurements: Measurements, claims: Sequence[Claim]) -> None:
    """Print the tables and, as the last line, one JSON object."""
    commit = f"{protocol['commit'][:12]} {protocol['commit_date']}"
    changed = ", with uncommitted changes" if protocol["changed"] else ""
    contents = "world, gate, claims, margins, controls and tuning settings"
    console().print(f"{contents}: commit {commit}{changed}")
    show_decodes(protocol["decodes"])
    for table in (_results_table(measurements.rows), _means_table(measurements.rows)):
        if table.row_count:
            console(150).print(table)
    columns = ("claim", "holds", "effect", "p", "p (t over seeds)", "tried")
    table = Table(*columns, title="claims", box=None)
    for c in claims:
        # One seed decides nothing, neither for nor against a claim.
        holds = "1 seed" if c.seeds < 2 else "yes" if c.holds else "NO"
        if c.id.removesuffix("_best_decode") in protocol["gate"]["failed"]:
            holds += ", gate failed"
        table.add_row(c.claim, holds, f"{c.effect:+.3f}", f"{c.p}", f"{c.p_seeds}", c.tried)
    console(150).print(table)
    rows = [asdict(row) for row in measurements.rows]
    print(json.dumps({"claims": [asdict(c) for c in claims], "rows": rows}))


def show_decodes(decodes: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the scores of the base by temperature, and the best one."""
    for world, decode in decodes.items():
        scores = ", ".join(f"{name} {score:.3f}" for name, score in decode["scores"].items())
        console().print(
            f"{world}: best decode of the base at temperature {decode['temperature']:g} ({scores})"
        )


def _results_table(rows: Sequence[PolicyResult]) -> Table:
    few = any(r.n < MIN_TASKS for r in rows)
    note = f" (fewer than {MIN_TASKS} tasks: for trying out, not a test)" * few
    table = Table(title=f"held-out results{note}", box=None)
    table.add_column("method", min_width=max((len(r.method) for r in rows), default=0))
    for title in ("seed", "iteration", "temperature", "n", "score", "tokens", "rows", "steps"):
        table.add_column(title, justify="right")
    for title in ("trained tokens", "sampled tokens"):
        table.add_column(title, justify="right")
    for r in rows:
        policy = (r.seed, r.iteration, f"{r.temperature:g}", r.n, f"{r.score:.3f}")
        costs = (f"{r.tokens:.1f}", r.rows, r.steps, r.trained_tokens, r.sampled_tokens)
        table.add_row(r.method, *map(str, (*policy, *costs)))
    return table


def _means_table(rows: Sequence[PolicyResult]) -> Table:
    """Build a table of the other grades: a row for each, a column for each method's newest policies."""
    # At the best decode the columns would not fit; they are in the file.
    newest = {(r.method, r.seed): r for r in rows if not r.method.endswith(BEST)}.values()
    methods = dict.fromkeys(r.method for r in newest if r.grades)
    table = Table("", title="means of each method's newest policies", box=None)
    for method in methods:
        table.add_column(method, justify="right")
    for name in dict.fromkeys(name for r in newest for name in r.grades):
        values = [
            [r.grades[name] for r in newest if r.method == m and name in r.grades] for m in methods
        ]
        table.add_row(name.replace("_", " "), *(f"{fmean(v):.2f}" if v else "" for v in values))
    return table
