"""Reads of the record from the tables of a store.

Functions take a connection and return dataclasses of the record, in an order that does not depend on the order in which
items finished.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from coterie.record.tables import (
    CALLS,
    MESSAGES,
    METRICS,
    PARTS,
    PUBLIC,
    READERS,
    RESULTS,
    TOOLS,
    BrokenRecord,
    ids_of,
    logprobs_of,
    value_of,
    whole,
)
from coterie.record.tree import (
    Credit,
    Ending,
    Item,
    ItemKey,
    Outcome,
    Secret,
    Selection,
    Task,
    Tree,
    hash_of,
)
from coterie.record.turn import Request, Sample, Speaker, Tool, ToolCall, ToolResult, Turn

NONE = "[]"
"""JSON of no calls or results, as in most turns."""
TreeKey = tuple[int, int, str, str]
"""A tree's (key, iteration, stage, task)."""


def task(db: sqlite3.Connection, id_: str) -> Task | None:
    where = f"task {id_}"
    rows = db.execute(f"SELECT public, {whole('task', 'task')} FROM task WHERE id = ?", (id_,))
    row = next(_checked(rows, where), None)
    if row is None:
        return None
    secrets = _checked(
        db.execute(
            f"SELECT name, text, readers, {whole('secret', 'secret')} FROM secret WHERE task = ?",
            (id_,),
        ),
        where,
    )
    return Task(
        id_,
        value_of(PUBLIC, row[0]),
        {
            name: Secret(text, name=name, readers=value_of(READERS, readers))
            for name, text, readers in secrets
        },
    )


def task_ids(db: sqlite3.Connection) -> list[str]:
    return [id_ for (id_,) in db.execute("SELECT id FROM task ORDER BY id")]


def iterations(db: sqlite3.Connection, stage: str) -> list[int]:
    """Return the iterations with finished items of a stage, sorted."""
    find = "SELECT DISTINCT iteration FROM item WHERE stage = ? ORDER BY iteration"
    return [iteration for (iteration,) in db.execute(find, (stage,))]


def tasks_of(db: sqlite3.Connection, iteration: int, stage: str) -> list[str]:
    """Return the ids of tasks with finished items of a stage, sorted."""
    find = "SELECT DISTINCT task FROM item WHERE (iteration, stage) = (?, ?) AND task != '' ORDER BY task"
    return [id_ for (id_,) in db.execute(find, (iteration, stage))]


def tree_keys(
    db: sqlite3.Connection,
    iteration: int | None = None,
    stage: str | None = None,
    task_: str | None = None,
) -> list[TreeKey]:
    """Return the trees of an iteration, stage and task, sorted; ``None`` matches all."""
    where, values = _where("tree", iteration=iteration, stage=stage, task=task_)
    find = f"SELECT key, iteration, stage, task FROM tree {where} ORDER BY iteration, stage, task"
    return db.execute(find, values).fetchall()


def tree(db: sqlite3.Connection, row: TreeKey) -> Tree:
    """Return a tree with turns in the order of items, then in order within each item."""
    key, iteration, stage, task_ = row
    result = Tree(task_, stage, iteration)
    rows = db.execute(
        "SELECT id, agent, parent, previous, keep, ids, keep_messages, messages, tools, "
        f"{whole('request', 'r')} AND (tools IS NULL OR {whole('toolset', 's')}) "
        "FROM request r LEFT JOIN toolset s ON s.key = toolset WHERE tree = ? ORDER BY id",
        (key,),
    )
    for values in _checked(rows, _name(row)):
        request = _request(*values)
        result.requests[request.id] = request
    return _fill(result, (turn for _, turn in turns(db, row)), db, row)


def outline(db: sqlite3.Connection, row: TreeKey) -> Tree:
    """Return a tree whose turns have only speakers and parts, no tokens, samples or requests."""
    key, iteration, stage, task_ = row
    result = Tree(task_, stage, iteration)
    rows = db.execute(
        f"SELECT id, parent, kind, speaker, parts, {whole('turn', 'turn')} FROM turn WHERE tree = ? "
        "ORDER BY sample, position",
        (key,),
    )
    outlines = (
        Turn(id_, parent, Speaker(kind, speaker), value_of(PARTS, parts))
        for id_, parent, kind, speaker, parts in _checked(rows, _name(row))
    )
    return _fill(result, outlines, db, row)


def _fill(tree_: Tree, turns_: Iterable[Turn], db: sqlite3.Connection, row: TreeKey) -> Tree:
    try:
        for turn in turns_:
            tree_.add(turn)
    except KeyError as error:
        raise BrokenRecord(f"a turn of {_name(row)} is missing: {error}") from error
    for outcome in outcomes(db, row):
        tree_.end(outcome)
    return tree_


def _name(row: TreeKey) -> str:
    return f"item {row[1]}/{row[2]}/{row[3]}"


def _checked(rows: Iterable[Any], where: str) -> Iterator[Any]:
    """Yield rows without their last column, the digest check; raise :class:`BrokenRecord` if it is false."""
    for *values, is_whole in rows:
        if not is_whole:
            raise BrokenRecord(f"a row of {where} differs from its digest")
        yield values


def size(db: sqlite3.Connection, iteration: int, stage: str) -> tuple[int, int]:
    """Return the numbers of trees and turns of a stage."""
    where, values = _where("tree", iteration=iteration, stage=stage)
    find = f"SELECT count(DISTINCT tree.key), count(turn.key) FROM tree LEFT JOIN turn ON tree = tree.key {where}"
    trees, turns_ = db.execute(find, values).fetchone()
    return trees, turns_


def calls(db: sqlite3.Connection) -> Iterator[tuple[ToolCall, ToolResult]]:
    rows = db.execute(
        f"SELECT c.calls, r.results, {whole('turn', 'c')} AND {whole('turn', 'r')} "
        "FROM turn r JOIN turn c ON c.id = r.parent WHERE r.results != ? AND c.calls != ?",
        (NONE, NONE),
    )
    for call_text, result_text in _checked(rows, "the tool calls"):
        results = {result.call_id: result for result in value_of(RESULTS, result_text)}
        for call in value_of(CALLS, call_text):
            if call.id in results:
                yield call, results[call.id]


def scores(db: sqlite3.Connection, iteration: int, stage: str) -> dict[str, float | None]:
    where, values = _where("tree", iteration=iteration, stage=stage)
    rows = db.execute(
        f"SELECT leaf, score, {whole('outcome', 'o')} FROM tree JOIN outcome o ON o.tree = key {where}",
        values,
    )
    return dict(_checked(rows, f"item {iteration}/{stage}"))


def turns(db: sqlite3.Connection, row: TreeKey) -> Iterator[tuple[str, Turn]]:
    """Yield the turns of a tree in order, each with the sample name of its item."""
    rows = db.execute(
        f"SELECT *, {whole('turn', 'turn')} FROM turn WHERE tree = ? ORDER BY sample, position",
        row[:1],
    )
    for _, _, sample, _, *values, _ in _checked(rows, _name(row)):
        yield sample, _turn(*values)


def outcomes(db: sqlite3.Connection, row: TreeKey) -> list[Outcome]:
    """Return the outcomes of a tree, in order of sample."""
    rows = db.execute(
        f"SELECT leaf, sample, reason, truncated, answer, score, {whole('outcome', 'outcome')} "
        "FROM outcome WHERE tree = ? ORDER BY sample, leaf",
        row[:1],
    )
    return [
        Outcome(leaf, sample, Ending(reason, bool(truncated)), answer, score)
        for leaf, sample, reason, truncated, answer, score in _checked(rows, _name(row))
    ]


def blob(db: sqlite3.Connection, hash_: str) -> bytes | None:
    """Return the bytes with this SHA-256, if any."""
    row = db.execute("SELECT data FROM blob WHERE hash = ?", (hash_,)).fetchone()
    if row and hash_of(row[0]) != hash_:
        raise BrokenRecord(f"image {hash_} differs from its digest")
    return row[0] if row else None


def credit_of_tree(db: sqlite3.Connection, key: int) -> list[Credit]:
    rows = db.execute(
        f"SELECT c.node, k.name, c.value, k.settings, {whole('credit', 'c')} FROM credit_kind k "
        "CROSS JOIN credit c ON (c.kind, c.tree) = (k.key, ?) ORDER BY k.settings, k.name, c.node",
        (key,),
    )
    return [Credit(*row) for row in _checked(rows, "credit")]


def credit(
    db: sqlite3.Connection, settings: str, name: str, iteration: int | None, stage: str | None
) -> dict[str, float]:
    """Return one kind of credit on the nodes of an iteration's or stage's trees."""
    where, values = _where("tree", iteration=iteration, stage=stage)
    rows = db.execute(
        f"SELECT c.node, c.value, {whole('credit', 'c')} FROM credit_kind k CROSS JOIN tree CROSS JOIN credit c "
        "ON (k.settings, k.name) = (?, ?) AND (c.kind, c.tree) = (k.key, tree.key) "
        f"{where} ORDER BY tree.iteration, tree.stage, tree.task, c.node",
        (settings, name, *values),
    )
    return dict(_checked(rows, f"credit {name}"))


def credit_of_nodes(
    db: sqlite3.Connection, settings: str, name: str, nodes: list[str]
) -> dict[str, float]:
    rows = db.execute(
        "WITH node (id) AS (SELECT value FROM json_each(?3)), place (tree, id) AS ("
        "SELECT t.tree, t.id FROM node CROSS JOIN turn t ON t.id = node.id UNION ALL "
        "SELECT t.key, t.root FROM node CROSS JOIN tree t ON t.root = node.id) "
        f"SELECT c.node, c.value, {whole('credit', 'c')} FROM credit_kind k CROSS JOIN place p "
        "CROSS JOIN credit c ON (c.kind, c.tree, c.node) = (k.key, p.tree, p.id) "
        "WHERE (k.settings, k.name) = (?1, ?2)",
        (settings, name, json.dumps(nodes)),
    )
    return dict(_checked(rows, f"credit {name}"))


def items(
    db: sqlite3.Connection,
    iteration: int | None = None,
    stage: str | None = None,
    sample: str | None = None,
    task: str | None = None,
) -> Iterator[tuple[int, Item]]:
    """Yield finished items with their keys in the tables, in the order of :class:`ItemKey`."""
    where, values = _where("item", iteration=iteration, stage=stage, task=task, sample=sample)
    rows = db.execute(
        "SELECT key, iteration, stage, task, sample, failure, metrics, "
        f"{whole('item', 'item')} FROM item {where} ORDER BY iteration, stage, task, sample",
        values,
    )
    for key, *names, failure, metrics, is_whole in rows:
        if not is_whole:
            raise BrokenRecord(f"item {'/'.join(map(str, names))} differs from its digest")
        yield key, Item(ItemKey(*names), failure, value_of(METRICS, metrics))


def item_keys(db: sqlite3.Connection, iteration: int, stage: str) -> set[tuple[str, str]]:
    """Return (task, sample) of the finished items of a stage."""
    find = "SELECT task, sample FROM item WHERE (iteration, stage) = (?, ?)"
    return set(db.execute(find, (iteration, stage)))


def failures(db: sqlite3.Connection, iteration: int | None) -> list[tuple[ItemKey, str]]:
    """Return failed items with their reasons, in the order of :class:`ItemKey`."""
    rows = db.execute(
        "SELECT iteration, stage, task, sample, failure FROM item WHERE failure IS NOT NULL "
        "AND iteration = coalesce(?, iteration) ORDER BY iteration, stage, task, sample",
        (iteration,),
    )
    return [(ItemKey(*names), failure) for *names, failure in rows]


def selections(
    db: sqlite3.Connection, iteration: int | None = None, stage: str | None = None
) -> list[tuple[int, int, str, Selection]]:
    """Return (item, tree, the tree's task, selection), in the order of storing."""
    where, values = _where("item", iteration=iteration, stage=stage)
    rows = db.execute(
        f"SELECT s.item, r.key, r.task, s.leaf, s.agent, s.context, s.weight, s.rejected, {whole('selection', 's')} "
        "FROM item CROSS JOIN selection s ON s.item = item.key JOIN turn t ON t.id = s.leaf "
        f"JOIN tree r ON r.key = t.tree {where} ORDER BY s.item, s.position",
        values,
    )
    checked = _checked(rows, f"the selections of {iteration}/{stage}")
    return [(item, key, task_, Selection(*names)) for item, key, task_, *names in checked]


def _where(table: str, **columns: int | str | None) -> tuple[str, list[int | str]]:
    """Return a WHERE clause on the columns that are not ``None``, and its values."""
    filters = {name: value for name, value in columns.items() if value is not None}
    tests = " AND ".join(f"{table}.{name} = ?" for name in filters)
    return (f"WHERE {tests}" if tests else ""), list(filters.values())


def _request(
    id_: str,
    agent: str,
    parent: str,
    previous: str | None,
    keep: int,
    ids: bytes,
    keep_messages: int,
    messages: str,
    tools: str | None,
) -> Request:
    return Request(
        id_,
        agent,
        parent,
        previous,
        keep,
        ids_of(ids),
        keep_messages,
        value_of(MESSAGES, messages),
        _tools(tools) if tools is not None else (),
    )


@lru_cache(maxsize=64)
def _tools(text: str) -> tuple[Tool, ...]:
    return value_of(TOOLS, text)


def _turn(
    id_: str,
    parent: str,
    kind: Any,
    speaker: str,
    parts: str,
    blob: bytes,
    calls: str,
    results: str,
    author: str,
    draw: int,
    request: str | None,
    truncated: int,
    logprobs: bytes | None,
    *sampled: Any,
) -> Turn:
    ids = ids_of(blob)
    sample = None
    if request is not None and logprobs is not None:
        sample = _sample(request, ids, logprobs, *sampled)
    return Turn(
        id_,
        parent,
        Speaker(kind, speaker),
        value_of(PARTS, parts),
        ids,
        sample,
        value_of(CALLS, calls) if calls != NONE else (),
        value_of(RESULTS, results) if results != NONE else (),
        author,
        draw,
        None if sample else request,
        bool(truncated),
    )


def _sample(
    request: str,
    ids: tuple[int, ...],
    logprobs: bytes,
    finish: Any,
    policy: str,
    version: str,
    seed: str,
    temperature: float,
    top_p: float,
) -> Sample:
    values = logprobs_of(logprobs)
    return Sample(request, ids, values, finish, policy, version, int(seed), temperature, top_p)
