"""Read-only queries of a store for the viewer: rollouts of a stage or task, trees, and facts of nodes.

Columns are read by SQL without building trees. A digest is checked for what an answer shows; a damaged row is named in
the answer, and the rest of the answer is not affected. Answers are JSON-able, with ``None`` for missing values.
"""

import functools
import itertools
import json
import math
import operator
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

import psutil
from tokenizers import Tokenizer

from coterie.errors import UserError
from coterie.record import tables
from coterie.record.store import Store
from coterie.record.store_file import explained
from coterie.record.tables import value_of, whole
from coterie.record.tree import hash_of, is_secret

T = TypeVar("T")
Fields = dict[str, Any]
LABEL, ANSWER, TEXT = 80, 200, 2000
"""Maximum numbers of characters of a node's label, an answer in a list, and a turn in the view of a task."""
MAX_TEXTS, MAX_MATCHES = 1000, 1000
"""Maximum number of nodes of a tree whose texts the view of a task has, and of paths that a search returns."""
CHOSEN, REJECTED = 1, 2
"""Bits of the side of a node in selections."""
STAGE = "WHERE r.iteration = :iteration AND r.stage = :stage AND (:task IS NULL OR r.task = :task)"
TURNS = "FROM tree r CROSS JOIN turn t ON t.tree = r.key"
ORDER = "ORDER BY r.task, t.sample, t.position"
"""Order in which parents come before their children."""
SECRET = """instr(t.parts, '"source":"secret:')"""
"""SQL condition of turns with a secret. In the text of a part, these quotes would be escaped."""
LABEL_OF = (
    f"CASE WHEN {SECRET} THEN NULL WHEN json_valid(t.parts) "
    f"THEN replace(substr(json_extract(t.parts, '$[#-1].text'), 1, {LABEL}), char(10), ' ') END"
)
IN, IN_BLOBS = (
    f"IN (SELECT {value} FROM json_each(:nodes))" for value in ("value", "unhex(value)")
)
AMONG = f"AND (:nodes IS NULL OR {{}} {IN})"
KEY = ("iteration", "stage", "role", "updates", "position")
"""Key of a training row."""
ROW = ", ".join(
    (*KEY, "step, origin, nullif(lower(hex(leaf)), '') AS leaf, agent, segment, "
    "nullif(lower(hex(turn)), '') AS turn, context, side, pair, weight, tokens")
)  # fmt: skip
"""Columns of a training row without its numbers."""
ROWS = "FROM trained JOIN optimizer_step s ON s.key = trained.optimizer_step"
FACTS = ("selected", "left_out", "trained")
COLUMNS = (
    "task", "sample", "leaf", "score", "reward", "tokens", "turns", "cut_off", "reason", "answer", "failure", *FACTS
)  # fmt: skip
"""Columns of rollouts."""
REWARDS = ("total", "reward")
"""Names of credit, before a colon, that make the reward of a rollout."""
SAMPLED = "length(t.ids) / 4 * (t.logprobs IS NOT NULL)"
"""SQL expression of the number of sampled tokens of a turn."""
Sums = tuple[int, int, tuple[int, int, str | None], str]
"""Sums of a path: tokens, turns, (sides, number of training rows, last reason to leave it out), and its sample."""


def rounded(values: Iterable[float | None]) -> list[float | None]:
    """Return numbers with 5 significant digits, and ``None`` for those that are not finite."""
    values = [*values]
    # Most columns of a list have few different values.
    distinct = {value for value in values if value is not None}
    rounded_values = {
        value: float(f"{value:.5g}") if math.isfinite(value) else None for value in distinct
    }
    return [None if value is None else rounded_values[value] for value in values]


def along(
    nodes: Mapping[str, Fields], values: Mapping[str, T], join: Callable[[T, T], T]
) -> dict[str, T]:
    """Return the values of nodes, each joined with those of its ancestors. Parents come first in ``nodes``."""
    joined = dict(values)
    for node, fields in nodes.items():
        if (parent := fields["parent"]) in joined:
            above = joined[parent]
            joined[node] = join(above, joined[node]) if node in joined else above
    return joined


def path_to(nodes: Mapping[str, Fields], leaf: str | None) -> list[str]:
    """Return the root (or the id of a missing turn) and the turns from there to a leaf."""
    path, node = list[str](), leaf
    # A damaged store may have a circle.
    while node and node in nodes and len(path) <= len(nodes):
        path.append(node)
        node = nodes[node]["parent"]
    return [node, *reversed(path)] if node else []


def merged(facts: Mapping[str, Mapping[str, list[Fields]]], nodes: Collection[str]) -> Fields:
    return {
        name: [fact for node in nodes for fact in of.get(node, ())] for name, of in facts.items()
    }


def _values(scope: Fields, only: Collection[str] | None) -> Fields:
    return {**scope, "nodes": None if only is None else json.dumps(list(only))}


class Browser:
    """Answers about one store, which a run may write meanwhile. Writes nothing into the run folder.

    Args:
        file: The store.
        tokenizers: Files ``tokenizer.json`` of the run's models, the most likely first.
        secrets: Include secrets of tasks, and prompts that contain them.
    """

    def __init__(
        self, file: Path, tokenizers: Iterable[Path] = (), *, secrets: bool = False
    ) -> None:
        self.file, self.secrets = file.absolute(), secrets
        self._tokenizer_files, self._tokenizers = iter(tokenizers), dict[str, Tokenizer]()
        self._files = ExitStack()
        self._state: tuple[int, int] | None = None
        self._db: sqlite3.Connection | None = None
        self._snapshot: sqlite3.Connection | None = None
        self.damaged: list[str] = []
        self.paths: dict[str, Any] = {}
        """Last paths that :mod:`~coterie.record.lineage` has read."""

    def tokenizers(self) -> Iterator[Tokenizer]:
        """Yield the tokenizers, the most likely first; a file is read when the ones before it do not fit."""
        yield from [*self._tokenizers.values()]
        for file in self._tokenizer_files:
            # Checkpoints of several roles often have the same tokenizer, which takes a second to read.
            if (name := hash_of(data := file.read_bytes())) not in self._tokenizers:
                self._tokenizers[name] = Tokenizer.from_buffer(data)
                yield self._tokenizers[name]

    def close(self) -> None:
        self._files.close()
        self._db = None

    @property
    def db(self) -> sqlite3.Connection:
        """Connection to the current file. Raises ``UserError`` for a missing or foreign file."""
        if not self.file.is_file():
            raise UserError(f"there is no store at {self.file}", "check the path of the run folder")
        state = self.quiet_state()
        if self._db is None or self._state != state:
            self.close()
            with explained(self.file):
                # An immutable file may be on a read-only disk, and SQLite makes no files beside it. It then sees no
                # later change, so a change of the file opens it again.
                uri = f"{self.file.as_uri()}?mode=ro{'&immutable=1' * (state is not None)}"
                db = sqlite3.connect(uri, uri=True, isolation_level=None)
                self._files.enter_context(closing(db))
                tables.prepare(db, self.file, read_only=True, check=False)
            self._db, self._state = db, state
        return self._db

    @property
    def store(self) -> Store:
        return Store(self.file, self.db, ExitStack(), False)

    def quiet_state(self) -> tuple[int, int] | None:
        """Return what changes whenever the content does; ``None`` if there are commits in a WAL file."""
        wal = self.file.with_name(f"{self.file.name}-wal")
        return None if wal.is_file() and wal.stat().st_size else self._changed()

    def _changed(self) -> tuple[int, int]:
        stat = self.file.stat()
        return stat.st_mtime_ns, stat.st_size

    def version(self) -> str:
        """Return a text that changes with every commit to the store."""
        (count,) = self.db.execute("PRAGMA data_version").fetchone()
        return f"{self._changed()[0]}-{count}"

    def is_written(self) -> bool:
        """Return True if a process that opened the store to write it is running."""
        lock = self.file.with_name(f"{self.file.name}.lock")
        pid = lock.read_text("ascii") if lock.is_file() else ""
        return pid.isdecimal() and psutil.pid_exists(int(pid))

    def answer(self, question: Callable[..., Fields], *values: Any) -> Fields:
        """Return ``question(self, *values)``, read from one state of the store, with the names of its damaged rows.

        Questions are methods and functions of :mod:`~coterie.record.lineage`; they raise ``KeyError`` for an unknown
        node, task or row.
        """
        self.damaged = []
        with explained(self.file):
            self._snapshot = self.db
            self._snapshot.execute("BEGIN")
        try:
            return {**question(self, *values), "damaged": list(dict.fromkeys(self.damaged))}
        finally:
            self._snapshot.execute("ROLLBACK")
            self._snapshot = None

    def fetch(self, find: str, values: Any = ()) -> list[Any]:
        with explained(self.file):
            return (self._snapshot or self.db).execute(find, values).fetchall()

    def records(self, find: str, values: Any, name: str = "") -> list[Fields]:
        """Return rows by column. A row with a false column ``whole`` is not returned, but named as damaged."""
        with explained(self.file):
            cursor = (self._snapshot or self.db).execute(find, values)
            columns = [column[0] for column in cursor.description]
            records = [dict(zip(columns, row, strict=True)) for row in cursor]
        if "whole" not in columns:
            return records
        self.damaged += [
            f"{name} {r[columns[0]]} differs from its digest" for r in records if not r["whole"]
        ]
        return [row for row in records if row.pop("whole")]

    # -- rollouts of a stage or task, and trees ---------------------------------------------------

    def tasks(self, iteration: int, stage: str, only: Collection[str] | None = None) -> Fields:
        """Return the rollouts of a stage (of the tasks in ``only``) as columns, in order of task and sample."""
        scope = {"iteration": iteration, "stage": stage, "task": None}
        rollouts = [*self.rollouts(scope), *self._single_turns(scope)]
        if only is not None:
            rollouts = [rollout for rollout in rollouts if rollout["task"] in only]
        numbers = {name: n for n, name in enumerate(dict.fromkeys(r["task"] for r in rollouts))}
        answer: Fields = {name: [rollout[name] for rollout in rollouts] for name in COLUMNS}
        for group in ("credit", "metrics"):
            numbers_of = [rollout[group] for rollout in rollouts]
            of_any: Fields = dict(itertools.chain.from_iterable(map(dict.items, numbers_of)))
            keys = [key for key, value in of_any.items() if not isinstance(value, str)]
            answer[group] = {key: rounded(of.get(key) for of in numbers_of) for key in keys}
        answer["task"] = [numbers[name] for name in answer["task"]]
        return {**scope, **answer, "tasks": list(numbers)}

    def task(self, iteration: int, stage: str, task: str) -> Fields:
        """Return a task's rollouts, with their paths, selections, training rows and reasons for leaving them out."""
        scope = {"iteration": iteration, "stage": stage, "task": task}
        nodes, root = self.nodes(scope), self.root(scope)
        rollouts, credit = self.rollouts(scope), self.credit(scope)
        if not rollouts and not root:
            raise KeyError(f"{iteration}/{stage} has no task {task!r}")
        ids = [root, *nodes]
        facts, numbers = self.facts(ids), {node: number for number, node in enumerate(ids)}
        for rollout in rollouts:
            # Thousands of paths of a tree have most of their turns in common.
            rollout["path"] = [numbers[node] for node in path_to(nodes, rollout["leaf"])[1:]]
        turns = dict[str, Fields]()
        find = f"SELECT t.id, t.parts, {whole('turn', 't')} AS whole {TURNS} {STAGE} {ORDER}"
        for row in self.records(find, scope, "turn") if len(nodes) <= MAX_TEXTS else ():
            parts = value_of(tables.PARTS, row["parts"])
            is_hidden = not self.secrets and any(map(is_secret, parts))
            text = None if is_hidden else "".join(part.text for part in parts)
            excerpt = {"text": text and text[:TEXT], "clipped": len(text or "") > TEXT}
            turns[row["id"]] = {**nodes[row["id"]], **excerpt, "credit": credit.get(row["id"], {})}
        # A tree branches after a turn that a model sampled. The rollouts of a group may share a first observation.
        children = Counter(fields["parent"] for fields in nodes.values())
        branches = any(children[node] > 1 and fields["tokens"] for node, fields in nodes.items())
        pairs = [s for s in merged(facts, nodes)["selected"] if s["side"] == "chosen"]
        find = f"SELECT id, public, {whole('task')} AS whole FROM task WHERE id = ?"
        public = self.records(find, (task,), "task")
        return {
            **scope, "root": root, "nodes": len(nodes), "rollouts": rollouts, "turns": turns, "pairs": pairs,
            "ids": ids, "facts": {k: {n: of[n] for n in ids if n in of} for k, of in facts.items()},
            "is_tree": branches or any(children[pair["node"]] for pair in pairs),
            "public": json.loads(public[0]["public"]) if public else {}, "secrets": self.secrets_of(task),
            "agents": list(dict.fromkeys(n["speaker"] for n in nodes.values() if n["kind"] == "agent")),
        }  # fmt: skip

    def tree(self, iteration: int, stage: str, task: str) -> Fields:
        """Return the nodes of a task's tree as parallel arrays in depth-first order; node 0 is the root."""
        scope = {"iteration": iteration, "stage": stage, "task": task}
        root, children = self.root(scope), dict[str, list[str]]()
        if not root:
            raise KeyError(f"{iteration}/{stage} has no tree of task {task!r}")
        nodes = {root: {"parent": "", "kind": "", "speaker": "", "tokens": 0}, **self.nodes(scope)}
        for node, fields in [*nodes.items()][1:]:
            # A turn whose parent is missing is shown below the root.
            fields["parent"] = fields["parent"] if fields["parent"] in nodes else root
            children.setdefault(fields["parent"], []).append(node)
        order, waiting = list[str](), [root]
        while waiting:
            order.append(waiting.pop())
            waiting += reversed(children.get(order[-1], []))
        index = {node: number for number, node in enumerate(order)}
        outcomes = {outcome["leaf"]: outcome for outcome in self.outcomes(scope)}
        graded = {node: o["score"] for node, o in outcomes.items() if o["score"] is not None}
        totals = {node: graded.get(node, 0.0) for node in order}
        counts = {node: int(node in graded) for node in order}
        for node in reversed(order[1:]):  # children come before their parents
            totals[nodes[node]["parent"]] += totals[node]
            counts[nodes[node]["parent"]] += counts[node]
        credit, sides, reasons = self.credit(scope), self.sides(), self.reasons()
        speakers = list(dict.fromkeys((n["kind"], n["speaker"]) for n in nodes.values()))
        depths = along(nodes, dict.fromkeys(nodes, 1), operator.add)
        labels = dict(self.fetch(f"SELECT t.id, {LABEL_OF} {TURNS} {STAGE}", scope))
        entries = list[Fields]()
        for node in order:
            fields, numbers, outcome = nodes[node], credit.get(node, {}), outcomes.get(node, {})
            named = [v for k, v in numbers.items() if k.partition(":")[0] in ("value", "return")]
            mean = totals[node] / counts[node] if counts[node] else None
            entries.append({
                "id": node, "parent": index.get(fields["parent"], -1), "depth": depths[node] - 1,
                "speaker": speakers.index((fields["kind"], fields["speaker"])) - 1, "tokens": fields["tokens"],
                "label": labels.get(node, ""), "value": rounded([*named, mean])[0],
                "visits": numbers.get("visits", counts[node]), "score": outcome.get("score"),
                "reason": outcome.get("reason"), "sample": fields["sample"] if outcome else None,
                "side": sides.get(node, 0), "left_out": reasons.get(node),
            })  # fmt: skip
        names = dict.fromkeys(name for numbers in credit.values() for name in numbers)
        columns: Fields = {name: [entry[name] for entry in entries] for name in entries[0]}
        columns["credit"] = {k: rounded(credit.get(n, {}).get(k) for n in order) for k in names}
        return {**scope, "root": root, "speakers": speakers[1:], **columns}

    def search(self, iteration: int, stage: str, text: str) -> Fields:
        """Return paths with a turn that contains a text, whatever the case of ASCII letters, and tasks like this."""
        scope = {"iteration": iteration, "stage": stage, "task": None}
        # The stored text is JSON.
        text = json.dumps(text, ensure_ascii=False)[1:-1]
        scope["text"] = f"%{text.replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"
        like = "LIKE :text ESCAPE '!'"
        find = f"SELECT t.id, 1 {TURNS} {STAGE} AND (t.parts || t.calls || t.results {like})"
        matches = dict(self.fetch(find + f" AND NOT {SECRET}" * (not self.secrets), scope))
        below = along(self.nodes(scope), matches, max)
        leaves = [outcome["leaf"] for outcome in self.outcomes(scope) if outcome["leaf"] in below]
        of_task = f"r.task {like} OR k.public {like}"
        find = (
            f"SELECT DISTINCT k.id FROM item r JOIN task k ON k.id = r.task {STAGE} AND ({of_task})"
        )
        tasks = [task for (task,) in self.fetch(find, scope)]
        return {"leaves": leaves[:MAX_MATCHES], "tasks": tasks, "more": len(leaves) > MAX_MATCHES}

    def scores(self, iteration: int, stage: str) -> Fields:
        """Return score and leaf of the first graded rollout of each task."""
        outcomes = self.outcomes({"iteration": iteration, "stage": stage, "task": None})
        graded = [o for o in reversed(outcomes) if o["score"] is not None]
        return {"tasks": {o["task"]: (o["score"], o["leaf"]) for o in graded}}

    def nodes(self, scope: Fields) -> dict[str, Fields]:
        """Return turns by id, without their content, parents before their children."""
        columns = f"t.id, t.parent, t.sample, t.kind, t.speaker, {SAMPLED}"
        find = f"SELECT {columns} {TURNS} {STAGE} {ORDER}"
        # Not by `records`, which takes twice the time; a stage may have 100,000 turns.
        return {
            id_: {"parent": parent, "sample": sample, "kind": kind, "speaker": speaker, "tokens": tokens}
            for id_, parent, sample, kind, speaker, tokens in self.fetch(find, scope)
        }  # fmt: skip

    def root(self, scope: Fields) -> str:
        """Return the root of a task's tree; empty if all of its rollouts failed."""
        return "".join(root for (root,) in self.fetch(f"SELECT r.root FROM tree r {STAGE}", scope))

    def outcomes(self, scope: Fields, only: Collection[str] | None = None) -> list[Fields]:
        find = (
            "SELECT o.leaf, r.task, o.sample AS number, o.reason, o.truncated AS cut_off, o.score, "
            f"substr(o.answer, 1, {ANSWER}) AS answer, {whole('outcome', 'o')} AS whole "
            f"FROM tree r CROSS JOIN outcome o ON o.tree = r.key {STAGE} {AMONG.format('o.leaf')}"
        )
        values = _values(scope, only)
        return self.records(f"{find} ORDER BY r.task, o.sample, o.leaf", values, "outcome of leaf")

    def sums(self, scope: Fields, only: Collection[str] | None = None) -> dict[str, Sums]:
        """Return the sums over the path to each turn (those in ``only``, a path)."""
        sides, reasons = self.sides(), self.reasons()
        find = "SELECT lower(hex(leaf)), count(*) FROM trained WHERE leaf NOTNULL GROUP BY leaf"
        trained = dict(self.fetch(find))
        marked, sums = sides.keys() | reasons.keys() | trained.keys(), dict[str, Sums]()
        columns = f"t.id, t.parent, t.sample, {SAMPLED}"
        find = f"SELECT {columns} {TURNS} {STAGE} {AMONG.format('t.id')} {ORDER}"
        for id_, parent, sample, count in self.fetch(find, _values(scope, only)):
            tokens, turns, marks, _ = sums.get(parent) or (0, 0, (0, 0, reasons.get(parent)), "")
            if id_ in marked:
                side, rows = marks[0] | sides.get(id_, 0), marks[1] + trained.get(id_, 0)
                marks = (side, rows, reasons.get(id_, marks[2]))
            sums[id_] = (tokens + count, turns + 1, marks, sample)
        return sums

    def rollouts(self, scope: Fields, path: Sequence[str] | None = None) -> list[Fields]:
        """Return the rollouts of a stage or task with the columns of :data:`COLUMNS`.

        Args:
            scope: Iteration, stage and task.
            path: Turns to the leaf of the only rollout; ``None`` for all.
        """
        only, sums = path and path[-1:], self.sums(scope, path)
        credit, outcomes = self.credit(scope, only), self.outcomes(scope, only)
        columns = f"r.sample, r.task, r.failure, r.metrics, {whole('item', 'r')} AS whole"
        find = f"SELECT {columns} FROM item r {STAGE} AND r.task != '' {AMONG.format('r.sample')}"
        missing = (None, None, (0, 0, None), "")
        for outcome in outcomes:
            sample = sums.get(outcome["leaf"], missing)[3]
            outcome["sample"] = sample or f"{outcome['number']:04d}"
        samples = only and [outcome["sample"] for outcome in outcomes]
        stored = self.records(find, _values(scope, samples), "item of sample")
        metrics = json.loads(f"[{','.join(item['metrics'] for item in stored)}]")
        items = {
            (item["task"], item["sample"]): {**item, "metrics": numbers, "credit": {}}
            for item, numbers in zip(stored, metrics, strict=True)
        }
        names = self.fetch("SELECT name FROM credit_kind GROUP BY name ORDER BY min(key)")
        rewards = [name for (name,) in names if name.partition(":")[0] in REWARDS]
        rollouts = list[Fields]()
        for outcome in outcomes:
            leaf, sample = outcome["leaf"], outcome["sample"]
            if leaf not in sums:
                self.damaged.append(f"turn {leaf} is missing")
            tokens, turns, (side, trained, reason), _ = sums.get(leaf, missing)
            item = items.pop((outcome["task"], sample), {"failure": None, "metrics": {}})
            numbers = credit.get(leaf, {})
            totals = [numbers[name] for name in rewards if name in numbers]
            reward = sum(totals) / len(totals) if totals else item["metrics"].get("reward")
            rollouts.append({
                **outcome, **item, "reward": reward, "credit": numbers, "tokens": tokens, "turns": turns,
                "selected": side, "trained": trained, "left_out": reason,
            })  # fmt: skip
        # A failed rollout has no leaf.
        failed = [item for item in items.values() if item["failure"] is not None]
        rollouts += [{**dict.fromkeys(COLUMNS), **item} for item in failed]
        return sorted(rollouts, key=operator.itemgetter("task", "sample"))

    def _single_turns(self, scope: Fields) -> list[Fields]:
        """Return a row without a leaf for each task whose tree has turns, such as candidates, but no rollout."""
        no_outcome = "AND NOT EXISTS (SELECT 1 FROM outcome o WHERE o.tree = r.key)"
        nodes = dict[str, list[str]]()
        find = f"SELECT r.task, r.root, t.id {TURNS} {STAGE} {no_outcome} ORDER BY r.task"
        for task, root, turn in self.fetch(find, scope):
            nodes.setdefault(task, [root]).append(turn)
        facts, rows = self.facts(itertools.chain(*nodes.values())), list[Fields]()
        for task, ids in nodes.items():
            of_task = merged(facts, ids)
            sides = [REJECTED if s["side"] == "rejected" else CHOSEN for s in of_task["selected"]]
            rows.append({
                **dict.fromkeys(COLUMNS), "task": task, "sample": "", "credit": {}, "metrics": {},
                "selected": functools.reduce(operator.or_, sides, 0), "trained": len(of_task["trained"]),
                "left_out": next((entry["reason"] for entry in of_task["left_out"]), None),
            })  # fmt: skip
        return rows

    def secrets_of(self, task: str) -> dict[str, str] | None:
        if not self.secrets:
            return None
        find = f"SELECT name, text, {whole('secret')} AS whole FROM secret WHERE task = ?"
        return {row["name"]: row["text"] for row in self.records(find, (task,), "secret")}

    # -- facts of nodes: credit, selections, reasons and training rows -------------------------------

    def credit(
        self, scope: Fields, only: Collection[str] | None = None
    ) -> dict[str, dict[str, float]]:
        """Return the credit of nodes (those in ``only``) by name; of several settings, the last.

        In the list of a stage, only digests of rewards are checked: all would take a fifth of its time.
        """
        is_reward = f"substr(k.name, 1, instr(k.name || ':', ':') - 1) IN {REWARDS}"
        check = f"CASE WHEN :task NOTNULL OR {is_reward} THEN {whole('credit', 'c')} ELSE 1 END"
        find = (
            f"SELECT c.node, k.name, c.value, {check} FROM credit_kind k CROSS JOIN tree r "
            f"CROSS JOIN credit c ON (c.kind, c.tree) = (k.key, r.key) {STAGE} {AMONG.format('c.node')} ORDER BY k.key"
        )
        credit = dict[str, dict[str, float]]()
        # Not by `records`, as in `nodes`.
        for node, name, value, is_whole in self.fetch(find, _values(scope, only)):
            if is_whole:
                credit.setdefault(node, {})[name] = value
            else:
                self.damaged.append(f"credit of node {node} differs from its digest")
        return credit

    def sides(self) -> dict[str, int]:
        sides = dict[str, int]()
        for leaf, rejected in self.fetch("SELECT leaf, rejected FROM selection"):
            for node, side in ((leaf, CHOSEN), (rejected, REJECTED)):
                sides[node] = sides.get(node, 0) | side
        return sides

    def reasons(self) -> dict[str, str]:
        """Return the first reason why a node was not trained on. Failed rollouts have no node."""
        find = "SELECT lower(hex(node)), reason FROM left_out WHERE reason != 'samples_failed'"
        return dict(self.fetch(f"{find} ORDER BY item DESC, position DESC"))

    def facts(self, nodes: Iterable[str]) -> dict[str, dict[str, list[Fields]]]:
        """Return selections, reasons and training rows by node."""
        values = {"nodes": json.dumps(list(nodes))}
        facts = {name: dict[str, list[Fields]]() for name in FACTS}
        find = (
            "SELECT s.leaf, s.rejected, i.iteration, i.stage, s.agent, s.context, s.weight "
            "FROM selection s JOIN item i ON i.key = s.item "
            f"WHERE s.leaf {IN} OR s.rejected {IN} ORDER BY s.item, s.position"
        )
        for row in self.records(find, values):
            leaf, rejected = row.pop("leaf"), row.pop("rejected")
            for side, node, against in (("chosen", leaf, rejected), ("rejected", rejected, leaf)):
                fact = {**row, "side": side if rejected else "", "node": node, "against": against}
                facts["selected"].setdefault(node, []).append(fact)
        find = (
            "SELECT lower(hex(l.node)) AS node, i.iteration, i.stage, l.agent, l.reason, l.number FROM left_out l "
            f"JOIN item i ON i.key = l.item WHERE l.node {IN_BLOBS} ORDER BY l.item, l.position"
        )
        for row in self.records(find, values):
            facts["left_out"].setdefault(row["node"], []).append(row)
        find = f"SELECT {ROW} {ROWS} WHERE trained.leaf {IN_BLOBS} ORDER BY {', '.join(KEY)}"
        for row in self.records(find, values):
            facts["trained"].setdefault(row["leaf"], []).append(row)
        return facts
