"""Turns that nobody sampled, with the prompts that they answer: what gold rows and corrections are trained on.

An environment says what each actor is shown; the actor's renderer makes its prompt and the text's tokens, once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.environments.faults import messages_of
from coterie.environments.protocol import Environment, State
from coterie.models.chat import ChatRenderer
from coterie.tools.native import template_tools
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Request, Speaker, Turn, make_turn


@dataclass(frozen=True, slots=True)
class Written:
    """What an actor is to have said."""

    actor: str
    text: str
    author: str
    """Who wrote it: ``data``, ``critic:NAME``, or the policy that sampled it elsewhere."""
    ids: tuple[int, ...] = ()
    """The tokens, where they were sampled; otherwise the text's."""


def write_path(
    environment: Environment,
    task: Task,
    tree: Tree,
    said: Sequence[Written],
    renderers: Mapping[str, ChatRenderer],
    draw: int = 0,
) -> list[Turn]:
    """Add turns one after the other to a tree, from its root on; gives them.

    Each has a request, as if its actor had been asked. Actors of the same words need no branch of their own:
    ``draw`` tells apart paths that are.
    """
    found: list[Turn] = []
    for one in said:
        state = State(task, 0, turns=tuple(found))
        shown = messages_of(environment, state, one.actor)
        parent = found[-1].id if found else tree.root
        renderer = renderers[one.actor]
        tools = template_tools(environment.syntax, environment.tools(state, one.actor))
        prompt = renderer.render(shown, tree, one.actor, tools=tools)
        request = Request.make(one.actor, parent, None, prompt, shown, tools=tools)
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
        found.append(turn)
    return found
