"""Export of a store to JSONL, import of the file, and export of rows and pairs as chats for other trainers.

    with Store.open("runs/a/store.db", read_only=True) as store:
        export(store, "a.jsonl", iterations=[0], stages=["rollout"])
    import_("a.jsonl", "runs/b/store.db", tokenize=tokenizer.encode)

A line is a JSON object with its ``kind`` and the fields of that kind's class below. Fields at their default may be
omitted; unknown fields are errors. A line may refer only to earlier lines.

Chats for other trainers: a row is one segment of an agent's view of a rollout, with the messages of its first prompt
(``prompt``) and all later messages (``completion``). A pair has the common beginning of two chats and the rest of each.
A message is ``{"role", "content"}``, without parts that the agent may not see.
"""

import base64
import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import commonprefix
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from coterie.config.folders import make_folder, reason_of, whole_file
from coterie.config.resolve import wrong
from coterie.errors import UserError
from coterie.record import reader, tables
from coterie.record.rows import Edit, Render, View, prompts, recontext, rows, view
from coterie.record.store import Store, check_place
from coterie.record.tables import plain
from coterie.record.tree import (
    Credit,
    Item,
    ItemKey,
    Outcome,
    Secret,
    Selection,
    Task,
    Tree,
    shown_images,
)
from coterie.record.turn import Message, Part, Request, Turn

BOM = b"\xef\xbb\xbf"
Tokenize = Callable[[str], Sequence[int]]
Wanted = Callable[[int, str], bool]


@dataclass(frozen=True, slots=True)
class HeaderLine:
    """First line of an export, optional on import."""

    format: Literal["coterie-2"] = "coterie-2"
    kind: Literal["header"] = "header"


@dataclass(frozen=True, slots=True)
class SecretText:
    """An exported secret."""

    text: str
    readers: frozenset[str] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task; ``secrets`` are exported only on request."""

    id: str
    public: dict[str, object]
    secrets: Mapping[str, SecretText] = field(default_factory=dict)
    kind: Literal["task"] = "task"


@dataclass(frozen=True, slots=True)
class BlobLine:
    """Bytes of an image."""

    base64: str
    kind: Literal["blob"] = "blob"


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A request of the tree of ``item``."""

    item: ItemKey
    request: Request
    kind: Literal["request"] = "request"


@dataclass(frozen=True, slots=True)
class TurnLine:
    """A turn with its item."""

    item: ItemKey
    turn: Turn
    kind: Literal["turn"] = "turn"


@dataclass(frozen=True, slots=True)
class OutcomeLine:
    """An outcome in the tree of ``item``."""

    item: ItemKey
    outcome: Outcome
    kind: Literal["outcome"] = "outcome"


@dataclass(frozen=True, slots=True)
class CreditLine:
    """Credit of a node."""

    credit: Credit
    kind: Literal["credit"] = "credit"


@dataclass(frozen=True, slots=True)
class ItemLine:
    """A finished item."""

    item: Item
    kind: Literal["item"] = "item"


@dataclass(frozen=True, slots=True)
class SelectionLine:
    """The next selection of an item."""

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
    """Return a line as text, without newline."""
    fields = plain(line)
    assert isinstance(fields, dict), "a line is a dataclass"
    return json.dumps({"kind": line.kind, **fields}, ensure_ascii=False, separators=(",", ":"))


def loads(data: bytes) -> Line:
    """Parse a line and check all types; raises ``ValueError`` with field and reason."""
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

    A part of the record includes the tasks and credit of its trees, and the selections among them. Without ``secrets``,
    secrets of tasks and prompts with secrets are omitted (:func:`redact`). The file appears when it is complete.
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
    """Create a store from a JSONL file; it appears when all lines are read and checked.

    ``tokenize`` encodes agents' unsampled turns without ids; node ids stay as in the file. Raises :class:`UserError`
    with line number and reason for a line that is invalid or contradicts earlier lines.
    """
    source, target = Path(source), Path(target)
    if target.exists():
        raise UserError(
            f"{target} already exists", "an import creates a new store; choose another name"
        )
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

    Names that begin with the stage's (``STAGE/00001``) are included. Raises ``ValueError``, without copying anything,
    if the target has some of it already.
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

    ``whole`` adds tasks without items.
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
    assert task is not None, "the store lists its id"
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
        assert data is not None, "the image was checked when it was written"
        yield BlobLine(base64.b64encode(data).decode())
        images.add(image)
    samples = {turn.id: sample for sample, turn in reader.turns(db, row)}
    for record in tables.records(tree):
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
            tables.add_task(db, Task(line.id, line.public, secrets))
        case BlobLine():
            tables.add_blob(db, base64.b64decode(line.base64, validate=True))
        case RequestLine():
            tables.add_request(db, _tree(db, line.item), line.request)
        case TurnLine():
            turn = _tokenized(line.turn, tokenize)
            tables.add_turn(db, _tree(db, line.item), turn, line.item.sample, number)
        case OutcomeLine():
            tables.add_outcome(db, _tree(db, line.item), line.outcome)
        case CreditLine():
            tables.add_credit(db, line.credit)
        case ItemLine():
            tables.add_item(db, line.item)
        case SelectionLine():
            tables.add_selection(db, line.item, number, line.selection)


def _tree(db: sqlite3.Connection, item: ItemKey) -> tables.TreeRow:
    return tables.add_tree(db, item.iteration, item.stage, item.task)


def _tokenized(turn: Turn, tokenize: Tokenize | None) -> Turn:
    """Encode the text of a turn that may be trained and was not sampled."""
    foreign = turn.speaker.kind == "agent" and turn.sample is None and not turn.ids
    if tokenize is None or not foreign or not turn.text:
        return turn
    return replace(turn, ids=tuple(tokenize(turn.text)))


def redact(tree: Tree) -> Tree:
    """Return a copy of a tree without parts and prompts from secrets.

    A prompt with a secret is removed, since its ids contain the secret, and so are the agent's later prompts, which are
    deltas on it. The turns for such prompts stay as text of their writer (``POLICY@VERSION`` of a sampled turn), even
    if their own text repeats the secret.
    """
    hidden = {r.id for r in tree.requests.values() if _shows_secret(tree, r)}
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


Form = Literal["jsonl", "trl", "llamafactory"]
Chat = list[dict[str, str]]
_ROLES = {name: name for name in ("user", "assistant", "system")}
LLAMAFACTORY: Mapping[str, Any] = {
    "formatting": "sharegpt",
    "tags": {
        **{f"{name}_tag": name for name in ("role", "content", *_ROLES)},
        "observation_tag": "tool",
    },
}
"""Common fields of entries in LLaMA-Factory's ``dataset_info.json``."""


@dataclass(frozen=True, slots=True)
class TrainedSelection:
    """A selection with its tree, the role that is trained on it, and its recontext rule."""

    role: str
    tree: Tree
    selection: Selection
    render: Render
    edit: Edit | None = None
    """Recontext rule of ``selection.context``; ``None`` for the recorded context."""

    def metadata(self) -> dict[str, Any]:
        """Return the additional fields of ``jsonl``."""
        one, tree = self.selection, self.tree
        where = {"iteration": tree.iteration, "task": tree.task, "agent": one.agent}
        return {**where, "role": self.role, "context": one.context, "weight": one.weight}


def export_rows(one: TrainedSelection, form: Form) -> Iterator[dict[str, Any]]:
    """Yield the rows of a selected path. Only ``jsonl`` has ids, mask and log-probs, exactly as trained."""
    agent_view = _view(one)
    for segment, row in zip(
        agent_view.segments, rows(agent_view, one.selection.weight), strict=True
    ):
        turns = [piece.turn for piece in segment.pieces if piece.turn is not None]
        before, chat = len(_prompt(one, turns[0])), _chat(one, turns[-1])
        fields = {"prompt": _merge(chat[:before]), "completion": _merge(chat[before:])}
        tools = _tools(one, turns[-1])
        if form == "llamafactory":
            yield {"messages": begin_with_user(fields["prompt"]) + fields["completion"], **tools}
        elif form == "trl":
            yield {**fields, "prompt": begin_with_user(fields["prompt"]), **tools}
        else:
            exact = {"ids": row.ids, "mask": row.mask, "logprobs": row.logprobs}
            yield {**one.metadata(), **fields, **tools, **exact}


def export_pair(one: TrainedSelection, form: Form) -> dict[str, Any] | None:
    """Return a preference pair; ``None`` if its sides have equal text or the format can't express it.

    LLaMA-Factory compares single messages only.
    """
    leaf, rejected = one.selection.leaf, one.selection.rejected
    assert rejected is not None, "a pair has a rejected turn"
    last = [prompts(one.tree, node, one.selection.agent)[-1][1] for node in (leaf, rejected)]
    chats = [_chat(one, turn) for turn in last]
    before = min(len(commonprefix(chats)), *(len(chat) - 1 for chat in chats))  # noqa: RUF071
    while before and chats[0][before][0] != "assistant":
        before -= 1
    sides = [_merge(chat[before:]) for chat in chats]
    if sides[0] == sides[1]:
        return None
    fields = {"prompt": _merge(chats[0][:before]), "chosen": sides[0], "rejected": sides[1]}
    tools = _tools(one, last[0])
    if form == "llamafactory":
        if any(len(side) > 1 for side in sides):
            return None
        return {
            "conversations": begin_with_user(fields["prompt"]),
            "chosen": sides[0][0],
            "rejected": sides[1][0],
            **tools,
        }
    if form == "trl":
        return {**fields, "prompt": begin_with_user(fields["prompt"]), **tools}
    return {**one.metadata(), **fields, **tools, "nodes": [leaf, rejected]}


def chat(tree: Tree, messages: Iterable[Message], agent: str) -> Chat:
    return _merge([(message.role, _text(tree, message, agent)) for message in messages])


def _view(one: TrainedSelection) -> View:
    leaf, agent = one.selection.leaf, one.selection.agent
    if one.edit is None:
        return view(one.tree, leaf, agent)
    name = str(one.selection.context)
    return recontext(one.tree, leaf, agent, name=name, edit=one.edit, render=one.render)


def _prompt(one: TrainedSelection, turn: Turn) -> list[tuple[str, str]]:
    """Return roles and texts of a turn's prompt."""
    assert turn.prompt is not None, "own turns have prompts"
    messages = one.tree.messages(one.tree.requests[turn.prompt])
    if one.edit is not None:
        messages = one.edit(messages)
    return [(message.role, _text(one.tree, message, one.selection.agent)) for message in messages]


def _chat(one: TrainedSelection, turn: Turn) -> list[tuple[str, str]]:
    own = Message("assistant", turn=turn.id)
    return [*_prompt(one, turn), ("assistant", _text(one.tree, own, one.selection.agent))]


def _text(tree: Tree, message: Message, agent: str) -> str:
    turn = None if message.turn is None else tree.turns[message.turn]
    parts = (*message.parts, *(turn.parts if turn else ()))
    text = "".join(part.text for part in parts if part.visible_to(agent))
    return text or "\n".join(result.text for result in (turn.results if turn else ()))


def _merge(messages: Iterable[tuple[str, str]]) -> Chat:
    """Merge consecutive messages of a role, and inline text into the assistant's turn."""
    chat: Chat = []
    inside = False
    for role, text in messages:
        inline = role == "inline"
        last = chat[-1]["role"] if chat else ""
        role = ("assistant" if last == "assistant" else "user") if inline else role
        if role == last:
            chat[-1]["content"] += ("" if inline or inside else "\n\n") + text
        else:
            chat.append({"role": role, "content": text})
        inside = inline
    return chat


def begin_with_user(prompt: Chat) -> Chat:
    """Return a prompt whose first message is the user's, as TRL, LLaMA-Factory and many chat templates require."""
    if [message["role"] for message in prompt[:2]] in (["system"], ["system", "assistant"]):
        return [{**prompt[0], "role": "user"}, *prompt[1:]]
    return prompt


def _tools(one: TrainedSelection, turn: Turn) -> dict[str, str]:
    """Return the tools that the chat template rendered, as JSON text."""
    assert turn.prompt is not None, "own turns have prompts"
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
        for tool in one.tree.requests[turn.prompt].tools
    ]
    functions = [{"type": "function", "function": tool} for tool in tools]
    return {"tools": json.dumps(functions, ensure_ascii=False)} if functions else {}
