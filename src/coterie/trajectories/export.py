"""Training rows and preference pairs as chats, for other trainers.

A row is one segment of an agent's view of a path: the messages that the agent was shown first (``prompt``), and
everything after them (``completion``). A pair has the common beginning of two chats, and how each continues.
A message is ``{"role", "content"}``, without any part that the agent may not see.
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
"""What every data set's entry in LLaMA-Factory's ``dataset_info.json`` has."""


@dataclass(frozen=True, slots=True)
class TrainedSelection:
    """A selection with its tree, the model that learns from it, and how its context is made."""

    role: str
    tree: Tree
    selection: Selection
    render: Render
    edit: Edit | None = None
    """The rule that ``selection.context`` names; ``None`` for the context as recorded."""

    def metadata(self) -> dict[str, Any]:
        """Return what ``jsonl`` says besides the chats."""
        one, tree = self.selection, self.tree
        where = {"iteration": tree.iteration, "task": tree.task, "agent": one.agent}
        return {**where, "role": self.role, "context": one.context, "weight": one.weight}


def export_rows(one: TrainedSelection, form: Form) -> Iterator[dict[str, Any]]:
    """Yield the rows of a selected path. Only ``jsonl`` has ids, mask and log-probs, exactly as trained."""
    shown = _view(one)
    for segment, row in zip(shown.segments, rows(shown, one.selection.weight), strict=True):
        turns = [piece.turn for piece in segment.pieces if piece.turn is not None]
        before, chat = len(_prompt(one, turns[0])), _chat(one, turns[-1])
        found = {"prompt": _merged(chat[:before]), "completion": _merged(chat[before:])}
        tools = _tools(one, turns[-1])
        if form == "llamafactory":
            yield {"messages": begin_with_user(found["prompt"]) + found["completion"], **tools}
        elif form == "trl":
            yield {**found, "prompt": begin_with_user(found["prompt"]), **tools}
        else:
            exact = {"ids": row.ids, "mask": row.mask, "logprobs": row.logprobs}
            yield {**one.metadata(), **found, **tools, **exact}


def export_pair(one: TrainedSelection, form: Form) -> dict[str, Any] | None:
    """Return a preference pair; ``None`` if its sides have the same text, or if the form has no place for it.

    LLaMA-Factory compares single messages, so pairs of whole dialogues are not of its form.
    """
    leaf, rejected = one.selection.leaf, one.selection.rejected
    assert rejected is not None, "a pair has two sides"
    last = [prompts(one.tree, node, one.selection.agent)[-1][1] for node in (leaf, rejected)]
    chats = [_chat(one, turn) for turn in last]
    before = min(len(commonprefix(chats)), *(len(chat) - 1 for chat in chats))  # noqa: RUF071
    while before and chats[0][before][0] != "assistant":
        before -= 1
    sides = [_merged(chat[before:]) for chat in chats]
    if sides[0] == sides[1]:
        return None
    found = {"prompt": _merged(chats[0][:before]), "chosen": sides[0], "rejected": sides[1]}
    tools = _tools(one, last[0])
    if form == "llamafactory":
        if any(len(side) > 1 for side in sides):
            return None
        return {
            "conversations": begin_with_user(found["prompt"]),
            "chosen": sides[0][0],
            "rejected": sides[1][0],
            **tools,
        }
    if form == "trl":
        return {**found, "prompt": begin_with_user(found["prompt"]), **tools}
    return {**one.metadata(), **found, **tools, "nodes": [leaf, rejected]}


def chat(tree: Tree, shown: Iterable[Message], agent: str) -> Chat:
    return _merged([(message.role, _text(tree, message, agent)) for message in shown])


def _view(one: TrainedSelection) -> View:
    leaf, agent = one.selection.leaf, one.selection.agent
    if one.edit is None:
        return view(one.tree, leaf, agent)
    name = str(one.selection.context)
    return recontext(one.tree, leaf, agent, name=name, edit=one.edit, render=one.render)


def _prompt(one: TrainedSelection, turn: Turn) -> list[tuple[str, str]]:
    """Return roles and texts of what the agent was shown before its turn."""
    assert turn.prompt is not None, "own turns have prompts"
    shown = one.tree.messages(one.tree.requests[turn.prompt])
    edited = shown if one.edit is None else one.edit(shown)
    return [(message.role, _text(one.tree, message, one.selection.agent)) for message in edited]


def _chat(one: TrainedSelection, turn: Turn) -> list[tuple[str, str]]:
    own = Message("assistant", turn=turn.id)
    return [*_prompt(one, turn), ("assistant", _text(one.tree, own, one.selection.agent))]


def _text(tree: Tree, message: Message, agent: str) -> str:
    turn = None if message.turn is None else tree.turns[message.turn]
    parts = (*message.parts, *(turn.parts if turn else ()))
    text = "".join(part.text for part in parts if part.visible_to(agent))
    return text or "\n".join(result.text for result in (turn.results if turn else ()))


def _merged(said: Iterable[tuple[str, str]]) -> Chat:
    """Join consecutive messages of a role; what is said within the assistant's turn becomes a part of it."""
    found: Chat = []
    inside = False
    for role, text in said:
        inline = role == "inline"
        last = found[-1]["role"] if found else ""
        role = ("assistant" if last == "assistant" else "user") if inline else role
        if role == last:
            found[-1]["content"] += ("" if inline or inside else "\n\n") + text
        else:
            found.append({"role": role, "content": text})
        inside = inline
    return found


def begin_with_user(prompt: Chat) -> Chat:
    """Return a prompt that a user begins, as TRL, LLaMA-Factory and many chat templates require."""
    if [message["role"] for message in prompt[:2]] in (["system"], ["system", "assistant"]):
        return [{**prompt[0], "role": "user"}, *prompt[1:]]
    return prompt


def _tools(one: TrainedSelection, turn: Turn) -> dict[str, str]:
    """Return the tools that the chat template showed, as JSON in a text."""
    assert turn.prompt is not None, "own turns have prompts"
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
        for tool in one.tree.requests[turn.prompt].tools
    ]
    functions = [{"type": "function", "function": tool} for tool in tools]
    return {"tools": json.dumps(functions, ensure_ascii=False)} if functions else {}
