"""Export of a store to JSONL, and of rows and pairs as chats for other trainers.

A line of JSONL is an object with its ``kind``: ``header``, ``task``, ``blob`` (an image as base64), ``request``,
``turn``, ``outcome``, ``credit``, ``item``, ``selection``. Its other fields are the dataclasses of the record, without
fields at their default.

Chats for other trainers: a row is one segment of an agent's view of a rollout, with the messages of its first prompt
(``prompt``) and all later messages (``completion``). For TRL a row is one turn (``completion``), so that its loss is on
the agent's tokens whatever its settings are. A pair has the common beginning of two chats and the rest of each. A
message is ``{"role", "content"}``, without parts that the agent may not see.
"""

import base64
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from os.path import commonprefix
from pathlib import Path
from typing import Any, Literal

from coterie.config.folders import atomic_file
from coterie.record.rows import Edit, Render, prompts, recontext, rows, view
from coterie.record.store import Store, TreeKey
from coterie.record.tables import json_of
from coterie.record.tree import ItemKey, Selection, Tree, redact, shown_images
from coterie.record.turn import Message, Turn


def export(
    store: Store,
    path: Path | str,
    *,
    iterations: Collection[int] | None = None,
    secrets: bool = False,
) -> None:
    """Write the record, or iterations with their tasks, credit and selections, to a new file, complete or not at all.

    Without ``secrets``, secrets of tasks and prompts with secrets are omitted (:func:`redact`).
    """
    # A snapshot, since a run may write to the store meanwhile.
    with (
        atomic_file(Path(path)) as part,
        store.snapshot(),
        part.open("w", encoding="utf-8") as file,
    ):
        for line_kind, fields in _lines(store, iterations, secrets):
            file.write(json_of({"kind": line_kind, **fields}) + "\n")


Line = tuple[str, dict[str, object]]


def _lines(store: Store, iterations: Collection[int] | None, secrets: bool) -> Iterator[Line]:
    """Yield the kind and fields of each line; without ``iterations``, also tasks that have no items."""
    yield "header", {"format": "coterie-2"}
    # Only the keys are in memory; each tree is read when its lines are written.
    trees = [key for key in store.tree_keys() if iterations is None or key[1] in iterations]
    items = [
        item for item in store.items() if iterations is None or item.key.iteration in iterations
    ]
    tasks = {key[3] for key in trees} | {item.key.task for item in items}
    for id_ in store.task_ids():
        if iterations is None or id_ in tasks:
            task = store.task(id_)
            texts = {
                name: {"text": secret.reveal(min(secret.readers)), "readers": secret.readers}
                for name, secret in task.secrets.items()
                if secrets
            }
            gold = {"secrets": texts} if texts else {}
            yield "task", {"id": id_, "public": task.public, **gold}
    images: set[str] = set()
    for key in trees:
        yield from _tree_lines(store, key, secrets, images)
    for item in items:
        yield "item", {"item": item}
    for where, tree, selection in store.selected():
        # A selection may be of a tree from an earlier iteration, which must be in the file, too.
        if iterations is None or {where.iteration, tree[1]} <= set(iterations):
            yield "selection", {"item": where, "selection": selection}


def _tree_lines(store: Store, key: TreeKey, secrets: bool, images: set[str]) -> Iterator[Line]:
    """Yield the lines of a tree, with new images first; ``images`` already have a line."""
    _, iteration, stage, task = key
    item = ItemKey(iteration, stage, task)
    full_tree = store.read_tree(key)
    tree = full_tree if secrets else redact(full_tree)
    # Sorted, so that equal stores give equal files.
    for image in sorted(shown_images(tree) - images):
        yield "blob", {"base64": base64.b64encode(store.image(image)).decode()}
        images.add(image)
    for request in tree.requests.values():
        yield "request", {"item": item, "request": request}
    # The store knows the sample of each turn; its content comes from the redacted tree.
    for sample, turn in store.turns(key):
        yield "turn", {"item": replace(item, sample=sample), "turn": tree.turns[turn.id]}
    for outcome in tree.outcomes.values():
        yield "outcome", {"item": item, "outcome": outcome}
    for credit in store.credit_of(full_tree):
        yield "credit", {"credit": credit}


Form = Literal["jsonl", "trl", "llamafactory", "verl"]
Chat = list[dict[str, str]]
IGNORED = -100
"""Label of a token without loss, as in Transformers and TRL."""
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
        selection, tree = self.selection, self.tree
        where = {"iteration": tree.iteration, "task": tree.task, "agent": selection.agent}
        return {
            **where,
            "role": self.role,
            "context": selection.context,
            "weight": selection.weight,
        }


def export_rows(trained: TrainedSelection, form: Form) -> Iterator[dict[str, Any] | None]:
    """Yield the rows of a selected path; ``None`` for a row that the program would train on other tokens of.

    Only ``jsonl`` has ids, labels and log-probs, exactly as trained.
    """
    leaf = trained.selection.leaf
    agent = trained.selection.agent
    name = str(trained.selection.context)
    # Exported chats have the same context as the rows that were trained.
    if trained.edit is None:
        agent_view = view(trained.tree, leaf, agent)
    else:
        agent_view = recontext(
            trained.tree, leaf, agent, name=name, edit=trained.edit, render=trained.render
        )
    for segment, row in zip(
        agent_view.segments, rows(agent_view, trained.selection.weight), strict=True
    ):
        turns = [piece.turn for piece in segment.pieces if piece.turn is not None]
        # The last turn's chat contains all turns of the segment: each prompt extends the previous one.
        chat, tools = _chat(trained, turns[-1]), _tools(trained, turns[-1])
        if form == "jsonl":
            # Everything after the first prompt is completion, observations included; labels tell them apart.
            prompt_length = len(_prompt(trained, turns[0]))
            fields = {
                "prompt": _merge(chat[:prompt_length]),
                "completion": _merge(chat[prompt_length:]),
            }
            labels = [
                id_ if is_trained else IGNORED
                for id_, is_trained in zip(row.ids, row.mask, strict=True)
            ]
            exact = {"input_ids": row.ids, "labels": labels, "logprobs": row.logprobs}
            yield {**trained.metadata(), **fields, **tools, **exact}
        elif _has_inline(chat):
            yield None
        elif form == "trl":
            yield from (_turn_row(trained, turn) for turn in turns)
        elif any(turn.truncated for turn in turns):
            yield None
        else:
            # These programs train every assistant message, and end each with an end of turn. A row
            # fits only if its assistant messages are exactly the agent's own turns.
            messages = begin_with_user(_merge(chat))
            replies = sum(message["role"] == "assistant" for message in messages)
            fits = _alternates(messages) if form == "llamafactory" else not tools
            yield {"messages": messages, **tools} if fits and replies == len(turns) else None


def _turn_row(trained: TrainedSelection, turn: Turn) -> dict[str, Any] | None:
    *context, reply = _chat(trained, turn)
    prompt = begin_with_user(_merge(context))
    # A trainer would add an end of turn that was never sampled, or merge two assistant messages.
    if turn.truncated or prompt[-1]["role"] == "assistant":
        return None
    return {"prompt": prompt, "completion": _merge([reply]), **_tools(trained, turn)}


def _has_inline(chat: Iterable[tuple[str, str]]) -> bool:
    """Return True if text of the environment is within an assistant's message."""
    return any(role == "inline" for role, _ in chat)


def _alternates(messages: Chat) -> bool:
    """Return True if every second message is the assistant's; LLaMA-Factory drops other rows."""
    roles = [message["role"] for message in messages]
    # A leading system message is outside of the alternation.
    roles = roles[roles[0] == "system" :]
    return set(roles[::2]) <= {"user", "tool"} and set(roles[1::2]) <= {"assistant"}


def export_pair(trained: TrainedSelection, form: Form) -> dict[str, Any] | None:
    """Return a preference pair; ``None`` for sides of equal text, and for a pair that the program can't represent."""
    leaf, rejected = trained.selection.leaf, trained.selection.rejected
    assert rejected is not None, "a pair has a rejected turn"
    last_turns = [
        prompts(trained.tree, node, trained.selection.agent)[-1][1] for node in (leaf, rejected)
    ]
    chats = [_chat(trained, turn) for turn in last_turns]
    # The common beginning of both chats, but each side keeps at least its last message. Sides have
    # to begin with the assistant's message.
    prompt_length = min(len(commonprefix(chats)), *(len(chat) - 1 for chat in chats))  # noqa: RUF071
    while prompt_length and chats[0][prompt_length][0] != "assistant":
        prompt_length -= 1
    sides = [_merge(chat[prompt_length:]) for chat in chats]
    # Only JSONL can mark tokens within a message as not trained.
    is_other = any(map(_has_inline, chats)) or any(turn.truncated for turn in last_turns)
    if sides[0] == sides[1] or (form != "jsonl" and is_other):
        return None
    fields = {"prompt": _merge(chats[0][:prompt_length]), "chosen": sides[0], "rejected": sides[1]}
    tools = _tools(trained, last_turns[0])
    if form == "jsonl":
        return {**trained.metadata(), **fields, **tools, "nodes": [leaf, rejected]}
    prompt = begin_with_user(fields["prompt"])
    if form == "trl":
        return {**fields, "prompt": prompt, **tools}
    # LLaMA-Factory takes one message for each side, after an alternating prompt.
    if any(len(side) > 1 for side in sides) or not _alternates([*prompt, *sides[0]]):
        return None
    return {"conversations": prompt, "chosen": sides[0][0], "rejected": sides[1][0], **tools}


def chat(tree: Tree, messages: Iterable[Message], agent: str) -> Chat:
    return _merge([(message.role, _text(tree, message, agent)) for message in messages])


def _prompt(trained: TrainedSelection, turn: Turn) -> list[tuple[str, str]]:
    assert turn.prompt is not None, "own turns have prompts"
    messages = trained.tree.messages(trained.tree.requests[turn.prompt])
    if trained.edit is not None:
        messages = trained.edit(messages)
    return [
        (message.role, _text(trained.tree, message, trained.selection.agent))
        for message in messages
    ]


def _chat(trained: TrainedSelection, turn: Turn) -> list[tuple[str, str]]:
    reply = Message("assistant", turn=turn.id)
    return [
        *_prompt(trained, turn),
        ("assistant", _text(trained.tree, reply, trained.selection.agent)),
    ]


def _text(tree: Tree, message: Message, agent: str) -> str:
    turn = None if message.turn is None else tree.turns[message.turn]
    # Only the agent's own view: the thought of another agent is not visible to it.
    parts = (*message.parts, *(turn.parts if turn else ()))
    text = "".join(part.text for part in parts if part.visible_to(agent))
    return text or "\n".join(result.text for result in (turn.results if turn else ()))


def _merge(messages: Iterable[tuple[str, str]]) -> Chat:
    """Merge consecutive messages of a role, and inline text into the assistant's turn."""
    chat: Chat = []
    inside = False
    for role, text in messages:
        # Inline text has no message of its own: it is the environment's text inside an agent's turn.
        inline = role == "inline"
        last_role = chat[-1]["role"] if chat else ""
        role = ("assistant" if last_role == "assistant" else "user") if inline else role
        if role == last_role:
            # Text around an inline result was one turn, so nothing separates it.
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


def _tools(trained: TrainedSelection, turn: Turn) -> dict[str, str]:
    assert turn.prompt is not None, "own turns have prompts"
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
        for tool in trained.tree.requests[turn.prompt].tools
    ]
    functions = [{"type": "function", "function": tool} for tool in tools]
    return {"tools": json.dumps(functions, ensure_ascii=False)} if functions else {}
