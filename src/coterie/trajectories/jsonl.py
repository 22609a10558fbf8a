"""Export of a store to JSONL, one object a line, and import of such a file into a new store.

    with Store.open("runs/a/store.db", read_only=True) as store:
        export(store, "a.jsonl", iterations=[0], stages=["rollout"])
    import_("a.jsonl", "runs/b/store.db", tokenize=tokenizer.encode)

The lines are described in :mod:`coterie.trajectories.lines`.
"""

import base64
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from coterie.config.folders import make_folder, reason_of, whole_file
from coterie.errors import UserError
from coterie.trajectories import reader, table
from coterie.trajectories.disk import check_place
from coterie.trajectories.item import ItemKey
from coterie.trajectories.lines import (
    BlobLine,
    CreditLine,
    HeaderLine,
    ItemLine,
    Line,
    OutcomeLine,
    RequestLine,
    SecretText,
    SelectionLine,
    TaskLine,
    TurnLine,
    dumps,
    loads,
)
from coterie.trajectories.redaction import redact
from coterie.trajectories.store import Store
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.tree import shown_images
from coterie.trajectories.turn import Turn

Tokenize = Callable[[str], Sequence[int]]
Wanted = Callable[[int, str], bool]


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
    (:mod:`coterie.trajectories.redaction`). The file appears when it is whole.
    """

    def wanted(iteration: int, stage: str) -> bool:
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
            for line in _lines(db, wanted, secrets, whole=whole):
                file.write(dumps(line) + "\n")
    except OSError as error:
        raise UserError(
            f"could not write {path}: {reason_of(error)}", "export to another folder"
        ) from error


def import_(source: Path | str, target: Path | str, *, tokenize: Tokenize | None = None) -> None:
    """Make a new store of a JSONL file; it appears when all lines have been read and checked.

    ``tokenize`` gives ids to the agents' turns that were not sampled and have none; their node ids
    stay those of the file. A line that is broken, or does not fit those before it, is refused with
    :class:`UserError`, which says its number, column and reason; then there is no store.
    """
    source, target = Path(source), Path(target)
    if target.exists():
        raise UserError(f"{target} exists already", "an import makes a new store: give a new name")
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

    def wanted(iteration: int, stage: str) -> bool:
        return (iteration, stage.partition("/")[0]) in steps

    with source.snapshot() as old, target.transaction() as new:
        for number, line in enumerate(_lines(old, wanted, secrets=True)):
            _add(new, line, number, None)


def _lines(
    db: sqlite3.Connection, wanted: Wanted, secrets: bool, *, whole: bool = False
) -> Iterator[Line]:
    """The lines of all wanted (iteration, stage), each after those it refers to.

    ``whole`` adds the tasks on which nothing was done.
    """
    yield HeaderLine()
    trees = [row for row in reader.tree_keys(db) if wanted(row[1], row[2])]
    kept = {
        number: item
        for number, item in reader.items(db)
        if wanted(item.key.iteration, item.key.stage)
    }
    needed = {row[3] for row in trees} | {item.key.task for item in kept.values()}
    for id_ in reader.task_ids(db):
        if whole or id_ in needed:
            yield _task_line(db, id_, secrets)
    shown: set[str] = set()
    for row in trees:
        yield from _tree_lines(db, row, secrets, shown)
    yield from map(ItemLine, kept.values())
    keys = {row[0] for row in trees}
    for number, tree, _, selection in reader.selections(db):
        if number in kept and tree in keys:
            yield SelectionLine(kept[number].key, selection)


def _task_line(db: sqlite3.Connection, id_: str, secrets: bool) -> TaskLine:
    task = reader.task(db, id_)
    assert task is not None, "its id was just listed"
    shown = {
        name: SecretText(secret.reveal(min(secret.readers)), secret.readers)
        for name, secret in task.secrets.items()
        if secrets
    }
    return TaskLine(id_, dict(task.public), shown)


def _tree_lines(
    db: sqlite3.Connection, row: reader.TreeKey, secrets: bool, shown: set[str]
) -> Iterator[Line]:
    """The lines of a tree; images that are not among ``shown``, which have a line already, come first."""
    key, iteration, stage, task = row
    item = ItemKey(iteration, stage, task)
    tree = reader.tree(db, row) if secrets else redact(reader.tree(db, row))
    for image in sorted(shown_images(tree) - shown):
        data = reader.blob(db, image)
        assert data is not None, "a part's image was checked when it was written"
        yield BlobLine(base64.b64encode(data).decode())
        shown.add(image)
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
    """Write one line; ``number`` keeps turns and selections in the order of the file."""
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
    """The turn with the ids of its text, if it may be trained and nobody sampled it."""
    foreign = turn.speaker.kind == "agent" and turn.sample is None and not turn.ids
    if tokenize is None or not foreign or not turn.text:
        return turn
    return replace(turn, ids=tuple(tokenize(turn.text)))
