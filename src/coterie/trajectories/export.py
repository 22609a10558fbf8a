"""Export of training rows and preference pairs as chats, for other trainers.

A row is one segment of an agent's view of a path: the messages of its first prompt (``prompt``), and all later messages
(``completion``). A pair has the common beginning of two chats, and the rest of each. A message is ``{"role",
"content"}``, without parts that the agent may not see.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, Literal

from coterie.trajectories.row import rows
from coterie.trajectories.selection import Selection
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Turn
from coterie.trajectories.view import Edit, Render, View, prompts, recontext, view

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
