"""Writing the record into the tables of a store, each reference checked as it is written.

Every function takes a connection inside a transaction and raises ``ValueError`` for what does not
fit what is there. What is there already, and equal, is left alone.
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
    """A tree's key in the tables, and the id of its root."""

    key: int
    root: str
    toolsets: dict[int, tuple[tuple[Tool, ...], int]] = field(default_factory=dict, compare=False)
    """Keys of tools that were written with it, by the identity of the tools: most prompts have the same."""


def records(tree: Tree) -> Iterator[Request | Turn]:
    """Turns in their order, each request before the first turn that needs it."""
    waiting = dict(tree.requests)
    for turn in tree.turns.values():
        if turn.prompt is not None and turn.prompt in waiting:
            yield waiting.pop(turn.prompt)
        yield turn
    yield from waiting.values()


def add_task(db: sqlite3.Connection, task: Task) -> None:
    """Write a task; its public fields must be plain JSON, so that they come back as they were."""
    public = _public(task)
    secrets = [
        (task.id, name, secret.reveal(min(secret.readers)), json_of(secret.readers))
        for name, secret in sorted(task.secrets.items())
    ]
    old = db.execute("SELECT public FROM task WHERE id = ?", (task.id,)).fetchone()
    if old:
        known = db.execute(
            "SELECT task, name, text, readers FROM secret WHERE task = ? ORDER BY name", (task.id,)
        )
        if old != (public,) or known.fetchall() != secrets:
            raise ValueError(f"another task with id {task.id!r} is in the store already")
        return
    insert(db, "task", (task.id, public))
    for secret in secrets:
        insert(db, "secret", secret)


def add_item(db: sqlite3.Connection, item: Item) -> None:
    """Record that an item is finished; an item finishes once."""
    if item_row(db, item.key) is not None:
        raise ValueError(f"{item.key} is finished already")
    key = (item.key.iteration, item.key.stage, item.key.task, item.key.sample)
    insert(db, "item", (None, *key, item.failure, json_of(item.metrics)))


def item_row(db: sqlite3.Connection, key: ItemKey) -> int | None:
    """Key of a finished item in the tables; ``None`` if it is not finished."""
    found = db.execute(
        "SELECT key FROM item WHERE (iteration, stage, task, sample) = (?, ?, ?, ?)",
        (key.iteration, key.stage, key.task, key.sample),
    ).fetchone()
    return found[0] if found else None


def add_blob(db: sqlite3.Connection, data: bytes) -> str:
    """Write bytes that parts of turns may name, and return their SHA-256."""
    hash_ = hash_of(data)
    db.execute("INSERT OR IGNORE INTO blob VALUES (?, ?)", (hash_, data))
    return hash_


def add_tree(db: sqlite3.Connection, iteration: int, stage: str, task: str) -> TreeRow:
    root = root_id(iteration, stage, task)
    found = db.execute("SELECT key FROM tree WHERE root = ?", (root,)).fetchone()
    if found:
        return TreeRow(found[0], root)
    added = db.execute(
        "INSERT INTO tree (iteration, stage, task, root) VALUES (?, ?, ?, ?)",
        (iteration, stage, task, root),
    ).lastrowid
    assert added is not None, "an insert gives a row id"
    return TreeRow(added, root)


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
    """Write the turn at ``position`` of the item ``sample``, if it is not there yet."""
    find = "SELECT tree, sample, position FROM turn WHERE id = ?"
    old = db.execute(find, (turn.id,)).fetchone()
    if old is None:
        _check_turn(db, tree, turn)
        _insert_turn(db, tree, turn, sample, position)
    elif old[0] != tree.key:
        raise ValueError(f"turn {turn.id} is in another tree already")
    elif (sample, position) < old[1:]:
        move = "UPDATE turn SET sample = ?, position = ? WHERE id = ?"
        db.execute(move, (sample, position, turn.id))


def add_outcome(db: sqlite3.Connection, tree: TreeRow, outcome: Outcome) -> None:
    """Write how a path ended; one leaf has one outcome."""
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
            f"leaf {outcome.leaf} has an outcome already, {old[1:]}, not {row[1:]}; "
            "give turns of separate samples separate draws"
        )


def add_credit(db: sqlite3.Connection, credit: Credit) -> None:
    """Write a number on a node; the same number again changes nothing."""
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
            f"node {credit.node} has {credit.name} = {old[0]} under settings {credit.settings} "
            f"already, not {credit.value}"
        )


def kind_key(db: sqlite3.Connection, settings: str, name: str) -> int:
    """Key of a kind of credit, made if it is not there."""
    db.execute("INSERT OR IGNORE INTO credit_kind VALUES (NULL, ?, ?)", (settings, name))
    find = "SELECT key FROM credit_kind WHERE (settings, name) = (?, ?)"
    key: int = db.execute(find, (settings, name)).fetchone()[0]
    return key


def add_selection(
    db: sqlite3.Connection, key: ItemKey, position: int, selection: Selection
) -> None:
    """Write one thing that a finished item selected."""
    item = item_row(db, key)
    if item is None:
        raise ValueError(f"{key} of a selection is not finished")
    for turn in (selection.leaf, selection.rejected):
        find = "SELECT 1 FROM turn WHERE id = ?"
        if turn is not None and not db.execute(find, (turn,)).fetchone():
            raise ValueError(f"turn {turn} of a selection is not a turn of the store")
    weight = float(selection.weight)
    row = (selection.leaf, selection.agent, selection.context, weight, selection.rejected)
    insert(db, "selection", (item, position, *row))


def tree_of(db: sqlite3.Connection, node: str) -> int | None:
    """Key of the tree that a turn or root belongs to."""
    find = "SELECT tree FROM turn WHERE id = ? UNION ALL SELECT key FROM tree WHERE root = ?"
    found = db.execute(find, (node, node)).fetchone()
    return found[0] if found else None


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
    """Refuse a turn that hangs nowhere, or whose sample answers nothing or is not its text."""
    _check_node(db, tree, turn.parent, f"parent of turn {turn.id}")
    _check_images(db, turn.parts, f"turn {turn.id}")
    check_calls(turn.calls)
    in_order(turn.results)
    if turn.prompt is not None and not _has_request(db, tree, turn.prompt):
        raise ValueError(f"request {turn.prompt} of turn {turn.id} is not in its tree")
    if turn.sample is None:
        return
    if turn.sample.ids != turn.ids or len(turn.sample.logprobs) != len(turn.ids):
        raise ValueError(f"turn {turn.id}: its ids, its sample's and the log-probs differ")


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
    drawn = turn.sample
    sampled = drawn and (
        logprobs_blob(drawn.logprobs),
        drawn.finish,
        drawn.policy,
        drawn.version,
        str(drawn.seed),  # as text: seeds of 64 bits without sign do not fit an SQLite integer
        float(drawn.temperature),
        float(drawn.top_p),
    )
    insert(db, "turn", (*row, *(sampled or (None,) * 7)))


def _check_node(db: sqlite3.Connection, tree: TreeRow, node: str, what: str) -> None:
    if node == tree.root:
        return
    if not db.execute("SELECT 1 FROM turn WHERE id = ? AND tree = ?", (node, tree.key)).fetchone():
        raise ValueError(f"{what}: node {node} is not in its tree")


def _check_images(db: sqlite3.Connection, parts: Sequence[Part], what: str) -> None:
    """Refuse a part that names an image whose bytes are not in the store."""
    for image in {part.image for part in parts if part.image is not None}:
        if not db.execute("SELECT 1 FROM blob WHERE hash = ?", (image,)).fetchone():
            raise ValueError(f"{what} has an image {image} that is not in the store")


def _toolset(db: sqlite3.Connection, tree: TreeRow, tools: tuple[Tool, ...]) -> int | None:
    """Key of a prompt's tools, made if it is not there; ``None`` where there are none."""
    if not tools:
        return None
    if id(tools) in tree.toolsets:
        return tree.toolsets[id(tools)][1]
    text = json_of(tools)
    found = db.execute("SELECT key FROM toolset WHERE tools = ?", (text,)).fetchone()
    key: int = found[0] if found else insert(db, "toolset", (None, text))
    tree.toolsets[id(tools)] = (tools, key)
    return key


def _has_request(db: sqlite3.Connection, tree: TreeRow, request: str) -> bool:
    find = "SELECT 1 FROM request WHERE (tree, id) = (?, ?)"
    return db.execute(find, (tree.key, request)).fetchone() is not None


def _public(task: Task) -> str:
    """The public fields as JSON; refuses what JSON would change (tuples, sets, NaN)."""
    public = dict(task.public)
    try:
        text = json.dumps(public, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"public fields of task {task.id!r} are not JSON: {error}") from error
    if json.loads(text) != public:
        raise ValueError(
            f"public fields of task {task.id!r} are not plain JSON "
            "(is there a tuple, or a key that is not text?)"
        )
    return text
