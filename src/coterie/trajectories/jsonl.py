"""Export of a store to JSONL, one object a line, and import of such a file into a new store.

    with Store.open("runs/a/store.db", read_only=True) as store:
        export(store, "a.jsonl", iterations=[0], stages=["rollout"])
    import_("a.jsonl", "runs/b/store.db", tokenize=tokenizer.encode)

A line is a JSON object with its ``kind`` and the fields of that kind's class below; a field at its
default may be left out, an unknown one is an error. A line may refer only to lines before it.
"""

import base64
import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from coterie.config.folders import make_folder, reason_of, whole_file
from coterie.config.plain import wrong
from coterie.errors import UserError
from coterie.trajectories import reader, table
from coterie.trajectories.codec import plain
from coterie.trajectories.credit import Credit
from coterie.trajectories.disk import check_place
from coterie.trajectories.item import Item, ItemKey
from coterie.trajectories.selection import Selection
from coterie.trajectories.store import Store
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.tree import Outcome, Tree, shown_images
from coterie.trajectories.turn import Part, Request, Turn

BOM = b"\xef\xbb\xbf"
Tokenize = Callable[[str], Sequence[int]]
Wanted = Callable[[int, str], bool]


@dataclass(frozen=True, slots=True)
class HeaderLine:
    """The first line of an export; a file written by hand may leave it out."""

    format: Literal["coterie-2"] = "coterie-2"
    kind: Literal["header"] = "header"


@dataclass(frozen=True, slots=True)
class SecretText:
    """A secret that is let out of the house on purpose."""

    text: str
    readers: frozenset[str] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task; ``secrets`` are there only if the export was asked for them."""

    id: str
    public: dict[str, object]
    secrets: Mapping[str, SecretText] = field(default_factory=dict)
    kind: Literal["task"] = "task"


@dataclass(frozen=True, slots=True)
class BlobLine:
    """Bytes that parts name by their SHA-256, such as an image's."""

    base64: str
    kind: Literal["blob"] = "blob"


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A request of the tree that ``item`` belongs to."""

    item: ItemKey
    request: Request
    kind: Literal["request"] = "request"


@dataclass(frozen=True, slots=True)
class TurnLine:
    """A turn, with the item that it is filed under."""

    item: ItemKey
    turn: Turn
    kind: Literal["turn"] = "turn"


@dataclass(frozen=True, slots=True)
class OutcomeLine:
    """Outcome of a path in the tree of ``item``."""

    item: ItemKey
    outcome: Outcome
    kind: Literal["outcome"] = "outcome"


@dataclass(frozen=True, slots=True)
class CreditLine:
    """A number on a node."""

    credit: Credit
    kind: Literal["credit"] = "credit"


@dataclass(frozen=True, slots=True)
class ItemLine:
    """An item that is finished."""

    item: Item
    kind: Literal["item"] = "item"


@dataclass(frozen=True, slots=True)
class SelectionLine:
    """The next thing that an item selected."""

    item: ItemKey
    selection: Selection
    kind: Literal["selection"] = "selection"


Line = (
    HeaderLine
    | TaskLine
    | BlobLine
    | RequestLine
    | TurnLine
    | OutcomeLine
    | CreditLine
    | ItemLine
    | SelectionLine
)
_ADAPTER: TypeAdapter[Line] = TypeAdapter(
    Annotated[Line, Field(discriminator="kind")], config=ConfigDict(extra="forbid")
)


def dumps(line: Line) -> str:
    """A line as text, without its newline."""
    fields = plain(line)
    assert isinstance(fields, dict), "a line is a dataclass"
    return json.dumps({"kind": line.kind, **fields}, ensure_ascii=False, separators=(",", ":"))


def loads(data: bytes) -> Line:
    """The line in ``data``, every value checked by type; raises ``ValueError`` with the place and the reason."""
    try:
        return _ADAPTER.validate_json(data.removeprefix(BOM), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise ValueError(f"not JSON: {first['ctx']['error']}") from error
        place = ".".join(map(str, first["loc"][1:])) or "the line"  # the first step is the kind
        raise ValueError(f"{place}: {wrong(first)}") from error


def export(
    store: Store,
    path: Path | str,
    *,
    iterations: Collection[int] | None = None,
    stages: Collection[str] | None = None,
    secrets: bool = False,
) -> None:
    """Write the record, or some iterations and stages of it, to a new file.

    A part of the record comes with the tasks and credit of its trees, and with the selections among
    them. Without ``secrets``, the tasks' secrets and the prompts that show them are left out
    (:func:`redact`). The file appears when it is whole.
    """

    def is_selected(iteration: int, stage: str) -> bool:
        return (iterations is None or iteration in iterations) and (
            stages is None or stage in stages
        )

    path = Path(path)
    whole = iterations is None and stages is None
    try:
        with (
            whole_file(path) as part,
            store.snapshot() as db,
            part.open("w", encoding="utf-8", newline="\n") as file,
        ):
            for line in _lines(db, is_selected, secrets, whole=whole):
                file.write(dumps(line) + "\n")
    except OSError as error:
        raise UserError(
            f"could not write {path}: {reason_of(error)}", "export to another folder"
        ) from error


def import_(source: Path | str, target: Path | str, *, tokenize: Tokenize | None = None) -> None:
    """Make a new store of a JSONL file; it appears when all lines have been read and checked.

    ``tokenize`` encodes the agents' turns that were not sampled and have no ids; node ids stay as in
    the file. Raises :class:`UserError` with the line number and the reason for a line that is broken or
    does not fit the lines before it; then there is no store.
    """
    source, target = Path(source), Path(target)
    if target.exists():
        raise UserError(f"{target} already exists", "an import makes a new store: give a new name")
    if not source.is_file():
        raise UserError(f"there is no file {source}", "check the path")
    check_place(target)
    make_folder(target.parent)
    with TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.import-") as folder:
        staged = Path(folder) / target.name
        with Store.open(staged) as store, store.transaction() as db, source.open("rb") as file:
            if not source.stat().st_size:
                raise UserError(f"{source} is empty", "give a file that `coterie export` wrote")
            for number, data in enumerate(file, 1):
                if not data.strip():
                    continue
                try:
                    _add(db, loads(data), number, tokenize)
                except (ValueError, OverflowError) as error:
                    raise UserError(
                        f"{source}, line {number}: {error}",
                        "correct the line; nothing was imported",
                    ) from error
        staged.rename(target)


def copy(source: Store, target: Store, steps: Collection[tuple[int, str]]) -> None:
    """Copy the record of some (iteration, stage) from one store to another, secrets included.

    What a stage stores under names that begin with its own (``STAGE/00001``) belongs to it. All or nothing. Raises
    ``ValueError`` if the target holds some of it already.
    """

    def is_selected(iteration: int, stage: str) -> bool:
        return (iteration, stage.partition("/")[0]) in steps

    with source.snapshot() as old, target.transaction() as new:
        for number, line in enumerate(_lines(old, is_selected, secrets=True)):
            _add(new, line, number, None)


def _lines(
    db: sqlite3.Connection, is_selected: Wanted, secrets: bool, *, whole: bool = False
) -> Iterator[Line]:
    """Yield the lines of the selected (iteration, stage) pairs in the order of their references.

    ``whole`` adds the tasks without any work.
    """
    yield HeaderLine()
    trees = [row for row in reader.tree_keys(db) if is_selected(row[1], row[2])]
    items = {
        number: item
        for number, item in reader.items(db)
        if is_selected(item.key.iteration, item.key.stage)
    }
    tasks = {row[3] for row in trees} | {item.key.task for item in items.values()}
    for id_ in reader.task_ids(db):
        if whole or id_ in tasks:
            yield _task_line(db, id_, secrets)
    images: set[str] = set()
    for row in trees:
        yield from _tree_lines(db, row, secrets, images)
    yield from map(ItemLine, items.values())
    keys = {row[0] for row in trees}
    for number, tree, _, selection in reader.selections(db):
        if number in items and tree in keys:
            yield SelectionLine(items[number].key, selection)


def _task_line(db: sqlite3.Connection, id_: str, secrets: bool) -> TaskLine:
    task = reader.task(db, id_)
    assert task is not None, "its id was just listed"
    texts = {
        name: SecretText(secret.reveal(min(secret.readers)), secret.readers)
        for name, secret in task.secrets.items()
        if secrets
    }
    return TaskLine(id_, dict(task.public), texts)


def _tree_lines(
    db: sqlite3.Connection, row: reader.TreeKey, secrets: bool, images: set[str]
) -> Iterator[Line]:
    """Yield the lines of a tree, with new images first; ``images`` already have a line."""
    key, iteration, stage, task = row
    item = ItemKey(iteration, stage, task)
    tree = reader.tree(db, row) if secrets else redact(reader.tree(db, row))
    for image in sorted(shown_images(tree) - images):
        data = reader.blob(db, image)
        assert data is not None, "a part's image was checked when it was written"
        yield BlobLine(base64.b64encode(data).decode())
        images.add(image)
    samples = {turn.id: sample for sample, turn in reader.turns(db, row)}
    for record in table.records(tree):
        if isinstance(record, Turn):
            yield TurnLine(replace(item, sample=samples[record.id]), record)
        else:
            yield RequestLine(item, record)
    for outcome in reader.outcomes(db, row):
        yield OutcomeLine(item, outcome)
    for credit in reader.credit_of_tree(db, key):
        yield CreditLine(credit)


def _add(db: sqlite3.Connection, line: Line, number: int, tokenize: Tokenize | None) -> None:
    """Store one line; ``number`` keeps turns and selections in the order of the file."""
    match line:
        case HeaderLine():
            pass
        case TaskLine():
            secrets = {
                name: Secret(secret.text, name=name, readers=secret.readers)
                for name, secret in line.secrets.items()
            }
            table.add_task(db, Task(line.id, line.public, secrets))
        case BlobLine():
            table.add_blob(db, base64.b64decode(line.base64, validate=True))
        case RequestLine():
            table.add_request(db, _tree(db, line.item), line.request)
        case TurnLine():
            turn = _tokenized(line.turn, tokenize)
            table.add_turn(db, _tree(db, line.item), turn, line.item.sample, number)
        case OutcomeLine():
            table.add_outcome(db, _tree(db, line.item), line.outcome)
        case CreditLine():
            table.add_credit(db, line.credit)
        case ItemLine():
            table.add_item(db, line.item)
        case SelectionLine():
            table.add_selection(db, line.item, number, line.selection)


def _tree(db: sqlite3.Connection, item: ItemKey) -> table.TreeRow:
    return table.add_tree(db, item.iteration, item.stage, item.task)


def _tokenized(turn: Turn, tokenize: Tokenize | None) -> Turn:
    """Encode the text of a turn that may be trained and was not sampled."""
    foreign = turn.speaker.kind == "agent" and turn.sample is None and not turn.ids
    if tokenize is None or not foreign or not turn.text:
        return turn
    return replace(turn, ids=tuple(tokenize(turn.text)))


def redact(tree: Tree) -> Tree:
    """Return a copy of a tree in which no part or prompt has a secret as its source.

    A prompt that shows a secret is taken out whole, for its ids spell the secret out, and so is every later prompt of
    that agent, which is stored as a delta on it. The turns that answer such prompts stay, as text by their writer
    (``POLICY@VERSION`` of a sampled one). What a role that knows a secret then *said* stays as it was said.
    """
    hidden: set[str] = set()
    for request in tree.requests.values():
        if _shows_secret(tree, request):
            hidden.add(request.id)
    result = Tree(tree.task, tree.stage, tree.iteration)
    result.requests = {id_: r for id_, r in tree.requests.items() if id_ not in hidden}
    for turn in tree.turns.values():
        result.add(_redacted(turn, hidden))
    for outcome in tree.outcomes.values():
        result.end(outcome)
    return result


def _shows_secret(tree: Tree, request: Request) -> bool:
    link: Request | None = request
    while link is not None:
        if any(_is_secret(part) for message in link.messages for part in message.parts):
            return True
        before = tree.turns[link.previous].prompt if link.previous else None
        link = tree.requests[before] if before else None
    return False


def _redacted(turn: Turn, hidden: set[str]) -> Turn:
    """Remove the secret parts of a turn, and sample and prompt if its prompt is hidden."""
    if turn.prompt in hidden:
        turn = replace(turn, sample=None, author=turn.writer, request=None)
    if any(_is_secret(part) for part in turn.parts):
        parts = tuple(
            Part(f"<{part.source}>", part.audience) if _is_secret(part) else part
            for part in turn.parts
        )
        turn = replace(turn, parts=parts, ids=turn.ids if turn.sample else ())
    return turn


def _is_secret(part: Part) -> bool:
    return part.source.startswith("secret:")
