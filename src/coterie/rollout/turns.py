"""Turns of actors: their place in the tree, their tool calls, and the contexts after them."""

from collections.abc import Sequence
from dataclasses import replace

from coterie.environments.checks import faults_of
from coterie.environments.protocol import Environment
from coterie.record.tree import Tree
from coterie.record.turn import Finish, Speaker, ToolCall, Turn, check_calls, make_turn
from coterie.rollout.samplers import AgentContext, Response
from coterie.rollout.transitions import Position
from coterie.tools.calls import NativeCalls, validate_calls


def chain(
    environment: Environment, at: Position, responses: Sequence[Response]
) -> tuple[Turn, ...]:
    """Chain simultaneous turns in the tree, with their tool calls."""
    turns: list[Turn] = []
    parent, left = at.node, at.state.left.get("calls")
    for one in responses:
        turn = one.turn
        speaker = Speaker(environment.actors[turn.speaker.name], turn.speaker.name)
        if environment.syntax is not None:
            turn = _with_calls(environment, at, parent, speaker, one, left)
            left = None if left is None else max(0, left - len(turn.calls))
        elif (turn.parent, turn.speaker) != (parent, speaker):
            turn = _at_node(turn, parent, speaker)
        turns.append(turn)
        parent = turn.id
    return tuple(turns)


def _with_calls(
    environment: Environment,
    at: Position,
    parent: str,
    speaker: Speaker,
    response: Response,
    max_calls: int | None,
) -> Turn:
    syntax, turn = environment.syntax, response.turn
    assert syntax is not None, "only turns of environments with tools have calls"
    with faults_of(environment):
        tools = environment.tools(at.state, speaker.name)
        if not tools:
            return _at_node(turn, parent, speaker)
        stopped = turn.text.endswith(syntax.stop)
        finish: Finish = "length" if turn.truncated else "stop_string" if stopped else "end"
        native = isinstance(syntax, NativeCalls)
        calls = turn.calls if native else syntax.parse(turn.text, finish)
        check_calls(calls)
        return _at_node(turn, parent, speaker, validate_calls(calls, tools, max_calls=max_calls))


def context_at(at: Position, actor: str) -> AgentContext:
    """Return a copy of an actor's context."""
    return replace(at.contexts[actor]) if actor in at.contexts else AgentContext()


def contexts_after(tree: Tree, at: Position, actions: tuple[Turn, ...]) -> dict[str, AgentContext]:
    contexts = dict(at.contexts)
    for turn in actions:
        if turn.prompt is not None:
            request = tree.requests[turn.prompt]
            context = context_at(at, turn.speaker.name)
            context.add(Response(turn, request, len(turn.ids)), tree.messages(request))
            contexts[turn.speaker.name] = context
    return contexts


def _at_node(turn: Turn, parent: str, speaker: Speaker, calls: tuple[ToolCall, ...] = ()) -> Turn:
    """Copy a turn under another parent, with its calls. Its request stays."""
    return make_turn(
        parent,
        speaker,
        turn.parts,
        ids=turn.ids,
        sample=turn.sample,
        calls=calls,
        results=turn.results,
        author=turn.author,
        draw=turn.draw,
        request=turn.request,
        truncated=turn.truncated,
    )
