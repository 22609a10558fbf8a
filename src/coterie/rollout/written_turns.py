"""Turns from written text with their prompts, to train on gold rows and corrections.

The environment gives each actor's messages; the actor's renderer makes the prompt and tokenizes the text, once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.environments.checks import messages_of
from coterie.environments.protocol import Environment, State
from coterie.models.chat import ChatRenderer
from coterie.record.tree import Task, Tree
from coterie.record.turn import Request, Speaker, Turn, make_turn
from coterie.tools.calls import template_tools


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    """A turn to write for an actor."""

    actor: str
    text: str
    author: str
    """Who wrote it: ``data``, ``critic:NAME``, or the policy that sampled it elsewhere."""
    ids: tuple[int, ...] = ()
    """Sampled tokens, if any; else the text is tokenized."""


def write_path(
    environment: Environment,
    task: Task,
    tree: Tree,
    turns: Sequence[WrittenTurn],
    renderers: Mapping[str, ChatRenderer],
    draw: int = 0,
) -> list[Turn]:
    """Add a path of turns to the root of a tree, each with its request, and return them.

    Equal paths with the same ``draw`` are one branch.
    """
    path: list[Turn] = []
    for one in turns:
        state = State(task, 0, turns=tuple(path))
        messages = messages_of(environment, state, one.actor)
        parent = path[-1].id if path else tree.root
        renderer = renderers[one.actor]
        tools = template_tools(environment.syntax, environment.tools(state, one.actor))
        prompt = renderer.render(messages, tree, one.actor, tools=tools)
        request = Request.make(one.actor, parent, None, prompt, messages, tools=tools)
        text = one.text if one.ids else renderer.format_turn(one.text)
        turn = make_turn(
            parent,
            Speaker("agent", one.actor),
            renderer.parts(text, one.actor, "literal"),
            ids=one.ids or renderer.encode_turn(one.text),
            author=one.author,
            draw=draw,
            request=request.id,
        )
        tree.add(turn, request)
        path.append(turn)
    return path
