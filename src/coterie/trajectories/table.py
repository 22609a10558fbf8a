"""Writes of the record to the tables of a store, with a check of each reference.

Functions take a connection inside a transaction. They skip equal existing rows, and raise ``ValueError`` for
contradictions.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from coterie.trajectories.calls import Tool, check_calls, in_order
from coterie.trajectories.codec import ids_blob, json_of, logprobs_blob
from coterie.trajectories.credit import Credit
from coterie.trajectories.item import Item, ItemKey
from coterie.trajectories.schema import insert
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Outcome, Tree, hash_of, root_id
from coterie.trajectories.turn import Part, Request, Turn


@dataclass(frozen=True, slots=True)
class TreeRow:
    """Key of a tree in the tables, and the id of its root."""

    key: int
    root: str
    toolsets: dict[int, tuple[tuple[Tool, ...], int]] = field(default_factory=dict, compare=False)
    """Cache of written tool sets by ``id``, since most prompts share one."""


def records(tree: Tree) -> Iterator[Request | Turn]:
    """Yield turns in order, each request before the first turn that needs it."""
    waiting = dict(tree.requests)
    for turn in tree.turns.values():
        if turn.prompt is not None and turn.prompt in waiting:
            yield waiting.pop(turn.prompt)
        yield turn
    yield from waiting.values()


def add_task(db: sqlite3.Connection, task: Task) -> None:
    """Write a task, whose public fields must be plain JSON."""
    public = _public(task)
    secrets = [
        (task.id, name, secret.reveal(min(secret.readers)), json_of(secret.readers))
        for name, secret in sorted(task.secrets.items())
    ]
    old = db.execute("SELECT public FROM task WHERE id = ?", (task.id,)).fetchone()
    if old:
        stored = db.execute(
            "SELECT task, name, text, readers FROM secret WHERE task = ? ORDER BY name", (task.id,)
        )
        if old != (public,) or stored.fetchall() != secrets:
            raise ValueError(f"the store already has another task with id {task.id!r}")
        return
    insert(db, "task", (task.id, public))
    for secret in secrets:
        insert(db, "secret", secret)


def add_item(db: sqlite3.Connection, item: Item) -> None:
    """Write an item that is not finished yet."""
    if item_row(db, item.key) is not None:
        raise ValueError(f"{item.key} is finished already")
    key = (item.key.iteration, item.key.stage, item.key.task, item.key.sample)
    insert(db, "item", (None, *key, item.failure, json_of(item.metrics)))


def item_row(db: sqlite3.Connection, key: ItemKey) -> int | None:
    """Return the key of a finished item in the tables; ``None`` if it is not finished."""
    row = db.execute(
        "SELECT key FROM item WHERE (iteration, stage, task, sample) = (?, ?, ?, ?)",
        (key.iteration, key.stage, key.task, key.sample),
    ).fetchone()
    return row[0] if row else None


def add_blob(db: sqlite3.Connection, data: bytes) -> str:
    """Write image bytes and return their SHA-256."""
    hash_ = hash_of(data)
    db.execute("INSERT OR IGNORE INTO blob VALUES (?, ?)", (hash_, data))
    return hash_


def add_tree(db: sqlite3.Connection, iteration: int, stage: str, task: str) -> TreeRow:
    root = root_id(iteration, stage, task)
    row = db.execute("SELECT key FROM tree WHERE root = ?", (root,)).fetchone()
    if row:
        return TreeRow(row[0], root)
    key = db.execute(
        "INSERT INTO tree (iteration, stage, task, root) VALUES (?, ?, ?, ?)",
        (iteration, stage, task, root),
    ).lastrowid
    assert key is not None, "an insert returns a row id"
    return TreeRow(key, root)


def add_request(db: sqlite3.Connection, tree: TreeRow, request: Request) -> None:
    if _has_request(db, tree, request.id):
        return
    _check_node(db, tree, request.parent, f"parent of request {request.id}")
    if request.previous is not None:
        _check_node(db, tree, request.previous, f"previous turn of request {request.id}")
    for message in request.messages:
        _check_images(db, message.parts, f"request {request.id}")
    insert(
        db,
        "request",
        (
            tree.key,
            _toolset(db, tree, request.tools),
            request.id,
            request.agent,
            request.parent,
            request.previous,
            request.keep,
            ids_blob(request.ids),
            request.keep_messages,
            json_of(request.messages),
        ),
    )


def add_turn(db: sqlite3.Connection, tree: TreeRow, turn: Turn, sample: str, position: int) -> None:
    """Write the turn at ``position`` of the item ``sample``, or lower its position if it exists."""
    find = "SELECT tree, sample, position FROM turn WHERE id = ?"
    old = db.execute(find, (turn.id,)).fetchone()
    if old is None:
        _check_turn(db, tree, turn)
        _insert_turn(db, tree, turn, sample, position)
    elif old[0] != tree.key:
        raise ValueError(f"another tree already has turn {turn.id}")
    elif (sample, position) < old[1:]:
        move = "UPDATE turn SET sample = ?, position = ? WHERE id = ?"
        db.execute(move, (sample, position, turn.id))


def add_outcome(db: sqlite3.Connection, tree: TreeRow, outcome: Outcome) -> None:
    """Write the outcome of a path; a leaf has one outcome."""
    ending = outcome.ending
    row = (
        outcome.leaf,
        outcome.sample,
        ending.reason,
        int(ending.truncated),
        outcome.answer,
        None if outcome.score is None else float(outcome.score),
    )
    find = (
        "SELECT leaf, sample, reason, truncated, answer, score FROM outcome "
        "WHERE (tree, leaf) = (?, ?)"
    )
    old = db.execute(find, (tree.key, outcome.leaf)).fetchone()
    if old is None:
        _check_node(db, tree, outcome.leaf, "leaf of an outcome")
        insert(db, "outcome", (tree.key, *row))
    elif old != row:
        raise ValueError(
            f"leaf {outcome.leaf} already has the outcome {old[1:]}, not {row[1:]}; "
            "use separate draws for separate samples"
        )


def add_credit(db: sqlite3.Connection, credit: Credit) -> None:
    """Write a number on a node, unless the node has an equal one."""
    tree = tree_of(db, credit.node)
    if tree is None:
        raise ValueError(f"node {credit.node} of credit {credit.name!r} is not in the store")
    kind = kind_key(db, credit.settings, credit.name)
    find = "SELECT value FROM credit WHERE (kind, tree, node) = (?, ?, ?)"
    old = db.execute(find, (kind, tree, credit.node)).fetchone()
    if old is None:
        insert(db, "credit", (kind, tree, credit.node, float(credit.value)))
    elif old != (credit.value,):
        raise ValueError(
            f"node {credit.node} already has {credit.name} = {old[0]} under settings {credit.settings}, "
            f"not {credit.value}"
        )


def kind_key(db: sqlite3.Connection, settings: str, name: str) -> int:
    """Return the key of a kind of credit; create it if needed."""
    db.execute("INSERT OR IGNORE INTO credit_kind VALUES (NULL, ?, ?)", (settings, name))
    find = "SELECT key FROM credit_kind WHERE (settings, name) = (?, ?)"
    key: int = db.execute(find, (settings, name)).fetchone()[0]
    return key


def add_selection(
    db: sqlite3.Connection, key: ItemKey, position: int, selection: Selection
) -> None:
    """Write a selection of a finished item."""
    item = item_row(db, key)
    if item is None:
        raise ValueError(f"item {key} of a selection is not finished")
    for turn in (selection.leaf, selection.rejected):
        find = "SELECT 1 FROM turn WHERE id = ?"
        if turn is not None and not db.execute(find, (turn,)).fetchone():
            raise ValueError(f"turn {turn} of a selection is not in the store")
    weight = float(selection.weight)
    row = (selection.leaf, selection.agent, selection.context, weight, selection.rejected)
    insert(db, "selection", (item, position, *row))


def tree_of(db: sqlite3.Connection, node: str) -> int | None:
    """Return the key of the tree of a turn or root."""
    find = "SELECT tree FROM turn WHERE id = ? UNION ALL SELECT key FROM tree WHERE root = ?"
    row = db.execute(find, (node, node)).fetchone()
    return row[0] if row else None


def write_tree(db: sqlite3.Connection, key: ItemKey, tree: Tree) -> None:
    if (tree.iteration, tree.stage, tree.task) != (key.iteration, key.stage, key.task):
        raise ValueError(f"the tree of {tree.iteration}/{tree.stage}/{tree.task} is not {key}'s")
    row = add_tree(db, tree.iteration, tree.stage, tree.task)
    for image in tree.images.values():
        add_blob(db, image)
    for position, record in enumerate(records(tree)):
        if isinstance(record, Turn):
            add_turn(db, row, record, key.sample, position)
        else:
            add_request(db, row, record)
    for outcome in tree.outcomes.values():
        add_outcome(db, row, outcome)


def write_item(
    db: sqlite3.Connection,
    item: Item,
    tree: Tree | None,
    credit: Sequence[Credit],
    selections: Sequence[Selection],
) -> None:
    add_item(db, item)
    if tree is not None:
        write_tree(db, item.key, tree)
    for annotation in credit:
        add_credit(db, annotation)
    for position, selection in enumerate(selections):
        add_selection(db, item.key, position, selection)


def _check_turn(db: sqlite3.Connection, tree: TreeRow, turn: Turn) -> None:
    """Raise ``ValueError`` for a turn without its parent, images or request, or with inconsistent ids."""
    _check_node(db, tree, turn.parent, f"parent of turn {turn.id}")
    _check_images(db, turn.parts, f"turn {turn.id}")
    check_calls(turn.calls)
    in_order(turn.results)
    if turn.prompt is not None and not _has_request(db, tree, turn.prompt):
        raise ValueError(f"request {turn.prompt} of turn {turn.id} is not in its tree")
    if turn.sample is None:
        return
    if turn.sample.ids != turn.ids or len(turn.sample.logprobs) != len(turn.ids):
        raise ValueError(f"turn {turn.id}: ids, sample ids and log-probs do not match")


def _insert_turn(
    db: sqlite3.Connection, tree: TreeRow, turn: Turn, sample: str, position: int
) -> None:
    row = (
        None,
        tree.key,
        sample,
        position,
        turn.id,
        turn.parent,
        turn.speaker.kind,
        turn.speaker.name,
        json_of(turn.parts),
        ids_blob(turn.ids),
        json_of(turn.calls),
        json_of(turn.results),
        turn.author,
        turn.draw,
        turn.prompt,
        int(turn.truncated),
    )
    result = turn.sample
    sampled = result and (
        logprobs_blob(result.logprobs),
        result.finish,
        result.policy,
        result.version,
        str(result.seed),  # unsigned 64-bit seeds exceed an SQLite integer
        float(result.temperature),
        float(result.top_p),
    )
    insert(db, "turn", (*row, *(sampled or (None,) * 7)))


def _check_node(db: sqlite3.Connection, tree: TreeRow, node: str, what: str) -> None:
    if node == tree.root:
        return
    if not db.execute("SELECT 1 FROM turn WHERE id = ? AND tree = ?", (node, tree.key)).fetchone():
        raise ValueError(f"{what}: node {node} is not in its tree")


def _check_images(db: sqlite3.Connection, parts: Sequence[Part], what: str) -> None:
    """Raise ``ValueError`` for an image that is not in the store."""
    for image in {part.image for part in parts if part.image is not None}:
        if not db.execute("SELECT 1 FROM blob WHERE hash = ?", (image,)).fetchone():
            raise ValueError(f"image {image} of {what} is not in the store")


def _toolset(db: sqlite3.Connection, tree: TreeRow, tools: tuple[Tool, ...]) -> int | None:
    """Return the key of a prompt's tools; create it if needed. ``None`` without tools."""
    if not tools:
        return None
    if id(tools) in tree.toolsets:
        return tree.toolsets[id(tools)][1]
    text = json_of(tools)
    row = db.execute("SELECT key FROM toolset WHERE tools = ?", (text,)).fetchone()
    key: int = row[0] if row else insert(db, "toolset", (None, text))
    tree.toolsets[id(tools)] = (tools, key)
    return key


def _has_request(db: sqlite3.Connection, tree: TreeRow, request: str) -> bool:
    find = "SELECT 1 FROM request WHERE (tree, id) = (?, ?)"
    return db.execute(find, (tree.key, request)).fetchone() is not None


def _public(task: Task) -> str:
    """Return the public fields as JSON; raise ``ValueError`` for values that JSON would change (tuples, NaN)."""
    public = dict(task.public)
    try:
        text = json.dumps(public, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"public fields of task {task.id!r} are not JSON: {error}") from error
    if json.loads(text) != public:
        raise ValueError(
            f"public fields of task {task.id!r} are not plain JSON "
            "(they may have a tuple, or a key that is not a string)"
        )
    return text
